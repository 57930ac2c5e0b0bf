"""The fence's work for producers and checkers, written once for `SqlFence` and `AsyncSqlFence`.

`fence_table` has the work for operators, `fence_row` handles the producer's row, `checks` the check, the dialects the
SQL. A method that works on the caller's connection returns an action on its border; one that works on the fence's own
engine is a coroutine, which `runners.at_once` runs on a blocking engine.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from txcore.errors import ConfigError, FenceMisuseError, InMessageTableError, UsageError, WrongDatabaseError
from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import id_text
from txcore.sqlfence import identity, later
from txcore.sqlfence.border import Border
from txcore.sqlfence.checks import Check, Readings, no_answers, reading_of, reading_of_state
from txcore.sqlfence.connections import border_of, inner_of, is_open, mark_of, on_idle
from txcore.sqlfence.dialects import ROWS_MAX
from txcore.sqlfence.fence_row import check_arguments
from txcore.sqlfence.fence_table import EngineT, FenceTable
from txcore.sqlfence.runners import Runner, reason_of, require_engine
from txcore.sqlfence.schema import VIA_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from txcore.connections import AsyncDatabaseConnection, DatabaseConnection
    from txcore.message_table import CancelState, TableRow

    Action = Callable[[Border], None]


class FenceCore(FenceTable[EngineT]):
    """The work of a fence, and its methods that never wait."""

    def database_of(self, connection: DatabaseConnection | AsyncDatabaseConnection) -> bytes:
        """Return the identity of the database into which the row on *connection* went; empty if it has none.

        Never waits: it was read once for each connection to the server, and the insert has compared it.
        """
        mark = mark_of(connection)
        if mark is not None:
            return mark.database.current
        found = identity.recall(self._dialect, border_of(inner_of(connection), self.engine))
        return b"" if found is None else found.current

    def known_database(self) -> bytes | None:
        """Return the identity of the database of the fence's own engine; None when it must be read first.

        Tables of schema version 1 have none, and are read each time: an upgrade adds one.
        """
        return self._database or None

    def is_open(self, connection: DatabaseConnection | AsyncDatabaseConnection) -> bool:
        """Return whether the connection's transaction is still open; never waits.

        On SQLAlchemy connections only the transaction that carries the row counts, not one begun after it.
        """
        return is_open(connection)

    def _runner_of(self, engine: EngineT | None) -> Runner:
        """Return the runner on *engine*, or on the fence's own."""
        if engine is None or engine is self.engine:
            return self._own
        try:
            require_engine(type(self), engine, is_async=self.is_async)
        except ConfigError as error:
            raise FenceMisuseError(str(error)) from None
        self._watch(engine)
        return Runner(engine, self._dialect, self._secret)

    def _inserting(
        self, transaction_id: bytes, group: str, rows: Sequence[TableRow], expected: bytes, digest: bytes
    ) -> Action:
        def action(border: Border) -> None:
            try:
                self._rows.insert(border, transaction_id, group, rows, owned=False, expected=expected, digest=digest)
            except WrongDatabaseError:
                self._database = None  # this database, or the fence's own, was replaced
                raise

        return action

    def _withdrawing(self, transaction_id: bytes) -> Action:
        return lambda border: self._rows.change(border, transaction_id, self._dialect.withdraw)

    def _enqueueing(self, transaction_id: bytes, group: str, rows: Sequence[TableRow], digest: bytes) -> Action:
        return lambda border: self._rows.enqueue(border, transaction_id, group, rows, digest)

    def _read_clock(self, border: Border) -> int:
        """Return the database's clock on a producer's connection; a failure rolls back, as every one there does."""
        return self._rows.read(border, partial(later.now_ms, self._dialect))

    def _cancelling(self, transaction_id: bytes, group: str) -> Callable[[Border], CancelState]:
        check_arguments([transaction_id], group)
        return lambda border: later.cancel(self._dialect, border, transaction_id, group)

    async def _read_database(self) -> bytes:
        def action(border: Border) -> bytes:
            self._database = identity.look_anew(self._dialect, border).current
            return self._database

        return await self._own.look(action)

    async def _check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None
    ) -> Readings:
        check_arguments(transaction_ids, group)
        check = Check(
            self._dialect,
            group,
            lock_timeout_s=self._lock_timeout_s,
            deadline_s=self._clock.elapsed_s() + self._statement_timeout_s,
            attempts_max=self._attempts_max,
            elapsed_s=self._clock.elapsed_s,
            secret=self._secret,
            databases=databases or {},
        )
        return await self._own.answer(sorted(set(transaction_ids)), check.run)

    async def _peek(self, transaction_ids: Sequence[bytes]) -> Readings:
        check_arguments(transaction_ids, "")
        return await self._own.answer(sorted(set(transaction_ids)), self._peeked)

    async def _settle(self, transaction_ids: Sequence[bytes], connection: Any) -> Readings:
        check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))
        found = await on_idle(connection, lambda border: self._settled_on_idle(border, ids))
        return await self._own.answer(ids, self._settled) if found is None else found

    async def _force(self, transaction_id: bytes, group: str, database: bytes) -> None:
        check_arguments([transaction_id], group)

        def action(border: Border) -> None:
            if database:
                identity.require(identity.look_anew(self._dialect, border), database)
            row = self._dialect.leave_tombstones(border, [transaction_id], group)[transaction_id]
            if row.group != group:
                raise UsageError(f"{id_text(transaction_id)} belongs to group {row.group!r}, not {group!r}")
            if row.state == VIA_TABLE:
                text = f"the messages of {id_text(transaction_id)} are in the message table, whose relay delivers them"
                raise InMessageTableError(text)
            self._dialect.force(border, transaction_id)

        await self._own.transact(action, self._lock_timeout_s)

    def _peeked(self, border: Border, ids: Sequence[bytes]) -> Readings:
        readings: Readings = {}
        horizon = self._dialect.horizon(border)
        for start in range(0, len(ids), ROWS_MAX):
            chunk = ids[start : start + ROWS_MAX]
            rows = self._dialect.read(border, chunk)
            for item in chunk:
                gone = FenceAnswer.PRUNED if item < horizon else FenceAnswer.ABSENT
                readings[item] = reading_of(rows, item, None) if item in rows else FenceReading(gone)
        return readings

    def _settled(self, border: Border, ids: Sequence[bytes]) -> Readings:
        readings: Readings = dict.fromkeys(ids, FenceReading(FenceAnswer.ABSENT))
        for start in range(0, len(ids), ROWS_MAX):
            for item, state in self._dialect.settled(border, ids[start : start + ROWS_MAX]).items():
                readings[item] = reading_of_state(state)
        return readings

    def _settled_on_idle(self, border: Border, ids: Sequence[bytes]) -> Readings:
        try:
            return self._settled(border, ids)
        except Exception as error:  # noqa: BLE001 - any error of the driver is no answer
            return no_answers(ids, reason_of(error, self._secret))
        finally:
            with suppress(Exception):  # otherwise the connection is lost, and its holder gets the error
                border.rollback()
