"""The backend port: the interface between the core and a broker.

Data path: `append_halves` and `release` take a batch and settle each of its items through the batch itself, the
only completion object; no Future and no callback of the user's is in between. Control path: Futures that are
already marked running, so that a cancelled waiter never kills the thread that completes them.

A backend holds no protocol: it never decides, never retries beyond its own timeout, and never interprets a
record, except where a capability says that the store itself enforces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol, Self, TypeVar, runtime_checkable

from txcore.errors import BackendUnavailableError
from txcore.records import (
    Capabilities,
    Checkpoint,
    ClaimEvent,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    Outcome,
    Position,
    Resolution,
)
from txcore.wake import Answer

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)


def never_done() -> bool:
    """Return False: `Backend.poll` ends when its time is over."""
    return False


class Batch(Protocol[Item]):
    """A group of items that collects the outcome of each. Implemented by the core."""

    @property
    def items(self) -> Sequence[Item]:
        """The items, in the order in which the backend should submit them.

        Perhaps in columns (`txcore.columns`), which make an item anew each time that it is asked for.
        """

    def settle(self, index: int, outcome: Outcome) -> None:
        """Report the outcome of the item at *index*: exactly once per item, from any thread, perhaps before the
        submitting call has returned. Never blocks, never raises, never calls the backend.
        """

    def settle_all(self, indices: Sequence[int], outcome: Outcome) -> None:
        """Report one outcome of several items, as `settle` of each would; *indices* is not changed afterwards."""


class SettlesEach:
    """Base of a batch for which many items that end alike are as many single ones."""

    settle: Callable[[int, Outcome], None]

    def settle_all(self, indices: Sequence[int], outcome: Outcome) -> None:
        """See `Batch.settle_all`."""
        for index in indices:
            self.settle(index, outcome)


class Reader(Protocol):
    """One log of one partition, read forward. One thread at a time."""

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """Return at most *count_max* records that have arrived, in log order, at once; empty proves nothing.

        Raises:
            DataLossError: records at the requested start are gone, or the very beginning was requested and is gone
                (also raised where the backend cannot know); `first` is the first position that exists, or None when
                no record is left: then reopen without a start.
            ConfigError: the group does not exist.
            BackendUnavailableError: the broker cannot be reached; calling again later is allowed.
        """

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """Re-read single records; records that are gone are missing from the result."""

    def end(self) -> Future[Position]:
        """Return the end of the log: a position after every record that was stored before this call.

        The answer comes from the log, never from silence, and never from a leader that was replaced without noticing.
        A backend whose broker does not report it appends its own record, which no reader returns. May be called again
        before an earlier answer came.

        Raises (through the Future):
            ConfigError: the group does not exist.
            BackendTimeoutError, BackendUnavailableError: the broker did not answer.
        """

    @property
    def passed(self) -> Position:
        """The position before which `read` has returned every existing record.

        Once it has reached the answer of `end`, `read` has returned every record stored before that call. It may lie
        after the last returned record, where the entries that follow are not records of this log.
        """

    def close(self) -> None:
        """Stop reading; idempotent. An `end` without an answer ends with BackendUnavailableError."""


Opened = Callable[[str, int, LogKind, bytes], bytes]
"""Returns the body of a log's record (group, partition, kind, body) without its signature; for a record that is not
believed, bytes that no decoder takes."""


@runtime_checkable
class ActsOnRecords(Protocol):
    """A backend that reads records itself and deletes others because of them; optional."""

    def open_with(self, opened: Opened) -> None:
        """Believe such records only as *opened* returns them. To be called once, before anything is read."""


class Claim(Protocol):
    """Membership of one checker process in a group. One thread at a time."""

    def poll(self) -> Sequence[ClaimEvent]:
        """Return the ownership changes since the last call; at once.

        An assignment that ended before it was polled leaves no event, and its partition waits for no answer. A member
        that does not poll for long is stuck, and loses its partitions although its connection lives: they go to
        others, and it gets LOST, then a share again, when it polls.

        Raises:
            ConfigError, ClosedError: nothing else; a failure of the broker shows as LOST, or as no event.
        """

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """Store a checkpoint; may be lost or go back, must never be mixed with another one."""

    def give_up(self, partition: int) -> None:
        """Promise that nothing more will be written for the partition under this claim.

        The answer to REVOKING, and the core's own step when it resigns (a foreign CLAIM was read, FENCED). It refers
        to the last ASSIGNED that `poll` returned and is ignored when that assignment is over already, as all are
        after `close`. The backend competes for the partition again and returns ASSIGNED anew when it has it, even if
        it never lost it.
        """

    def close(self, timeout_s: float) -> Future[None]:
        """Leave the group so that other members take over at once; idempotent, bounded by *timeout_s*."""


class Backend(Protocol):
    """One connection to one broker. Thread safe; a forked child opens its own.

    Every item of a batch is settled within the backend's own timeout, UNKNOWN if need be, and by `close`.
    Positions of one log ascend in the order in which `Reader` returns them. Capabilities follow from the URL alone;
    `ensure_group` verifies the server against them. Control calls may fail with BackendUnavailableError or
    BackendTimeoutError through their Futures, and with ConfigError for a group that does not exist.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The promises of this instance, URL options included."""

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """Create or verify the group's objects; resolves to its number of partitions.

        *partition_count* None accepts the existing number, or the backend's default for a new group.

        Raises (through the Future):
            ConfigError: the group exists with other settings (each difference that the broker reports is named), or
                the server lacks a feature that the URL's options promise.
        """

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """Append halves; returns within a millisecond.

        DURABLE: stored. REFUSED: certainly not stored: never handed to the broker, refused by it, or, as found
        *before* the half is stored, a target does not exist or one of the messages could not be accepted later
        (size, headers, topic syntax). UNKNOWN: may be stored. Items are independent: one refused item does not
        affect its neighbours. Where ops cannot be merged or targets are checked first, order across items may differ
        from the order in the batch.
        """

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """Publish targets and the parked record, if any, and after their confirmation the op, item by item.

        An item may have both, and either without an op.

        All at once where `atomic_release` holds. Unless the store keeps resolutions unique, a release of a claim then
        takes effect before the next mark of its partition can be read, or never: also one that was UNKNOWN, and one of
        an older CLAIM. `missing` lists the targets that were not confirmed. REFUSED: each of these was refused by the
        broker's own answer; a broker that could not be reached in time is UNKNOWN, as is an item with one unknown
        target. Neither writes the op, not even when a late confirmation comes. *claim* is
        passed by checkers: where `fences_checkers` holds, an op whose token is not the newest CLAIM of its partition
        is FENCED and has no effect. With `atomic_release` one refused target means that none was published: all are
        missing. REFUSED with nothing missing means that no target refused and the op was certainly not stored; UNKNOWN
        with nothing missing means that only the op is uncertain.
        """

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:
        """Append a CLAIM or TICK after every op that this object has queued before for the partition.

        Releases that still wait for a target's confirmation have no queued op yet; their ops may come later.
        """

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> Reader:
        """Open a reader at *start*, a position that was read before (inclusive), or at the log's very beginning.

        Needs no ownership. When the record at *start*, or the very beginning, is gone, the first `Reader.read`
        raises DataLossError; reopen at its `first`.
        """

    def claim(self, group: str, member: str) -> Claim:
        """Join the group as *member*; assignments arrive as events."""

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """Return the last checkpoint, or None. May write a marker of the backend's own to find the end of a log."""

    def ping(self, group: str) -> Future[None]:
        """Ask the broker whether the group is there; resolves with the broker's answer. Returns at once.

        The answer is a new one each time, never one from memory, and the question writes nothing. So a checker learns
        whether its broker still answers. Several questions may be under way.

        Raises (through the Future):
            ConfigError: the group does not exist.
            BackendTimeoutError, BackendUnavailableError: the broker did not answer.
        """

    def poll(self, timeout_s: float, is_done: Callable[[], Any] = never_done, *, comes_again: bool = False) -> bool:
        """Make progress on the calling thread until *is_done*, for at most *timeout_s*, and return True.

        A backend with threads of its own may lend the caller their work, so that no other thread has to wake the
        caller. With *comes_again* the threads stay out for a moment longer; with neither a time nor *comes_again*
        they resume their work. A backend that does not lend it returns False, at once.
        """

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """Send queued ops, settle everything, stop threads; idempotent, bounded by *timeout_s*.

        Raises (through later calls): ClosedError.
        """

    def __enter__(self) -> Self:
        """Return this object; `lifecycle.ClosedAtExit` has the four methods of `with` and `async with`."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object, /) -> None:
        """Close, and wait for it; raises an error of closing, unless the block has raised one."""

    async def __aenter__(self) -> Self:
        """Return this object."""

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object, /) -> None:
        """Close as `__exit__` does, without blocking the event loop."""


def running() -> Future[Any]:
    """Return a Future that is marked running, so that no waiter can cancel it before a thread sets its result.

    A waiter that an exception of a signal's handler interrupts keeps no lock of it.
    """
    future = Answer()
    future.set_running_or_notify_cancel()
    return future


def resolved(value: T) -> Future[T]:
    """Return a Future that already holds *value*."""
    future: Future[T] = running()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[T]:
    """Return a Future that already holds *error*."""
    future: Future[T] = running()
    future.set_exception(error)
    return future


GROUP_TIMEOUT_S: Final = 30.0
"""Longest wait for a backend's answer about a group, in seconds."""


def ensured(backend: Backend, group: str, partition_count: int | None = None) -> int:
    """Make a group where it is missing, and return its number of partitions; see `Backend.ensure_group`.

    Raises:
        BackendUnavailableError: no answer within `GROUP_TIMEOUT_S`.
    """
    try:
        return backend.ensure_group(group, partition_count).result(GROUP_TIMEOUT_S)
    except TimeoutError as error:
        raise BackendUnavailableError(f"no answer about group {group!r} within {GROUP_TIMEOUT_S:g} s") from error
