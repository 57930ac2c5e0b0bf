"""SqlFence: the fence port on SQLAlchemy 2, for PostgreSQL, MariaDB / MySQL and SQLite.

This module knows when a row is written, verified and given up, and who rolls back. The SQL is the dialects'.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from txcore.clock import Clock, SystemClock
from txcore.errors import (
    BackendUnavailableError,
    CommitUnknownError,
    ConfigError,
    FencedError,
    FenceMisuseError,
    NotSentError,
    TxcoreError,
    UsageError,
)
from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import ID_BYTES, id_text
from txcore.sqlfence import prune as pruning
from txcore.sqlfence.checks import Check, no_answers, reading_of
from txcore.sqlfence.connections import MYSQL, POSTGRESQL, SQLITE, Border, border_of, is_open, on_border
from txcore.sqlfence.dialects import ROWS_MAX, Dialect, RowRefused
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.mysql import MySQL
from txcore.sqlfence.postgresql import SAVEPOINT_TEXT, PostgreSQL
from txcore.sqlfence.schema import GROUP_LENGTH_MAX, tables_named
from txcore.sqlfence.sqlite import SQLite

T = TypeVar("T")
Readings = dict[bytes, FenceReading]

_CHUNK: Final = 500
_AUTOCOMMIT_TEXT: Final = (
    "the connection is in autocommit mode: the fence row would be committed before the local transaction; "
    "begin a transaction first"
)


@dataclass(frozen=True, slots=True)
class FenceStats:
    """What the table holds, for operators.

    Attributes:
        states: Rows per state (1 committed, 2 tombstone, 3 via the message table, 4 forced).
        oldest: The smallest id; `ids.born_ms` gives its time.
        pruned_below: The horizon.
    """

    states: Mapping[int, int]
    oldest: bytes | None
    pruned_below: bytes


class SqlFence:
    """The fence row in the user's own database. Thread safe; connections given to it are used as they are.

    Methods that take a connection, or that use the fence's own engine, return an awaitable when that is an
    asynchronous one.

    Not detected: a savepoint opened by a statement of the user's own (not `begin_nested`) before the row is written
    on MariaDB, MySQL and SQLite, and rolled back after `verify`; settings for durability that are changed after
    `verify`; commits lost by a failover to a standby that is not synchronous.

    Args:
        engine: SQLAlchemy Engine or AsyncEngine; its pool gives the fence's own connections.
        table: Name of the table, with a schema before it if need be; `<table>_meta` is the second one.
        lock_timeout_s: How long a check waits for an open producer transaction (MariaDB: it never waits).
        statement_timeout_s: Longest time a producer's insert may take on PostgreSQL, from which the wait of a
            prune follows, and the longest time one check asks ids one by one.
        attempts_max: Tries of a check's transaction that the database gives up.
        clock: For the time limit of a check.
        sleep: How a prune waits; `asyncio.sleep` is used with an AsyncEngine when it is left alone.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        table: str = "txcore_tx",
        lock_timeout_s: float = 0.3,
        statement_timeout_s: float = 10.0,
        attempts_max: int = 3,
        clock: Clock | None = None,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"the fence takes a SQLAlchemy Engine or AsyncEngine, not {engine!r}", key="engine")
        for key, value in (("lock_timeout_s", lock_timeout_s), ("statement_timeout_s", statement_timeout_s)):
            if not 0 < value <= 3_600:
                raise ConfigError(f"{key}={value!r} must be more than 0 and at most 3600 seconds", key=key)
        if attempts_max < 1:
            raise ConfigError(f"attempts_max={attempts_max!r} must be at least 1", key="attempts_max")
        if isinstance(engine.pool, StaticPool | SingletonThreadPool):
            raise ConfigError(
                "the fence needs connections of its own, but this engine's pool shares one (in-memory SQLite?): "
                "use a database file",
                key="engine",
            )
        tables = tables_named(table)
        self.engine = engine
        self.table = table
        self._lock_timeout_s = lock_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self._sleep = sleep
        makers: dict[str, Callable[[], Dialect]] = {
            POSTGRESQL: lambda: PostgreSQL(tables, statement_timeout_s),
            MYSQL: lambda: MySQL(tables),
            SQLITE: lambda: SQLite(tables),
        }
        family = "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name
        if family not in makers:
            raise ConfigError(f"the fence knows postgresql, mysql, mariadb and sqlite, not {family!r}", key="engine")
        self._dialect = makers[family]()
        self._secret = engine.url.password
        self._durable: weakref.WeakSet[Any] = weakref.WeakSet()

    # The producer's side -------------------------------------------------------------------------------------------

    def begin(self, engine: Any, transaction_id: bytes, group: str) -> Any:
        """Open a connection of *engine* (None for the fence's own), begin, and insert the row as its first statement.

        Returns the Connection, or an awaitable of the AsyncConnection.

        Raises:
            FencedError: the row is there already or lies below the horizon; rolled back and closed.
            NotSentError: the database failed; rolled back and closed.
            FenceMisuseError: the engine is in autocommit mode or its database does not keep commits.
        """
        _check_arguments([transaction_id], group)
        engine = self.engine if engine is None else engine
        if isinstance(engine, AsyncEngine):
            return self._begin_async(engine, transaction_id, group)
        if not isinstance(engine, Engine):
            raise FenceMisuseError(f"begin takes a SQLAlchemy Engine or AsyncEngine, not {type(engine).__name__}")
        connection = self._opened(engine.connect)
        try:
            self._insert(border_of(connection), transaction_id, group, owned=True)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _begin_async(self, engine: AsyncEngine, transaction_id: bytes, group: str) -> Any:
        try:
            connection = await engine.connect()
        except Exception as error:
            raise self._not_opened(error) from error
        try:
            await connection.run_sync(lambda inner: self._insert(border_of(inner), transaction_id, group, owned=True))
        except BaseException:
            await connection.close()
            raise
        return connection

    def insert(self, connection: Any, transaction_id: bytes, group: str) -> Awaitable[None] | None:
        """Insert the row in the caller's open top-level transaction and make its commit durable.

        Raises:
            FenceMisuseError: autocommit connection, open savepoint, or a database that does not keep commits.
            FencedError: the row is there already or lies below the horizon.
            NotSentError: the database failed.
            After each of them the caller's transaction has been rolled back.
        """
        _check_arguments([transaction_id], group)
        return self._on(connection, lambda border: self._insert(border, transaction_id, group, owned=False))

    def verify(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Check, just before the half append, that the row belongs to this still open top-level transaction.

        Raises:
            FenceMisuseError: it does not; the transaction was rolled back.
            NotSentError: the database failed; the transaction was rolled back.
        """
        _check_arguments([transaction_id], "")
        return self._on(connection, lambda border: self._verify(border, transaction_id))

    def is_open(self, connection: Any) -> bool:
        """Return whether the connection's transaction is still open; never waits.

        On SQLAlchemy connections only the transaction that carries the row counts, not one begun after it.
        """
        return is_open(connection)

    def withdraw(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Delete the row again inside its own open transaction (a block that published nothing)."""
        return self._on(connection, lambda border: self._own_row(border, transaction_id, self._dialect.withdraw))

    def mark_via_table(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Turn the row to state 3 inside its own open transaction: the message travels by the message table.

        Raises:
            FenceMisuseError: the row is not in this transaction; it was rolled back.
        """
        return self._on(connection, lambda border: self._own_row(border, transaction_id, self._dialect.mark_via_table))

    def commit(self, connection: Any) -> Awaitable[None] | None:
        """Commit and close a connection that `begin` opened.

        Raises:
            CommitUnknownError: the database answered with an error, or not at all; it may have committed.
            FenceMisuseError: the connection was opened by somebody else, who commits it.
        """
        return self._on(connection, self._commit)

    def rollback(self, connection: Any) -> Awaitable[None] | None:
        """Roll the transaction back, whoever opened it, and close the connection if `begin` opened it.

        Idempotent, raises nothing for the database's sake: a connection that cannot roll back is thrown away, and
        the database rolls back by itself.
        """
        return self._on(connection, self._rollback)

    def _insert(self, border: Border, transaction_id: bytes, group: str, *, owned: bool) -> None:
        dialect = self._dialect_of(border)
        try:
            if border.commits_each_statement():
                raise FenceMisuseError(_AUTOCOMMIT_TEXT)
            if border.has_known_savepoint():
                raise FenceMisuseError(SAVEPOINT_TEXT)
            dialect.begin(border)
            self._require_durable(dialect, border)
            dialect.insert(border, transaction_id, group)
            border.mark(transaction_id, owned=owned)
        except RowRefused as refusal:
            self._roll_back_quietly(border)
            raise FencedError(
                f"transaction {id_text(transaction_id)} was refused by the fence: {refusal}; rolled back, nothing sent",
                transaction_id=transaction_id,
            ) from None
        except TxcoreError:
            self._roll_back_quietly(border)
            raise
        except Exception as error:
            self._roll_back_quietly(border)
            raise self._not_inserted(error, transaction_id) from error

    def _not_inserted(self, error: Exception, transaction_id: bytes) -> NotSentError:
        failure = failure_of(error, self._secret)
        name = id_text(transaction_id)
        if failure.cause is Cause.DUPLICATE:
            return FencedError(
                f"transaction {name} was decided by a check, or prepared before: its fence row is there already; "
                "rolled back, nothing sent: try again with a new transaction",
                transaction_id=transaction_id,
            )
        return NotSentError(
            f"the fence row of transaction {name} could not be written, {failure}; rolled back, nothing sent",
            transaction_id=transaction_id,
        )

    def _require_durable(self, dialect: Dialect, border: Border) -> None:
        if dialect.family == SQLITE:  # a setting of each connection
            dialect.require_durable(border)
        elif border.home not in self._durable:  # a setting of the server, asked for once
            dialect.require_durable(border)
            self._durable.add(border.home)

    def _verify(self, border: Border, transaction_id: bytes) -> None:
        mark = border.marked()
        try:
            if border.commits_each_statement():
                problem = _AUTOCOMMIT_TEXT
            elif border.has_known_savepoint():
                problem = SAVEPOINT_TEXT
            else:
                problem = self._dialect_of(border).verify(border, transaction_id)
        except TxcoreError:
            self._give_up(border, owned=mark is not None and mark.owned)
            raise
        except Exception as error:
            self._give_up(border, owned=mark is not None and mark.owned)
            raise NotSentError(
                f"the fence row of transaction {id_text(transaction_id)} could not be verified, "
                f"{failure_of(error, self._secret)}; rolled back, nothing sent",
                transaction_id=transaction_id,
            ) from error
        if problem:
            self._give_up(border, owned=mark is not None and mark.owned)
            raise FenceMisuseError(f"transaction {id_text(transaction_id)}: {problem}; rolled back, nothing sent")

    def _own_row(self, border: Border, transaction_id: bytes, change: Callable[[Border, bytes], None]) -> None:
        try:
            change(border, transaction_id)
        except TxcoreError:
            self._rollback(border)
            raise
        except Exception as error:
            self._rollback(border)
            raise NotSentError(
                f"the fence row of transaction {id_text(transaction_id)} could not be changed, "
                f"{failure_of(error, self._secret)}; rolled back, nothing sent",
                transaction_id=transaction_id,
            ) from error

    def _commit(self, border: Border) -> None:
        mark = border.marked()
        if mark is None or not mark.owned:
            raise FenceMisuseError("the fence commits only connections that it opened; commit this one yourself")
        try:
            border.commit()
        except Exception as error:
            raise CommitUnknownError(
                f"COMMIT of transaction {id_text(mark.transaction_id)} failed and may have applied, "
                f"{failure_of(error, self._secret)}; the check will find out",
                transaction_id=mark.transaction_id,
            ) from error
        finally:
            border.close()

    def _rollback(self, border: Border) -> None:
        mark = border.marked()
        self._give_up(border, owned=mark is not None and mark.owned)

    def _give_up(self, border: Border, *, owned: bool) -> None:
        self._roll_back_quietly(border)
        if owned:
            border.close()

    def _roll_back_quietly(self, border: Border) -> None:
        try:
            border.rollback()
        except Exception:  # noqa: BLE001 - a connection that cannot roll back is lost, and with it the transaction
            return

    # The checker's and the operator's side ---------------------------------------------------------------------------

    def create(self) -> Awaitable[None] | None:
        """Create the two tables if they are missing; idempotent, safe when several processes do it at once.

        Raises:
            UsageError: the tables were made by a newer txcore.
            BackendUnavailableError: the database cannot be reached or refused.
        """

        def action(border: Border) -> None:
            self._dialect.create(border)
            self._dialect.horizon(border)

        return self._transact(action, max(self._lock_timeout_s, 10.0))

    def check(
        self, transaction_ids: Sequence[bytes], group: str
    ) -> Mapping[bytes, FenceReading] | Awaitable[Mapping[bytes, FenceReading]]:
        """Write tombstones on a connection of its own and return the winner of each id.

        Never raises for the database's sake: what could not be found out is NO_ANSWER. A COMMIT or ROLLBACK is
        durable and final. An id of another group is NO_ANSWER with that reason. An id below the prune horizon
        without a row is PRUNED, and no tombstone is written for it.
        """
        _check_arguments(transaction_ids, group)
        ids = sorted(set(transaction_ids))
        check = Check(
            self._dialect,
            group,
            lock_timeout_s=self._lock_timeout_s,
            time_max_s=self._statement_timeout_s,
            attempts_max=self._attempts_max,
            elapsed_s=self._clock.elapsed_s,
            secret=self._secret,
        )
        if isinstance(self.engine, AsyncEngine):
            return self._answer_async(ids, check.run)
        return self._answer(ids, check.run)

    def peek(self, transaction_ids: Sequence[bytes]) -> Any:
        """Read states without writing; ABSENT for no row. For operators and audits, never for decisions.

        Returns a mapping as `check` does (an awaitable of one with an AsyncEngine); raises as little.
        """
        _check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))
        if isinstance(self.engine, AsyncEngine):
            return self._answer_async(ids, self._peek)
        return self._answer(ids, self._peek)

    def force(self, transaction_id: bytes, group: str) -> Awaitable[None] | None:
        """Set state 4, inserting the row if there is none.

        Raises:
            BackendUnavailableError: unreachable, or an open producer transaction holds the row.
            UsageError: the row belongs to another group.
        """
        _check_arguments([transaction_id], group)

        def action(border: Border) -> None:
            row = self._dialect.read(border, [transaction_id]).get(transaction_id)
            if row is not None and row.group != group:
                raise UsageError(f"{id_text(transaction_id)} belongs to group {row.group!r}, not {group!r}")
            self._dialect.force(border, transaction_id, group)

        return self._transact(action, self._lock_timeout_s)

    def stats(self) -> Any:
        """Return FenceStats (an awaitable with an AsyncEngine). Counts every row.

        Raises:
            BackendUnavailableError: unreachable.
        """

        def action(border: Border) -> FenceStats:
            dialect = self._dialect
            return FenceStats(dialect.count_states(border), dialect.oldest(border), dialect.horizon(border))

        return self._transact(action, self._lock_timeout_s)

    def prune(
        self, below: bytes, is_closed: pruning.IsClosed, *, wait_s: float | None = None, chunk: int = _CHUNK
    ) -> Any:
        """Raise the horizon to *below*, wait, then delete the ids below it that *is_closed* names.

        Returns a PruneResult (an awaitable with an AsyncEngine). Can be interrupted and run again.

        Args:
            below: First id that is not pruned; `ids.first_id_at` makes one from a time.
            is_closed: Given up to *chunk* ids, returns those whose final op is in force (state 3 without a half:
                whose row was sent) and that are neither pending, parked nor in the message table. What it raises
                ends the prune.
            wait_s: Longer than any producer's insert may take; default one second more than `statement_timeout_s`.
            chunk: Most rows of one delete.

        Raises:
            ConfigError: *wait_s* is not longer than `statement_timeout_s`, or *chunk* is out of range.
            BackendUnavailableError: the database failed, or kept a lock for too long.
        """
        _check_arguments([below], "")
        wait_s = self._statement_timeout_s + 1 if wait_s is None else wait_s
        if wait_s <= self._statement_timeout_s:
            raise ConfigError(
                f"wait_s={wait_s} must be longer than statement_timeout_s={self._statement_timeout_s}", key="wait_s"
            )
        if not 1 <= chunk <= ROWS_MAX:
            raise ConfigError(f"chunk={chunk} must be between 1 and {ROWS_MAX}", key="chunk")
        steps = pruning.prune_steps(self._dialect, below, is_closed, wait_s=wait_s, chunk=chunk)
        if isinstance(self.engine, AsyncEngine):
            return self._drive_async(steps, self.engine)
        return self._drive(steps, self.engine)

    def _peek(self, border: Border, ids: Sequence[bytes]) -> Readings:
        readings: Readings = {}
        horizon = self._dialect.horizon(border)
        for start in range(0, len(ids), ROWS_MAX):
            chunk = ids[start : start + ROWS_MAX]
            rows = self._dialect.read(border, chunk)
            for item in chunk:
                gone = FenceAnswer.PRUNED if item < horizon else FenceAnswer.ABSENT
                readings[item] = reading_of(rows, item, None) if item in rows else FenceReading(gone)
        return readings

    # Connections of its own --------------------------------------------------------------------------------------------

    def _answer(self, ids: list[bytes], action: Callable[[Border, Sequence[bytes]], Readings]) -> Readings:
        assert isinstance(self.engine, Engine)
        readings: Readings = {}
        for _ in range(2):  # a pooled connection may be stale; the pool is fresh after the first failure
            try:
                with self.engine.connect() as connection:
                    readings = action(self._own(connection), ids)
            except Exception as error:  # noqa: BLE001 - whatever the driver or a hook raises is no answer
                readings = no_answers(ids, self._reason(error))
            if not _all_lost(readings):
                break
        return readings

    async def _answer_async(self, ids: list[bytes], action: Callable[[Border, Sequence[bytes]], Readings]) -> Readings:
        assert isinstance(self.engine, AsyncEngine)
        readings: Readings = {}
        for _ in range(2):
            try:
                async with self.engine.connect() as connection:
                    readings = await connection.run_sync(lambda inner: action(self._own(inner), ids))
            except Exception as error:  # noqa: BLE001 - as above
                readings = no_answers(ids, self._reason(error))
            if not _all_lost(readings):
                break
        return readings

    def _own(self, connection: Connection) -> Border:
        if self._dialect.check_isolation is not None:
            connection = connection.execution_options(isolation_level=self._dialect.check_isolation)
        return border_of(connection)

    def _reason(self, error: Exception) -> str:
        return str(error) if isinstance(error, TxcoreError) else str(failure_of(error, self._secret))

    def _transact(self, action: Callable[[Border], T], lock_timeout_s: float) -> Any:
        if isinstance(self.engine, AsyncEngine):
            return self._transact_async(self.engine, action, lock_timeout_s)
        return _settled(self._transact_sync(self.engine, action, lock_timeout_s))

    def _transact_sync(self, engine: Engine, action: Callable[[Border], T], lock_timeout_s: float) -> Any:
        with self._opened(engine.connect) as connection:
            return pruning.transact(self._dialect, self._own(connection), action, self._secret, lock_timeout_s)

    async def _transact_async(self, engine: AsyncEngine, action: Callable[[Border], T], lock_timeout_s: float) -> Any:
        return _settled(await self._contend_async(engine, action, lock_timeout_s))

    async def _contend_async(self, engine: AsyncEngine, action: Callable[[Border], T], lock_timeout_s: float) -> Any:
        try:
            connection = await engine.connect()
        except Exception as error:
            raise BackendUnavailableError(f"the fence's database: {failure_of(error, self._secret)}") from error
        async with connection:
            return await connection.run_sync(
                lambda inner: pruning.transact(self._dialect, self._own(inner), action, self._secret, lock_timeout_s)
            )

    def _drive(self, steps: pruning.PruneSteps, engine: Engine) -> pruning.PruneResult:
        sleep = self._sleep or time.sleep
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: pruning.PruneResult = stop.value
                return result
            if isinstance(step, pruning.Wait):
                outcome = sleep(step.seconds)
            else:
                outcome = self._transact_sync(engine, step.action, pruning.LOCK_TIMEOUT_S)

    async def _drive_async(self, steps: pruning.PruneSteps, engine: AsyncEngine) -> pruning.PruneResult:
        sleep = self._sleep or asyncio.sleep
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: pruning.PruneResult = stop.value
                return result
            if isinstance(step, pruning.Wait):
                outcome = await sleep(step.seconds)
            else:
                outcome = await self._contend_async(engine, step.action, pruning.LOCK_TIMEOUT_S)

    def _opened(self, connect: Callable[[], Connection]) -> Connection:
        try:
            return connect()
        except Exception as error:
            raise self._not_opened(error) from error

    def _not_opened(self, error: Exception) -> BackendUnavailableError:
        return BackendUnavailableError(f"the fence's database: {failure_of(error, self._secret)}")

    def _on(self, connection: Any, action: Callable[[Border], T]) -> Any:
        return on_border(connection, action, self.engine)

    def _dialect_of(self, border: Border) -> Dialect:
        if border.family != self._dialect.family:
            raise FenceMisuseError(
                f"the connection is of {border.family}, the fence's table of {self._dialect.family}: the row must be "
                "in the database that the local transaction changes"
            )
        return self._dialect


def _check_arguments(transaction_ids: Sequence[bytes], group: str) -> None:
    for transaction_id in transaction_ids:
        if not isinstance(transaction_id, bytes) or len(transaction_id) != ID_BYTES:
            raise UsageError(f"a transaction id has {ID_BYTES} bytes, not {transaction_id!r}")
    if len(group) > GROUP_LENGTH_MAX:
        raise UsageError(f"a producer group has at most {GROUP_LENGTH_MAX} characters, not {len(group)}")


def _all_lost(readings: Readings) -> bool:
    lost = Cause.LOST.value
    return bool(readings) and all(
        reading.answer is FenceAnswer.NO_ANSWER and reading.reason.startswith(lost) for reading in readings.values()
    )


def _settled(outcome: Any) -> Any:
    if isinstance(outcome, pruning.Contended):
        raise BackendUnavailableError(f"the fence's database: {outcome.text}")
    return outcome
