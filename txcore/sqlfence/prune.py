"""Pruning: the horizon first, then a wait, then bounded deletes of the ids that the caller knows to be closed.

Written as steps that a synchronous or an asynchronous driver runs: work on a connection, or seconds to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from txcore.errors import BackendUnavailableError
from txcore.ids import TransactionId, born_ms, known_id
from txcore.sqlfence import later, messages
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.schema import VIA_TABLE

if TYPE_CHECKING:
    from txcore.sqlfence.border import Border
    from txcore.sqlfence.dialects import Dialect

IsClosed = Callable[[Sequence[bytes]], Collection[bytes]]
_ATTEMPTS_MAX: Final = 5
LOCK_TIMEOUT_S: Final = 1.0  # the horizon's lock is shared by open producers at snapshot levels


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The result of one prune.

    Attributes:
        horizon: The `pruned_below` in force after it.
        deleted: Rows deleted.
        kept: Rows below the requested id that stay because they are not closed.
    """

    horizon: TransactionId
    deleted: int
    kept: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A step: let this time pass."""

    seconds: float


Work = Callable[["Border"], Any]
"""A step: run it in a transaction of its own on a connection of the fence's own."""
PruneSteps = Generator[Work | Wait, Any, PruneResult]


def prune_steps(
    dialect: Dialect, below: bytes, is_closed: IsClosed, *, wait_s: float, chunk: int, has_states: bool = True
) -> PruneSteps:
    """Raise and commit the horizon, wait, delete closed ids below it in chunks.

    A row of state 3 is not closed while the message table holds a message of it, even if *is_closed* names it; one with
    delayed messages not before the last of them was due. An inbox's rows have no states.
    A producer's insert or a check's tombstone for an id below the horizon is refused from the first step on; during the
    wait, those that had read the old horizon end. After an interruption at any point, it can be run again.
    """

    def raise_it(border: Border) -> bytes:
        dialect.raise_horizon(border, below)
        return dialect.horizon(border)

    horizon = yield from _retried(raise_it)
    yield Wait(wait_s)
    after, deleted, kept = bytes(16), 0, 0
    while True:
        page = yield from _retried(partial(dialect.page, after=after, below=below, count=chunk))
        ids = sorted(set(page))  # an inbox has several rows of one id
        if not ids:
            return PruneResult(known_id(horizon), deleted, kept)
        waiting: set[bytes] = (yield from _retried(partial(_kept, dialect, below, ids))) if has_states else set()
        closed = sorted(set(is_closed(ids)).intersection(ids) - waiting)
        if closed:
            delete = partial(_forget, dialect, closed) if has_states else partial(dialect.delete, ids=closed)
            deleted += yield from _retried(delete)
        kept += len(ids) - len(closed)
        after = ids[-1]


def _kept(dialect: Dialect, below: bytes, ids: Sequence[bytes], border: Border) -> set[bytes]:
    """Return the ids with messages that wait or were dropped, or were due after the time of *below*."""
    return via_table(dialect, ids, border)[1] | later.waiting(dialect, border, ids, kept_from_ms=born_ms(below))


def _forget(dialect: Dialect, ids: Sequence[bytes], border: Border) -> int:
    """Delete the rows of *ids* with the records of their delayed messages; returns the number of the former."""
    later.forget(dialect, border, ids)
    return dialect.delete(border, ids)


def via_table(dialect: Dialect, ids: Sequence[bytes], border: Border) -> tuple[set[bytes], set[bytes]]:
    """Return the ids of state 3 whose messages are all sent, and the ids with messages that wait or were dropped."""
    found = {identity for identity, row in dialect.read(border, ids).items() if row.state == VIA_TABLE}
    waiting = messages.waiting(dialect, border, found, has_dropped=True) if found else set()
    return found - waiting, waiting


def _retried(action: Callable[[Border], Any]) -> Generator[Work | Wait, Any, Any]:
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            yield Wait(attempt * 0.2)
        outcome = yield action
        if not isinstance(outcome, Contended):
            return outcome
    raise BackendUnavailableError(f"the prune gave up after {_ATTEMPTS_MAX} tries and can be run again: {outcome.text}")


@dataclass(frozen=True, slots=True)
class Contended:
    """The return value of `transact` when a lock was not free: a retry may help."""

    text: str


def transact(
    dialect: Dialect, border: Border, action: Callable[[Border], Any], secret: str | None, lock_timeout_s: float
) -> Any:
    """Run *action* in a transaction with a bounded wait for locks, durable at its end.

    Raises:
        BackendUnavailableError: the database failed, other than by a lock (that is returned as `Contended`).
    """
    try:
        with dialect.work(border, lock_timeout_s):
            result = action(border)
            border.commit()
    except Exception as error:
        failure = failure_of(error, secret)
        if failure.cause in {Cause.LOCKED, Cause.COLLISION}:
            return Contended(str(failure))
        if failure.cause is Cause.OTHER and not failure.code:
            raise  # not a failure of the database
        raise BackendUnavailableError(f"the fence's database: {failure}") from error
    return result
