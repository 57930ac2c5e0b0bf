"""SqlFence: the fence port on SQLAlchemy 2, for PostgreSQL, MariaDB / MySQL and SQLite.

The side of producers and checkers. `fence_table` has that of operators, `fence_row` handles the producer's row,
`checks` the check, the dialects the SQL.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from txcore.errors import InMessageTableError, UsageError, WrongDatabaseError
from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import id_text
from txcore.sqlfence import identity, messages
from txcore.sqlfence.border import Border
from txcore.sqlfence.checks import Check, Readings, no_answers, reading_of, reading_of_state
from txcore.sqlfence.connections import border_of, inner_of, is_open, on_border, on_idle
from txcore.sqlfence.dialects import ROWS_MAX
from txcore.sqlfence.fence_row import check_arguments
from txcore.sqlfence.fence_table import FenceTable
from txcore.sqlfence.runners import Runner, reason_of
from txcore.sqlfence.schema import VIA_TABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from txcore.message_table import TableRow


class SqlFence(FenceTable):
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

    # The producer's side -------------------------------------------------------------------------------------------

    def begin(self, engine: Any, transaction_id: bytes, group: str) -> Any:
        """Open a connection of *engine* (None for the fence's own), begin, and insert the row as its first statement.

        Returns the Connection, or an awaitable of the AsyncConnection.

        Raises:
            FencedError: the row exists already or lies below the horizon; rolled back and closed.
            NotSentError: the database failed; rolled back and closed.
            FenceMisuseError: the engine is in autocommit mode or its database does not keep commits.
        """
        check_arguments([transaction_id], group)
        self._require_created()
        runner = self._own
        if engine is not None and engine is not self.engine:
            runner = Runner(engine, self._dialect, self._secret)
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
        check_arguments([transaction_id], group)
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
        return identity.recall(self._dialect, border_of(inner_of(connection), self.engine))

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
        check_arguments([transaction_id], "")
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

    # The checker's side -----------------------------------------------------------------------------------------------

    def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading] | Awaitable[Mapping[bytes, FenceReading]]:
        """Write tombstones on a connection of its own and return the winner of each id.

        A failure of the database never raises: an id without a result is NO_ANSWER. A COMMIT or ROLLBACK is
        durable and final. An id of another group is NO_ANSWER with that reason. An id below the prune horizon
        without a row is PRUNED, and no tombstone is written for it. Nor is one for an id whose half, by *databases*,
        carries the identity of another database: that is NO_ANSWER, `is_foreign`.
        """
        check_arguments(transaction_ids, group)
        self._require_created()
        ids = sorted(set(transaction_ids))
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
        return self._own.answer(ids, check.run)

    def peek(self, transaction_ids: Sequence[bytes]) -> Any:
        """Read states without writing; ABSENT for no row. For operators and audits, never for decisions.

        Returns a mapping like `check` (an awaitable with an AsyncEngine); a failure of the database never raises.
        """
        check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))
        return self._own.answer(ids, self._peek)

    def settled(
        self, transaction_ids: Sequence[bytes], connection: Any = None
    ) -> Mapping[bytes, FenceReading] | Awaitable[Mapping[bytes, FenceReading]]:
        """Read the rows that are certainly committed and durable; ABSENT for every other id. See `Fence.settled`.

        Does not replace a tombstone: an ABSENT transaction may be open, and commit. On MariaDB and MySQL it writes to
        the rows that it finds, because only a later commit certainly puts them on disk.
        """
        check_arguments(transaction_ids, "")
        ids = sorted(set(transaction_ids))
        found = on_idle(connection, lambda border: self._settled_on_idle(border, ids))
        return self._own.answer(ids, self._settled) if found is None else found

    def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> Awaitable[None] | None:
        """Set state 4, inserting the row if there is none; *database* is the identity that the half carries.

        Raises:
            WrongDatabaseError: *database* is another database; nothing was written.
            InMessageTableError: its messages are in the message table; nothing was written.
            BackendUnavailableError: unreachable, or an open producer transaction holds the row.
            UsageError: the row belongs to another group.
        """
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

        return self._own.transact(action, self._lock_timeout_s)

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

    def _require_created(self) -> None:
        if self._must_await_create:
            raise UsageError(
                "SqlFence.create() of an asynchronous engine was called and not awaited, so that it made no tables: "
                "`await fence.create()`"
            )

    def _on(self, connection: Any, action: Callable[[Border], None]) -> Awaitable[None] | None:
        return on_border(connection, action, self.engine)
