"""What flows yield and drivers carry out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import msgspec

from txcore.errors import BackendTimeoutError
from txcore.records import HalfRecord, Outcome, Resolution, Status

R = TypeVar("R")


class Call(msgspec.Struct):
    """Call `function(*args)`; where the driver has a pool, in it, given up after `deadline_s` seconds."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    deadline_s: float | None = None


class Timed(msgspec.Struct):
    """Append *half*, and take its outcome for UNKNOWN after `deadline_s` seconds, whatever comes later."""

    half: HalfRecord
    deadline_s: float

    def expired(self) -> Outcome:
        """Return the outcome of one that has waited for too long."""
        return Outcome(Status.UNKNOWN, BackendTimeoutError(f"no answer to the half within {self.deadline_s:g} s"))


class Spawn(msgspec.Struct):
    """Run *flow* beside the yielding one."""

    flow: Flow[None]


class Each(msgspec.Struct):
    """Append halves, or release resolutions, together, at once; those answered together go on together.

    `go_on` takes their indices and outcomes and returns the flow that they go on with, or None. It must not raise; nor
    may its flow. The yielding flow resumes when all have ended. For `loop.Loop` alone, which drives many flows.

    Attributes:
        items: At least one, at most the backend's `batch_count_max`.
    """

    items: Sequence[HalfRecord] | Sequence[Resolution]
    go_on: Callable[[Answered], Flow[None] | None]


Answered: TypeAlias = "Sequence[tuple[int, Outcome]]"
Command: TypeAlias = "HalfRecord | Resolution | Timed | Call | Each | Spawn | Future[Any] | float"
Flow: TypeAlias = Generator[Command, Any, R]
