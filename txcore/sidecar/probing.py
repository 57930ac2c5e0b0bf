"""`txcore checker --check-config`: tries everything that a configuration names, without checking a half.

Stricter than a start: a start waits for a broker that is down; here that is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from txcore.backends.files import require_file
from txcore.clock import SystemClock, system_randomness
from txcore.config import ConfigFileError, Loaded
from txcore.config.lines import Path
from txcore.config.problems import key_text
from txcore.errors import BackendUnavailableError, TxcoreError, UsageError
from txcore.fence import FenceAnswer
from txcore.history.log_survey import existing_partitions
from txcore.sidecar.answers import open_answers
from txcore.sidecar.fences import UNUSED_ID, GuardedFence
from txcore.sidecar.figures import Figures
from txcore.sidecar.group import tracing_of
from txcore.sidecar.life import load_endpoint
from txcore.sidecar.plan import GroupPlan, plans_of
from txcore.sidecar.resources import Resources

TIMEOUT_S: Final = 10.0
RANDOM: Final = system_randomness()


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one try: the setting, a text, and whether the try succeeded."""

    key: str
    text: str
    is_well: bool


def validate(loaded: Loaded) -> None:
    """Find the mistakes that show without a network: listeners that cannot be imported, missing drivers.

    Raises:
        ConfigFileError: with every such mistake.
    """
    resources, problems = Resources(), []
    for name, plan in plans_of(loaded).items():
        tries: tuple[tuple[Path, Callable[[], None]], ...] = (
            (("backends", plan.backend, "url"), partial(_open_backend, plan, resources)),
            (("groups", name), partial(_open_answers, plan, resources)),
        )
        for path, attempt in tries:
            try:
                attempt()
            except UsageError as error:
                problems.append(loaded.problem(_place(path, plan, getattr(error, "key", "")), str(error)))
    if problems:
        raise ConfigFileError(list(dict.fromkeys(problems)))


def _open_backend(plan: GroupPlan, resources: Resources) -> None:
    if plan.backend_url.startswith("memory:"):
        raise UsageError("memory:// lives inside one process; name a broker that the producers reach too")
    try:
        resources.take_backend(plan.backend_url)
    except BackendUnavailableError:
        return  # The start waits for it.
    resources.give_back_backend(plan.backend_url)


def _open_answers(plan: GroupPlan, resources: Resources) -> None:
    clock = SystemClock()
    open_answers(plan, resources, Figures(clock), clock, RANDOM).close()


def _place(path: Path, plan: GroupPlan, key: str) -> Path:
    """Return the setting that an error of a fence, listener or callback concerns."""
    if path[0] == "backends":
        return path
    places: dict[str, Path] = {
        "url": ("databases", plan.database, "url"),
        "engine": ("databases", plan.database, "url"),
        "table": (*path, "fence_table"),
        "listener": (*path, "listener"),
        "callback": (*path, "callback"),
    }
    return places.get(key, path)


def probe(loaded: Loaded) -> Iterator[Probe]:
    """Try the endpoint, and every group's broker, fence, listener and callback, one after the other.

    Nothing is created, not even the file that an SQLite URL names.
    """
    if loaded.config.http.enabled:
        yield _endpoint(loaded)
    resources = Resources()
    for plan in plans_of(loaded).values():
        with ExitStack() as closing:
            yield _broker(plan, resources, closing)
            yield from _answers(plan, resources, closing)


def _endpoint(loaded: Loaded) -> Probe:
    """Try the endpoint's libraries and certificate; its port may be in use by the checker that runs already."""
    try:
        load_endpoint().check(loaded)
    except TxcoreError as error:
        return Probe("http", str(error), is_well=False)
    return Probe("http", "the endpoint can be served", is_well=True)


def _broker(plan: GroupPlan, resources: Resources, closing: ExitStack) -> Probe:
    key = key_text(("groups", plan.name))
    try:
        require_file(plan.backend_url, "broker")
        tracing_of(plan)
        backend = resources.take_backend(plan.backend_url)
        closing.callback(resources.give_back_backend, plan.backend_url)
        count = existing_partitions(backend, plan.name, TIMEOUT_S)
    except (TxcoreError, TimeoutError) as error:
        return Probe(key, f"backend {plan.backend}: {error or 'no answer in time'}", is_well=False)
    return Probe(key, f"backend {plan.backend} has the group with {count} partitions", is_well=True)


def _answers(plan: GroupPlan, resources: Resources, closing: ExitStack) -> Iterator[Probe]:
    key = key_text(("groups", plan.name))
    clock = SystemClock()
    try:
        answers = open_answers(plan, resources, Figures(clock), clock, RANDOM)
    except TxcoreError as error:
        name = getattr(error, "key", "")
        yield Probe(f"{key}.{name}" if name else key, str(error), is_well=False)
        return
    closing.callback(answers.close)
    if answers.fence is not None:
        trouble = _trouble_with_fence(plan, answers.fence)
        found = trouble or f"fence table {plan.section.fence_table} is there"
        yield Probe(f"{key}.database", f"database {plan.database}: {found}", is_well=not trouble)
    if plan.section.listener:
        yield Probe(f"{key}.listener", f"{plan.section.listener} can be imported", is_well=True)
    if answers.callback is not None:
        trouble = answers.callback.probe()
        yield Probe(f"{key}.callback", trouble or "a server answers at its URL", is_well=not trouble)


def _trouble_with_fence(plan: GroupPlan, fence: GuardedFence) -> str:
    """Return the reason why the fence cannot be asked; "" when it can."""
    try:
        require_file(plan.database_url, "database")
    except UsageError as error:
        return str(error)
    reading = fence.peek([UNUSED_ID])[UNUSED_ID]
    return reading.reason if reading.answer is FenceAnswer.NO_ANSWER else ""
