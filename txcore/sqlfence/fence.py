"""SqlFence: the fence port on SQLAlchemy 2, for PostgreSQL, MariaDB / MySQL and SQLite, for blocking programs.

It holds no logic: `fence_core` and `fence_table` have it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from sqlalchemy import Connection, Engine

from txcore.sqlfence.connections import border_of
from txcore.sqlfence.fence_core import FenceCore
from txcore.sqlfence.fence_table import CHUNK
from txcore.sqlfence.runners import at_once
from txcore.sqlfence.schema import LOWEST_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from txcore.connections import DatabaseConnection
    from txcore.fence import FenceReading
    from txcore.message_table import CancelState, TableRow
    from txcore.sqlfence.dialects import FenceRow
    from txcore.sqlfence.fence_table import FenceStats
    from txcore.sqlfence.identity import Database
    from txcore.sqlfence.prune import IsClosed, PruneResult


class SqlFence(FenceCore[Engine]):
    """The fence row in the user's own database. Thread safe; connections of the caller are used unchanged.

    For blocking programs; `AsyncSqlFence` is the same for asyncio. Both read and write the same tables.

    A producer's statements bypass SQLAlchemy where possible: its statement events and its log do not show them.

    The fence does not detect:

    - a savepoint that a statement of your own (not `begin_nested`) opens before the row is written, and that is rolled
      back after `verify`, on MariaDB, MySQL and SQLite;
    - a statement that commits by itself (DDL, LOCK TABLES) after `prepare(connection)` on MariaDB and MySQL: row and
      half stay, even if the rest is rolled back;
    - settings for durability that change after `verify`;
    - commits that a failover to an asynchronous standby loses.

    Args:
        engine: SQLAlchemy Engine; its pool provides the fence's own connections.
        table: Name of the table, with a schema before it if needed; `<table>_meta` and others are created beside it.
        lock_timeout_s: Longest wait of a check for an open producer transaction (MariaDB: it never waits).
        statement_timeout_s: Longest time of a producer's insert on PostgreSQL, from which the wait of a prune
            follows, and the longest time for which one check asks ids one by one.
        attempts_max: Most tries of a check's transaction that the database aborts.
        digest: Write a digest of the transaction's messages into its row, so that `txcore audit` finds messages that
            were altered in the broker. Tables without that column, which `create` adds, work without it.
        clock: For the time limit of a check.
        sleep: The function with which a prune waits; `time.sleep` by default.

    Raises:
        ConfigError: an AsyncEngine, an engine whose connections are not independent, or a setting out of range.
    """

    is_async: ClassVar[Literal[False]] = False

    # The producer's side ----------------------------------------------------------------------------------------------

    def begin(self, engine: Engine | None, transaction_id: bytes, group: str, digest: bytes = b"") -> Connection:
        """Open a connection of *engine* (None for the fence's own), begin, and insert the row as its first statement.

        Raises:
            FencedError: the row exists already or lies below the horizon; rolled back and closed.
            NotSentError: the database failed; rolled back and closed.
            FenceMisuseError: the engine is in autocommit mode or its database does not keep commits.
        """
        insert = partial(self._rows.insert, transaction_id=transaction_id, group=group, owned=True, digest=digest)
        return self._runner_of(engine).begin(insert)

    def insert(
        self,
        connection: DatabaseConnection,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        expected: bytes = b"",
        digest: bytes = b"",
    ) -> None:
        """Insert the row in the caller's open top-level transaction and make its commit durable.

        After it returns, the row certainly belongs to that transaction. *rows* go into the message table (state 3).
        *expected* is the database identity in the half, if the half was written before; *digest* goes into the row.

        Raises:
            FenceMisuseError: autocommit connection, open savepoint, or a database that does not keep commits.
            WrongDatabaseError: the connection is not to the database that *expected* names.
            FencedError: the row exists already or lies below the horizon.
            NotSentError: the database failed.
            After each of them the caller's transaction has been rolled back.
        """
        self._inserting(transaction_id, group, rows, expected, digest)(border_of(connection, self.engine))

    def read_database(self) -> bytes:
        """Read the identity of the database of the fence's own engine.

        Raises:
            BackendUnavailableError: the database cannot be reached.
        """
        return at_once(self._read_database())

    def verify(self, connection: DatabaseConnection, transaction_id: bytes, digest: bytes = b"") -> None:
        """Check, just before the half append, that the row belongs to this still open top-level transaction.

        A *digest* is written into the row. Only a call without one may be repeated.

        Raises:
            FenceMisuseError: it does not; the transaction was rolled back.
            NotSentError: the database failed; the transaction was rolled back.
        """
        self._rows.verify(border_of(connection, self.engine), transaction_id, digest)

    def withdraw(self, connection: DatabaseConnection, transaction_id: bytes) -> None:
        """Delete the row in the open transaction that inserted it, because its block published nothing."""
        self._withdrawing(transaction_id)(border_of(connection, self.engine))

    def enqueue(
        self,
        connection: DatabaseConnection,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow],
        digest: bytes = b"",
    ) -> None:
        """Insert messages into the message table, and set the row to state 3, in the open transaction that inserted it.

        Raises:
            FenceMisuseError: the row is not in this transaction, which was rolled back.
            NotSentError: the database failed; the transaction was rolled back.
        """
        self._enqueueing(transaction_id, group, rows, digest)(border_of(connection, self.engine))

    def now_ms(self, connection: DatabaseConnection) -> int:
        """Return the clock of the connection's database, in whole milliseconds since 1970, rounded down.

        Raises:
            NotSentError: the database failed; the transaction was rolled back.
        """
        return self._read_clock(border_of(connection, self.engine))

    def cancel(self, connection: DatabaseConnection, transaction_id: bytes, group: str) -> CancelState:
        """Cancel the delayed messages of a transaction in the caller's open transaction; all of them or none.

        The result holds if and only if that transaction commits. Until its end no relay turns them.

        Raises:
            FenceMisuseError: an autocommit connection, or one to another kind of database.
            What else the database raises is raised as it is: the caller's transaction is the caller's.
        """
        return self._cancelling(transaction_id, group)(border_of(connection, self.engine))

    def commit(self, connection: DatabaseConnection) -> None:
        """Commit and close a connection that `begin` opened.

        Raises:
            NotSentError: the database reports that it has undone the transaction (serialization failure, deadlock).
            CommitUnknownError: the database answered with another error, or not at all; it may have committed.
            FenceMisuseError: the application opened the connection and must commit it.
        """
        self._rows.commit(border_of(connection, self.engine))

    def rollback(self, connection: DatabaseConnection) -> None:
        """Roll the transaction back in any case, and close the connection if `begin` opened it.

        Idempotent; a failure of the database raises nothing: a connection that cannot roll back is discarded, and the
        database rolls back by itself.
        """
        self._rows.roll_back(border_of(connection, self.engine))

    # The checker's side -----------------------------------------------------------------------------------------------

    def check(
        self, transaction_ids: Sequence[bytes], group: str, databases: Mapping[bytes, bytes] | None = None
    ) -> Mapping[bytes, FenceReading]:
        """Write tombstones on a connection of its own and return the winner of each id.

        A failure of the database never raises: an id without a result is NO_ANSWER. A COMMIT or ROLLBACK is
        durable and final. An id of another group is NO_ANSWER with that reason. An id below the prune horizon
        without a row is PRUNED, and no tombstone is written for it. Nor is one for an id whose half, by *databases*,
        carries the identity of another database: that is NO_ANSWER, `is_foreign`.
        """
        return at_once(self._check(transaction_ids, group, databases))

    def peek(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceReading]:
        """Read states without writing; ABSENT for no row. For operators and audits, never for decisions.

        A failure of the database never raises: an id without a result is NO_ANSWER.
        """
        return at_once(self._peek(transaction_ids))

    def settled(
        self, transaction_ids: Sequence[bytes], connection: DatabaseConnection | None = None
    ) -> Mapping[bytes, FenceReading]:
        """Read the rows that are certainly committed and durable; ABSENT for every other id. See `Fence.settled`.

        It replaces no tombstone: an ABSENT transaction may be open, and may commit. On MariaDB and MySQL it writes to
        the rows that it finds, because only a later commit certainly puts them on disk.
        """
        return at_once(self._settle(transaction_ids, connection))

    def force(self, transaction_id: bytes, group: str, database: bytes = b"") -> None:
        """Set state 4, inserting the row if there is none; *database* is the identity that the half carries.

        Raises:
            WrongDatabaseError: *database* is another database; nothing was written.
            InMessageTableError: its messages are in the message table; nothing was written.
            BackendUnavailableError: unreachable, or an open producer transaction holds the row.
            UsageError: the row belongs to another group.
        """
        at_once(self._force(transaction_id, group, database))

    # The operator's side ----------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the tables that are missing; idempotent, safe when several processes do it at once.

        Tables of an older schema version are upgraded in place, and keep their rows.

        Raises:
            UsageError: the tables were made by a newer txcore.
            BackendUnavailableError: the database cannot be reached or refused, or tables of an older version could not
                be upgraded in 3 s, because a transaction is open; they still work unchanged.
        """
        at_once(self._create())

    def identity(self) -> Database:
        """Return the `Database` of the fence's own engine: its identity, and former ones.

        Raises:
            BackendUnavailableError: the database cannot be reached.
        """
        return at_once(self._identify())

    def adopt(self, reason: str, by: str, former: bytes = b"") -> Database:
        """Make the fence's database decide for the one that it replaces, and return its `Database`.

        For a deliberate move whose former database is no longer used: dump and restore, pg_upgrade (the database
        detects by itself that it is a copy), or new tables that were filled by replication (name *former*).

        Args:
            reason: The reason; stored with the time and *by*, the name of the caller.
            former: The identity of the former database, if this one was not copied from it.

        Raises:
            UsageError: no reason, nothing to adopt, a role that cannot find out, or tables of schema version 1.
            BackendUnavailableError: the database cannot be reached.
        """
        return at_once(self._adopt(reason, by, former))

    def rows(self, transaction_ids: Sequence[bytes]) -> Mapping[bytes, FenceRow]:
        """Return the FenceRow of each id that has one, without writing.

        Raises:
            BackendUnavailableError: the database cannot be reached.
        """
        return at_once(self._read_rows(transaction_ids))

    def ids_below(self, below: bytes, after: bytes = LOWEST_ID, count: int = CHUNK) -> list[bytes]:
        """Return up to *count* ids of rows between *after* and *below*, both excluded, ascending.

        Reads only. Raises BackendUnavailableError when the database cannot be reached.
        """
        return at_once(self._ids_below(below, after, count))

    def sent(self, transaction_ids: Sequence[bytes]) -> set[bytes]:
        """Return the ids of state 3 whose messages are all sent, without writing.

        Raises BackendUnavailableError when the database cannot be reached.
        """
        return at_once(self._sent(transaction_ids))

    def stats(self) -> FenceStats:
        """Return FenceStats. Counts every row.

        Raises:
            BackendUnavailableError: the database cannot be reached.
        """
        return at_once(self._count())

    def prune(
        self, below: bytes, is_closed: IsClosed, *, wait_s: float | None = None, chunk: int = CHUNK
    ) -> PruneResult:
        """Raise the horizon to *below*, wait, then delete the ids below it that *is_closed* names.

        Rows of state 3 stay while the message table holds a message of them, named or not, and those with delayed
        messages until the last of them was due before the time of *below*. Most of them have no half,
        and so no final op: name the ids that `sent` names, except those whose half is pending or parked. A half whose
        row is gone is parked as PRUNED, although its messages are sent.

        Returns a PruneResult. Can be interrupted and run again.

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
        return at_once(self._prune(below, is_closed, wait_s, chunk))
