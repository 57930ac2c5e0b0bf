"""SqlFence: the fence port on SQLAlchemy 2, for PostgreSQL, MariaDB / MySQL and SQLite.

The public face. `fence_row` handles the producer's row, `checks` the check, `prune` the pruning, the dialects the SQL.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from txcore.clock import Clock, SystemClock
from txcore.errors import ConfigError, UsageError, WrongDatabaseError
from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import ID_BYTES, id_text
from txcore.sqlfence import identity, messages
from txcore.sqlfence.asynchronous import AsyncEngine
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.checks import Check, Readings, no_answers, reading_of, reading_of_state
from txcore.sqlfence.connections import border_of, family_of, inner_of, is_open, on_border, on_idle
from txcore.sqlfence.dialects import ROWS_MAX, Dialect
from txcore.sqlfence.fence_row import RowKeeper
from txcore.sqlfence.identity import Adoption, Database
from txcore.sqlfence.mysql import MySQL
from txcore.sqlfence.postgresql import PostgreSQL
from txcore.sqlfence.prune import IsClosed, prune_steps, via_table
from txcore.sqlfence.runners import reason_of, runner_of
from txcore.sqlfence.savepoints import watch_savepoints
from txcore.sqlfence.schema import GROUP_LENGTH_MAX, LOWEST_ID, Tables, tables_named
from txcore.sqlfence.sqlite import SQLite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from txcore.message_table import TableRow

_CHUNK: Final = 500
_CREATE_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FenceStats:
    """The table's contents in numbers, for operators.

    Attributes:
        states: Rows per state (1 committed, 2 tombstone, 3 via the message table, 4 forced).
        oldest: The smallest id; `ids.born_ms` gives its time.
        pruned_below: The horizon.
        groups: The same rows per producer group and state.
    """

    states: Mapping[int, int]
    oldest: bytes | None
    pruned_below: bytes
    groups: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class FenceRow:
    """One stored row, for operators: its state, its group, its time of insert, and the number of checks of it."""

    state: int
    group: str
    created_ms: int
    checks: int


class SqlFence:
    """The fence row in the user's own database. Thread safe; connections of the caller are used unchanged.

    Methods that take a connection, or that use the fence's own engine, return an awaitable when that is an
    asynchronous one.

    A producer's statements bypass SQLAlchemy where possible: its statement events and its log do not show them.

    Not detected: a savepoint opened by a statement of the user's own (not `begin_nested`) before the row is written
    on MariaDB, MySQL and SQLite, and rolled back after `verify`; a statement that commits by itself (DDL, LOCK TABLES)
    after `prepare(connection)` on MariaDB and MySQL, so that row and half stay even if the rest is rolled back;
    settings for durability that are changed after `verify`; commits lost by a failover to an asynchronous standby.

    Args:
        engine: SQLAlchemy Engine or AsyncEngine; its pool provides the fence's own connections.
        table: Name of the table, with a schema before it if needed; `<table>_meta` and others are created beside it.
        lock_timeout_s: Longest wait of a check for an open producer transaction (MariaDB: it never waits).
        statement_timeout_s: Longest time of a producer's insert on PostgreSQL, from which the wait of a prune
            follows, and the longest time for which one check asks ids one by one.
        attempts_max: Most tries of a check's transaction that the database aborts.
        clock: For the time limit of a check.
        sleep: The function with which a prune waits; the default with an AsyncEngine is `asyncio.sleep`.
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
        self.engine = engine
        self.table = table
        self._lock_timeout_s = lock_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self._secret = engine.url.password
        self._dialect = dialect_of(engine, tables_named(table), statement_timeout_s)
        self._rows = RowKeeper(self._dialect, self._secret)
        self._own = runner_of(engine, self._dialect, self._secret, sleep)
        self._database: bytes | None = None
        self._must_await_create = False
        self._watch(engine)

    # The producer's side -------------------------------------------------------------------------------------------

    def begin(self, engine: Any, transaction_id: bytes, group: str) -> Any:
        """Open a connection of *engine* (None for the fence's own), begin, and insert the row as its first statement.

        Returns the Connection, or an awaitable of the AsyncConnection.

        Raises:
            FencedError: the row exists already or lies below the horizon; rolled back and closed.
            NotSentError: the database failed; rolled back and closed.
            FenceMisuseError: the engine is in autocommit mode or its database does not keep commits.
        """
        _check_arguments([transaction_id], group)
        self._require_created()
        engine = self.engine if engine is None else engine
        runner = self._own if engine is self.engine else runner_of(engine, self._dialect, self._secret)
        self._watch(engine)
        return runner.begin(lambda border: self._rows.insert(border, transaction_id, group, owned=True))

    def insert(
        self,
        connection: Any,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        expected: bytes = b"",
    ) -> Awaitable[None] | None:
        """Insert the row in the caller's open top-level transaction and make its commit durable.

        After it returns, the row certainly belongs to that transaction. *rows* go into the message table (state 3).
        *expected* is the database identity in the half, if the half was written before.

        Raises:
            FenceMisuseError: autocommit connection, open savepoint, or a database that does not keep commits.
            WrongDatabaseError: the connection is not to the database that *expected* names.
            FencedError: the row exists already or lies below the horizon.
            NotSentError: the database failed.
            After each of them the caller's transaction has been rolled back.
        """
        _check_arguments([transaction_id], group)
        self._require_created()

        def action(border: Border) -> None:
            try:
                self._rows.insert(border, transaction_id, group, rows, owned=False, expected=expected)
            except WrongDatabaseError:
                self._database = None  # this database, or the fence's own, was replaced
                raise

        return self._on(connection, action)

    def database_of(self, connection: Any) -> bytes:
        """Return the identity of the database into which the row on *connection* went; empty if it has none.

        Never waits: it was read once for each connection to the server, and the insert has compared it.
        """
        return self._remembered(connection)

    def known_database(self) -> bytes | None:
        """Return the identity of the database of the fence's own engine; None when it must be read first.

        Tables of schema version 1 have none, and are read each time: an upgrade adds one.
        """
        return self._database or None

    def read_database(self) -> Any:
        """Read the identity of the database of the fence's own engine (an awaitable with an AsyncEngine).

        Raises:
            BackendUnavailableError: unreachable.
        """

        def action(border: Border) -> bytes:
            self._database = identity.look_anew(self._dialect, border).current
            return self._database

        return self._own.look(action)

    def verify(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Check, just before the half append, that the row belongs to this still open top-level transaction.

        Raises:
            FenceMisuseError: it does not; the transaction was rolled back.
            NotSentError: the database failed; the transaction was rolled back.
        """
        _check_arguments([transaction_id], "")
        return self._on(connection, lambda border: self._rows.verify(border, transaction_id))

    def is_open(self, connection: Any) -> bool:
        """Return whether the connection's transaction is still open; never waits.

        On SQLAlchemy connections only the transaction that carries the row counts, not one begun after it.
        """
        return is_open(connection)

    def withdraw(self, connection: Any, transaction_id: bytes) -> Awaitable[None] | None:
        """Delete the row again inside its own open transaction (a block that published nothing)."""
        return self._on(connection, lambda border: self._rows.change(border, transaction_id, self._dialect.withdraw))

    def enqueue(
        self, connection: Any, transaction_id: bytes, group: str, rows: Sequence[TableRow]
    ) -> Awaitable[None] | None:
        """Insert messages into the message table, and set the row to state 3, inside its own open transaction.

        Raises:
            FenceMisuseError: the row is not in this transaction; it was rolled back.
            NotSentError: the database failed; rolled back.
        """

        def action(border: Border, of: bytes) -> None:
            messages.enqueue(self._dialect, border, of, group, rows)

        return self._on(connection, lambda border: self._rows.change(border, transaction_id, action))

    def commit(self, connection: Any) -> Awaitable[None] | None:
        """Commit and close a connection that `begin` opened.

        Raises:
            NotSentError: the database reports that it has undone the transaction (serialization failure, deadlock).
            CommitUnknownError: the database answered with another error, or not at all; it may have committed.
            FenceMisuseError: the application opened the connection and must commit it.
        """
        return self._on(connection, self._rows.commit)

    def rollback(self, connection: Any) -> Awaitable[None] | None:
        """Roll the transaction back in any case, and close the connection if `begin` opened it.

        Idempotent; a failure of the database raises nothing: a connection that cannot roll back is discarded, and the
        database rolls back by itself.
        """
        return self._on(connection, self._rows.roll_back)

    # The checker's and the operator's side ---------------------------------------------------------------------------

    def create(self) -> Awaitable[None] | None:
        """Create the tables that are missing; idempotent, safe when several processes do it at once.

        Tables of an older schema version are upgraded in place, and keep their rows. With an AsyncEngine this must be
        awaited; before that, the fence refuses to work.

        Raises:
            UsageError: the tables were made by a newer txcore.
            BackendUnavailableError: the database cannot be reached or refused, or tables of an older version could not
                be upgraded in 3 s, because a transaction is open; they still work unchanged.
        """

        def action(border: Border) -> None:
            self._dialect.create(border)
            for statement in messages.table_statements(self._dialect.family, self._dialect.tables):
                border.change(statement, {})
            self._dialect.horizon(border)

        created = self._own.transact(action, _CREATE_WAIT_S)
        if not self.is_async:
            return None
        self._must_await_create = True
        return self._created(created)

    async def _created(self, creation: Awaitable[None]) -> None:
        self._must_await_create = False
        await creation

    @property
    def is_async(self) -> bool:
        """Whether the fence's own engine is an asynchronous one, so that its methods return awaitables."""
        return isinstance(self.engine, AsyncEngine)

    def identity(self) -> Any:
        """Return the `Database` of the fence's own engine: its identity, and former ones (or an awaitable).

        Raises:
            BackendUnavailableError: unreachable.
        """
        return self._own.look(lambda border: identity.look_anew(self._dialect, border))

    def adopt(self, reason: str, by: str, former: bytes = b"") -> Any:
        """Make the fence's database decide for the one that it replaces, and return its `Database` (or an awaitable).

        For a deliberate move whose former database is no longer used: dump and restore, pg_upgrade (the database
        detects by itself that it is a copy), or new tables that were filled by replication (name *former*).

        Args:
            reason: The reason; stored with the time and *by*, the name of the caller.
            former: The identity of the former database, if this one was not copied from it.

        Raises:
            UsageError: no reason, nothing to adopt, a role that cannot find out, or tables of schema version 1.
            BackendUnavailableError: unreachable.
        """
        if not reason.strip() or not by.strip():
            raise UsageError("adopting a database needs a reason and the operator's name")
        if former and len(former) != identity.IDENTITY_BYTES:
            raise UsageError(f"an identity has {identity.IDENTITY_BYTES} bytes, not {len(former)}")
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")
        adoption = Adoption(former.hex(), at, by, reason)

        def action(border: Border) -> Database:
            database = identity.adopt(self._dialect, border, adoption)
            self._database = database.current
            return database

        return self._own.transact(action, self._lock_timeout_s)

    def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading] | Awaitable[Mapping[bytes, FenceReading]]:
        """Write tombstones on a connection of its own and return the winner of each id.

        A failure of the database never raises: an id without a result is NO_ANSWER. A COMMIT or ROLLBACK is
        durable and final. An id of another group is NO_ANSWER with that reason. An id below the prune horizon
        without a row is PRUNED, and no tombstone is written for it. Nor is one for an id whose half, by *databases*,
        carries the identity of another database: that is NO_ANSWER, `is_foreign`.
        """
        _check_arguments(transaction_ids, group)
        self._require_created()
        ids = sorted(set(transaction_ids))
        check = Check(
            self._dialect,
            group,
            lock_timeout_s=self._lock_timeout_s,
            time_max_s=self._statement_timeout_s,
            attempts_max=self._attempts_max,
            elapsed_s=self._clock.elapsed_s,
            secret=self._secret,
            databases=databases,
        )
        return self._own.answer(ids, check.run)

    def peek(self, transaction_ids: Sequence[bytes]) -> Any:
        """Read states without writing; ABSENT for no row. For operators and audits, never for decisions.

        Returns a mapping like `check` (an awaitable with an AsyncEngine); a failure of the database never raises.
        """
        _check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))
        return self._own.answer(ids, self._peek)

    def settled(
        self, transaction_ids: Sequence[bytes], connection: Any = None
    ) -> Mapping[bytes, FenceReading] | Awaitable[Mapping[bytes, FenceReading]]:
        """Read the rows that are certainly committed and durable; ABSENT for every other id. See `Fence.settled`.

        Does not replace a tombstone: an ABSENT transaction may be open, and commit. On MariaDB and MySQL it writes to
        the rows that it finds, because only a later commit certainly puts them on disk.
        """
        _check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))
        found = on_idle(connection, lambda border: self._settled_on_idle(border, ids))
        return self._own.answer(ids, self._settled) if found is None else found

    def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> Awaitable[None] | None:
        """Set state 4, inserting the row if there is none; *database* is the identity that the half carries.

        Raises:
            WrongDatabaseError: *database* is another database; nothing was written.
            BackendUnavailableError: unreachable, or an open producer transaction holds the row.
            UsageError: the row belongs to another group.
        """
        _check_arguments([transaction_id], group)

        def action(border: Border) -> None:
            if database:
                identity.require(identity.look_anew(self._dialect, border), database)
            row = self._dialect.read(border, [transaction_id]).get(transaction_id)
            if row is not None and row.group != group:
                raise UsageError(f"{id_text(transaction_id)} belongs to group {row.group!r}, not {group!r}")
            self._dialect.force(border, transaction_id, group)

        return self._own.transact(action, self._lock_timeout_s)

    def rows(self, transaction_ids: Sequence[bytes]) -> Any:
        """Return the FenceRow of each id that has one, without writing (an awaitable with an AsyncEngine).

        Raises:
            BackendUnavailableError: unreachable.
        """
        _check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))

        def action(border: Border) -> dict[bytes, FenceRow]:
            found: dict[bytes, FenceRow] = {}
            for start in range(0, len(ids), ROWS_MAX):
                rows = self._dialect.read_whole(border, ids[start : start + ROWS_MAX])
                found |= {each: FenceRow(*row) for each, row in rows.items()}
            return found

        return self._own.look(action)

    def ids_below(self, below: bytes, after: bytes = LOWEST_ID, count: int = _CHUNK) -> Any:
        """Return up to *count* ids of rows between *after* and *below*, both excluded, ascending.

        Reads only (an awaitable with an AsyncEngine). Raises BackendUnavailableError when unreachable.
        """
        _check_arguments([below, after], "")
        return self._own.look(lambda border: self._dialect.page(border, after, below, count))

    def sent(self, transaction_ids: Sequence[bytes]) -> Any:
        """Return the ids of state 3 whose messages are all sent, without writing (an awaitable with an AsyncEngine).

        Raises BackendUnavailableError when unreachable.
        """
        return self._own.look(lambda border: via_table(self._dialect, transaction_ids, border)[0])

    def stats(self) -> Any:
        """Return FenceStats (an awaitable with an AsyncEngine). Counts every row.

        Raises:
            BackendUnavailableError: unreachable.
        """

        def action(border: Border) -> FenceStats:
            dialect = self._dialect
            groups = dialect.count_groups(border)
            states: dict[int, int] = {}
            for counts in groups.values():
                for state, count in counts.items():
                    states[state] = states.get(state, 0) + count
            return FenceStats(states, dialect.oldest(border), dialect.horizon(border), groups)

        return self._own.transact(action, self._lock_timeout_s)

    def prune(self, below: bytes, is_closed: IsClosed, *, wait_s: float | None = None, chunk: int = _CHUNK) -> Any:
        """Raise the horizon to *below*, wait, then delete the ids below it that *is_closed* names.

        Rows of state 3 stay while the message table holds a message of them, named or not. Most of them have no half,
        and so no final op: name the ids that `sent` names, except those whose half is pending or parked. A half whose
        row is gone is parked as PRUNED, although its messages are sent.

        Returns a PruneResult (an awaitable with an AsyncEngine). Can be interrupted and run again.

        Args:
            below: First id that is not pruned; `ids.first_id_at` makes one from a time.
            is_closed: Given up to *chunk* ids, returns those whose final op is in force, or that have no half, and that
                are neither pending nor parked. Called after the wait. Its exception ends the prune.
            wait_s: Seconds, more than any producer's insert may take; default one more than `statement_timeout_s`.
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
        return self._own.drive(prune_steps(self._dialect, below, is_closed, wait_s=wait_s, chunk=chunk))

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

    def _on(self, connection: Any, action: Callable[[Border], None]) -> Awaitable[None] | None:
        return on_border(connection, action, self.engine)

    def _remembered(self, connection: Any) -> bytes:
        return identity.recall(self._dialect, border_of(inner_of(connection), self.engine))

    def _require_created(self) -> None:
        if self._must_await_create:
            raise UsageError(
                "SqlFence.create() of an asynchronous engine was called and not awaited, so that it made no tables: "
                "`await fence.create()`"
            )

    def _watch(self, engine: Any) -> None:
        if self._dialect.family != POSTGRESQL:
            watch_savepoints(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)


def dialect_of(engine: Engine | AsyncEngine, tables: Tables, statement_timeout_s: float = 10.0) -> Dialect:
    """Return the statements for the engine's family of databases.

    Raises:
        FenceMisuseError, ConfigError: a database, or a table name, that the fence does not support.
    """
    makers: dict[str, Callable[[], Dialect]] = {
        POSTGRESQL: lambda: PostgreSQL(tables, statement_timeout_s),
        MYSQL: lambda: MySQL(tables),
        SQLITE: lambda: SQLite(tables),
    }
    return makers[family_of(engine.dialect.name)]()


def _check_arguments(transaction_ids: Sequence[bytes], group: str) -> None:
    for transaction_id in transaction_ids:
        if not isinstance(transaction_id, bytes) or len(transaction_id) != ID_BYTES:
            raise UsageError(f"a transaction id has {ID_BYTES} bytes, not {transaction_id!r}")
    if len(group) > GROUP_LENGTH_MAX:
        raise UsageError(f"a producer group has at most {GROUP_LENGTH_MAX} characters, not {len(group)}")
