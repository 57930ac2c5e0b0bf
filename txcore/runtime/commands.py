"""The commands that flows yield and drivers execute."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
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
    """Call `function` with each of `items` in turn, for `turn_s` seconds, but once at least.

    Receives a list with the value of each call, its error, and the clock's reading after it. Not for coroutines, nor
    for a driver with a pool.
    """

    function: Callable[[Any], Any]
    items: Sequence[Any]
    turn_s: float


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
