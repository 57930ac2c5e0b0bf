"""SqlMessageTable: the message table for a relay and an operator, on connections of its own.

While a relay sends, it keeps one database transaction open with the locks of its slots, so that they are free again
as soon as it dies. On SQLite, where that would lock out every producer, it takes a lease and keeps no transaction open.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import Connection, Engine

from txcore.clock import SystemClock
from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError, UsageError
from txcore.message_table import CancelState, Refused, TableRow, Taken, Turned
from txcore.outbox.idle import bound
from txcore.outbox.notify import Bell
from txcore.outbox.slots import ParkedMessage, Slots, TableStats
from txcore.sqlfence import later
from txcore.sqlfence.border import MYSQL, SQLITE, Border
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.prune import Contended, transact
from txcore.sqlfence.runners import own_border
from txcore.sqlfence.schema import tables_named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

Done = TypeVar("Done")
SLOTS_MAX: Final = 16
"""Most slots that one relay holds at once, so that several relays share the work."""
AHEAD: Final = 4
"""Rows looked at for each row of the page before, if its bytes cut that: InnoDB reads a body to learn its size."""
LOCK_TIMEOUT_S: Final = 2.0
PARKED_MAX: Final = 1_000
BUSY_TAKES: Final = 5
"""Number of batches in a row without a pause after which a relay is busy."""


class NoTableError(BackendUnavailableError):
    """The database has no message table; `SqlFence.create` makes it; before, there is nothing to relay."""


class _Held:
    """A transaction with the locks of slots, and the statement that restores its connection's own settings."""

    def __init__(self, connection: Connection, border: Border) -> None:
        self.connection = connection
        self.border = border
        self.undo = ""

    def end(self) -> None:
        """Return the connection to its pool; without a commit before, everything is rolled back."""
        with suppress(Exception):
            self.border.rollback()
        with suppress(Exception):
            if self.undo:
                self.border.writer().quick_change(self.undo, {})
        with suppress(Exception):
            self.connection.close()


class SqlMessageTable:
    """The message table beside a fence table; implements `MessageTable`. For one relay at a time.

    Args:
        engine: A synchronous SQLAlchemy Engine. On PostgreSQL one more connection listens for producers.
        group: The producer group of the messages.
        owner: A name that no other relay has.
        table: The fence table's name, as in `SqlFence`.
        hold_s: Time after which the database frees the slots of a frozen relay; longer than a batch may take.

    Raises:
        ConfigError: an asynchronous engine.
    """

    def __init__(
        self, engine: Engine, group: str, owner: str, *, table: str = "txcore_tx", hold_s: float = 60.0
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigError(f"a Relay takes a blocking Engine of SQLAlchemy, not {engine!r}", key="engine")
        self.hold_s = hold_s
        self._engine = engine
        self._secret = engine.url.password
        self._dialect = dialect_of(engine.dialect.name, tables_named(table))
        self._slots = Slots(self._dialect, group, owner)
        self._group = group
        self._first = 0
        self._busy_takes = 0
        self._ahead_max = 0  # most rows to look at after a page that its bytes cut; 0 for no such bound
        self._bell = Bell(engine, self._dialect.tables, group)
        self.can_ring = self._bell.can_ring  #: Whether producers can wake a relay here.

    # The relay's side ------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Make the group's slots, once; idempotent.

        Raises:
            BackendUnavailableError: the database failed, or there is no message table (run `create`).
        """
        self._transact(self._slots.create)

    def take(self, group: str, resting: Collection[int], row_max: int) -> Taken | None:  # noqa: ARG002 - the port's
        """See `MessageTable.take`."""
        if self._dialect.family == SQLITE:
            return self._transact(lambda border: self._taken(border, resting, row_max, None))
        held = self._open()
        try:
            self._begin(held)
            taken = self._taken(held.border, resting, row_max, held)
            if taken is not None and self._dialect.family == MYSQL:
                # InnoDB shows unflushed commits; publishing those would announce messages whose commit a crash undoes.
                self._transact(self._slots.flush)
        except BaseException as error:
            held.end()
            raise self._translated(error) from error
        if taken is None:
            held.end()
        self._stay_awake(taken)
        return taken

    def turn_due(self, group: str, row_max: int) -> Turned:
        """See `MessageTable.turn_due`; while no row is due, it only reads."""
        with self._opened() as held:
            is_there = later.is_there(self._dialect, held.border)
            next_ms = later.next_due_in_ms(self._dialect, held.border, group) if is_there else None
        if next_ms is None or next_ms > 0:
            return Turned(0, None if next_ms is None else next_ms / 1000)
        with self._opened() as held:
            self._begin(held)
            count = self._slots.turn(held.border, row_max)
            held.border.commit()
        return Turned(count, 0.0)

    def beat(self) -> None:
        """Note that a relay of the group runs, for operators. Raises BackendUnavailableError."""
        self._transact(self._slots.beat)

    def settle(self, taken: Taken, sent: Sequence[TableRow], refused: Sequence[Refused]) -> None:
        """See `MessageTable.settle`."""
        held: _Held | None = taken.hold

        def action(border: Border) -> None:
            self._slots.delete(border, sent)
            for each in refused:
                self._slots.note(border, each)
            if held is None:
                self._slots.release(border, taken.slots)

        if held is None:
            self._transact(action)
            return
        try:
            action(held.border)
            held.border.commit()
        except Exception as error:
            raise self._translated(error) from error
        finally:
            held.end()

    def drop(self, taken: Taken) -> None:
        """See `MessageTable.drop`."""
        if taken.hold is not None:
            taken.hold.end()
            return
        with suppress(BackendUnavailableError):
            self._transact(lambda border: self._slots.release(border, taken.slots))

    def sleep(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until a producer rings, *seconds* have passed, or *is_over*; raises nothing. Only where `can_ring`.

        Returns at once when producers did not know that the relay sleeps: it must first look for messages that one of
        them has committed meanwhile.
        """
        with suppress(BackendUnavailableError):
            is_news = self._transact(lambda border: self._slots.sleep(border, is_asleep=True))
            if not is_news:
                self._bell.wait(seconds, is_over)

    def close(self) -> None:
        """Close the connection that listens; idempotent."""
        self._bell.close()

    # The operator's side ---------------------------------------------------------------------------------------------

    def stats(self) -> TableStats:
        """Count the waiting rows. Raises BackendUnavailableError."""
        return self._transact(self._slots.stats)

    def unserved_s(self) -> float | None:
        """Return for how long messages have waited without a relay; see `Slots.unserved_s`.

        Raises:
            NoTableError: there is no message table, so nothing waits.
            BackendUnavailableError: the database failed.
        """
        with self._opened() as held:
            return self._slots.unserved_s(held.border)

    def parked(self, count_max: int = PARKED_MAX, *, is_dropped: bool = False) -> list[ParkedMessage]:
        """Return the parked messages, or the dropped ones. Raises BackendUnavailableError."""
        return self._transact(lambda border: self._slots.parked(border, count_max, is_dropped=is_dropped))

    def resume(self, transaction_id: bytes) -> int:
        """Retry the parked messages of a transaction; returns their number. Raises BackendUnavailableError."""
        return self._transact(lambda border: self._slots.resume(border, transaction_id))

    def give_up(self, transaction_id: bytes, why: str, by: str) -> int:
        """Drop the parked messages of a transaction for good; returns their number.

        Their rows stay as a record, with name, time and reason; the audit names the transaction FORCED.

        Raises:
            UsageError: the reason is empty.
            BackendUnavailableError: the database failed.
        """
        reason = _note("dropped", why, by)
        return self._transact(lambda border: self._slots.drop(border, transaction_id, reason))

    def cancel(self, transaction_id: bytes, why: str, by: str) -> CancelState:
        """Cancel the delayed messages of a transaction in a transaction of its own, with a record of name and reason.

        Raises:
            UsageError: the reason is empty.
            BackendUnavailableError: the database failed.
        """
        note, group = _note("cancelled", why, by), self._group
        return self._transact(lambda border: later.cancel(self._dialect, border, transaction_id, group, note))

    # -----------------------------------------------------------------------------------------------------------------

    def _stay_awake(self, taken: Taken | None) -> None:
        """While there is much to do, let producers ring no more: a ring costs them time."""
        self._busy_takes = 0 if taken is None else self._busy_takes + 1
        if self._busy_takes == BUSY_TAKES and self.can_ring:
            with suppress(BackendUnavailableError):
                self._transact(lambda border: self._slots.sleep(border, is_asleep=False))

    def _taken(self, border: Border, resting: Collection[int], row_max: int, held: _Held | None) -> Taken | None:
        busy = sorted(self._slots.busy(border), key=lambda slot: (slot < self._first, slot))
        for start in range(0, len(busy), SLOTS_MAX):
            free = self._slots.hold(border, busy[start : start + SLOTS_MAX])
            slots = [slot for slot in busy[start : start + SLOTS_MAX] if slot in free]
            each_max = max(min(row_max, self._ahead_max or row_max) // max(len(slots), 1), 1)
            rows, left_out, is_cut = self._slots.page(border, slots, resting, each_max)
            self._ahead_max = AHEAD * len(rows) if is_cut else 0
            if rows:  # else all lanes of these slots rest, and there may be work in the next ones
                self._slots.lease(border, slots, round(self.hold_s * 1000))
                self._first = left_out[0] if left_out else slots[-1] + 1
                return Taken(slots, rows, held)
        return None

    def _begin(self, held: _Held) -> None:
        """Begin a transaction that locks what a cancel or another relay may wait for; the server bounds it."""
        held.undo = self._dialect.begin_work(held.border, LOCK_TIMEOUT_S)
        undo = bound(held.border, self.hold_s)
        held.undo += f", {undo}" if undo else ""

    def _transact(self, action: Callable[[Border], Done]) -> Done:
        held = self._open()
        try:
            outcome: Any = transact(self._dialect, held.border, action, self._secret, LOCK_TIMEOUT_S)
        except BackendUnavailableError as error:
            raise self._translated(error.__cause__ or error) from error
        finally:
            held.end()
        if isinstance(outcome, Contended):
            raise BackendUnavailableError(f"the message table's database: {outcome.text}")
        return cast("Done", outcome)

    @contextmanager
    def _opened(self) -> Iterator[_Held]:
        held = self._open()
        try:
            yield held
        except Exception as error:
            raise self._translated(error) from error
        finally:
            held.end()

    def _open(self) -> _Held:
        try:
            connection = self._engine.connect()
            return _Held(connection, own_border(connection, self._dialect))
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, TxcoreError) or not isinstance(error, Exception):
            return error
        failure = failure_of(error, self._secret)
        kind = NoTableError if failure.cause is Cause.NO_TABLE else BackendUnavailableError
        return kind(f"the message table's database: {failure}")


def _note(verb: str, why: str, by: str) -> str:
    """Return the record of an operator's decision.

    Raises:
        UsageError: the reason is empty.
    """
    if not why.strip():
        raise UsageError(f"say why the messages are {verb}: the reason is kept with them")
    at = datetime.fromtimestamp(SystemClock().wall_ms() // 1000, UTC).isoformat()
    return f"{verb} by {by} at {at}: {why.strip()}"
