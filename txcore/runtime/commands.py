"""The commands that flows yield and drivers execute."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import msgspec

from txcore.errors import BackendTimeoutError
from txcore.records import HalfRecord, Outcome, Resolution, Status

R = TypeVar("R")


class Call(msgspec.Struct):
    """Call `function(*args)`; a driver with a pool calls it there and gives it up after `deadline_s` seconds."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    deadline_s: float | None = None


class Calls(msgspec.Struct):
    """Call `function` with each tuple of `arguments` in turn, for `turn_s` seconds, but once at least.

    Receives a `Called`. Not for coroutines, nor for a driver with a pool.
    """

    function: Callable[..., Any]
    arguments: Iterable[tuple[Any, ...]]
    turn_s: float


class Called(msgspec.Struct):
    """The calls that were made, the first ones.

    Attributes:
        values: The value of each call, None of one that raised.
        errors: What they raised, by their place.
        ended_s: The clock's reading after each.
    """

    values: list[Any] = []
    errors: dict[int, Exception] = {}
    ended_s: list[float] = []


class Timed(msgspec.Struct):
    """Append *half*; after `deadline_s` seconds its outcome is UNKNOWN, and a later one is ignored."""

    half: HalfRecord
    deadline_s: float

    def expired(self) -> Outcome:
        """Return the outcome after the deadline."""
        return Outcome(Status.UNKNOWN, BackendTimeoutError(f"no answer to the half within {self.deadline_s:g} s"))


class Spawn(msgspec.Struct):
    """Run *flow* concurrently with the yielding one."""

    flow: Flow[None]


class Each(msgspec.Struct):
    """Append halves, or release resolutions, together, at once; those answered together continue together.

    `go_on` gets the indices of those with one outcome, and this outcome, for each outcome. It returns the flow that
    continues with them, or None. It must not raise; nor may its flow. The yielding flow resumes when all have ended.
    Only for `flow_loop.Loop`, which drives many flows.

    Attributes:
        items: At least one, at most the backend's `batch_count_max`.
    """

    items: Sequence[HalfRecord] | Sequence[Resolution]
    go_on: Callable[[Answered], Flow[None] | None]


Answered: TypeAlias = "Sequence[tuple[Sequence[int], Outcome]]"
Command: TypeAlias = "HalfRecord | Resolution | Timed | Call | Calls | Each | Spawn | Future[Any] | float"
Flow: TypeAlias = Generator[Command, Any, R]
