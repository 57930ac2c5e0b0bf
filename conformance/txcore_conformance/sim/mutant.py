"""One rule of the core that a simulation switches off, and the profiles in which that must be found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from txcore.memory import MemoryBackend
from txcore.records import OpKind, Outcome, Resolution, Status

STRONG, KAFKA, RABBITMQ, NATS = "strong", "kafka-like", "rabbitmq-like", "nats-like"
ALL = (STRONG, KAFKA, RABBITMQ, NATS)
STEPPED = (KAFKA, RABBITMQ, NATS)
ARBITRATED = "the store refuses the second release, or drops its targets by their id"
RARE = "the rule is the same there, but the seeds that need it are rarer; the refinement finds it for all"
RARER = "the rule is the checker's, the same for every store; the seeds that need it are rarer there"
Patch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule switched off."""

    rule: str
    patch: Patch
    needed_in: tuple[str, ...] = ALL
    elsewhere: str = ""


def replace(owner: object, name: str, new: Any) -> Patch:
    """Return the patch that sets an attribute of a module or a class."""
    return lambda: mock.patch.object(owner, name, new)


_in_steps = MemoryBackend._release_in_steps  # noqa: SLF001


def op_first(kinds: frozenset[OpKind]) -> Any:
    """Return a release that writes ops of these kinds before the targets and the parked record."""

    def release(self: MemoryBackend, resolution: Resolution, claim: Any, done: Callable[[Outcome], None]) -> None:
        op = resolution.op
        if op is None or op.kind not in kinds:
            _in_steps(self, resolution, claim, done)
            return
        rest = Resolution(resolution.half, None, resolution.targets, resolution.parked, resolution.by)

        def then(outcome: Outcome) -> None:
            if outcome.status is Status.DURABLE:
                _in_steps(self, rest, claim, done)
            else:
                done(outcome)

        self._release_op(resolution, claim, then)

    return release
