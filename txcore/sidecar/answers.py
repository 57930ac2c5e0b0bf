"""The sources of one group's answers, made from a plan and closed again: fence, Python listener, HTTP callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, cast

from txcore.clock import Clock, Randomness
from txcore.fence import Fence
from txcore.listener import CheckListener
from txcore.sidecar.callback import HttpCallback
from txcore.sidecar.fences import GuardedFence, open_fence
from txcore.sidecar.figures import Figures
from txcore.sidecar.listeners import TimedListener, is_asynchronous, load_listeners
from txcore.sidecar.plan import GroupPlan
from txcore.sidecar.resources import Resources
from txcore.sidecar.source_circuit import CALLBACK, DATABASE, SourceCircuit

DEADLINE_PART: Final = 0.95
"""Part of the check's deadline after which the callback gives up by itself, so that no thread is abandoned."""


@dataclass(slots=True)
class Answers:
    """The sources that a checker asks.

    Attributes:
        circuits: The circuits of the sources; an open one has a reason.
        closing: The resources that `close` releases.
    """

    listeners: tuple[CheckListener, ...] = ()
    fence: GuardedFence | None = None
    callback: HttpCallback | None = None
    event_loop: asyncio.AbstractEventLoop | None = None
    circuits: tuple[SourceCircuit, ...] = ()
    closing: ExitStack = field(default_factory=ExitStack)

    @property
    def port(self) -> Fence | None:
        """The fence as a checker takes it; the producer's half of the port is not used there."""
        return cast("Fence | None", self.fence)

    def close(self) -> None:
        """Release all resources."""
        self.closing.close()


def open_answers(
    plan: GroupPlan, resources: Resources, figures: Figures, clock: Clock, randomness: Randomness
) -> Answers:
    """Return the group's sources of answers; nothing is asked or connected yet.

    Raises:
        ConfigError: the listener cannot be imported, or a URL, table or certificate cannot be used.
        BackendNotInstalledError: a driver is missing.
    """
    answers = Answers()
    try:
        _add_fence(answers, plan, resources, figures, clock, randomness)
        _add_listener(answers, plan, resources, figures, clock)
        _add_callback(answers, plan, figures, clock, randomness)
    except BaseException:
        answers.close()
        raise
    answers.circuits = tuple(each.circuit for each in (answers.fence, answers.callback) if each is not None)
    return answers


def _add_fence(
    answers: Answers,
    plan: GroupPlan,
    resources: Resources,
    figures: Figures,
    clock: Clock,
    randomness: Randomness,
) -> None:
    if not plan.database:
        return
    url, section = plan.database_url, plan.database_section
    engine = resources.take_engine(url, section)
    answers.closing.callback(resources.give_back_engine, url, section)
    fence = open_fence(engine, plan.section.fence_table, section)
    # One failure opens it: the failed plain read was already a second attempt.
    circuit = _circuit(plan, f"{DATABASE} {plan.database}", clock, randomness, failures_max=1)
    answers.fence = GuardedFence(fence, circuit, clock, figures.asked_s.observe, plan.limits.check_deadline_s)


def _add_listener(answers: Answers, plan: GroupPlan, resources: Resources, figures: Figures, clock: Clock) -> None:
    if not plan.section.listener:
        return
    found = load_listeners(plan.section.listener)
    if any(map(is_asynchronous, found)):
        answers.event_loop = resources.take_loop()
        answers.closing.callback(resources.give_back_loop)
    observe: Callable[[float], None] = figures.asked_s.observe
    answers.listeners = tuple(cast("CheckListener", TimedListener(each, clock, observe)) for each in found)


def _add_callback(answers: Answers, plan: GroupPlan, figures: Figures, clock: Clock, randomness: Randomness) -> None:
    if plan.callback is None:
        return
    limits = plan.limits
    answers.callback = HttpCallback(
        plan.callback,
        plan.credentials,
        _circuit(plan, CALLBACK, clock, randomness),
        clock,
        deadline_s=limits.check_deadline_s * DEADLINE_PART,
        connections_max=limits.calls_max,
        count=figures.callbacks,
        observe=figures.asked_s.observe,
    )
    answers.closing.callback(answers.callback.close)
    answers.listeners = (answers.callback,)


def _circuit(plan: GroupPlan, name: str, clock: Clock, randomness: Randomness, failures_max: int = 3) -> SourceCircuit:
    longest_s = plan.limits.retry_max_s
    return SourceCircuit(name, clock, randomness, group=plan.name, failures_max=failures_max, longest_s=longest_s)
