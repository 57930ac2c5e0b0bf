"""The producer's row: written, verified, withdrawn; and the user's transaction, rolled back after a failure.

After every failure here the whole transaction has been rolled back, so that a program that swallows the error has
nothing left to commit by mistake: on MariaDB a failed statement alone would leave the other changes in place.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from txcore.errors import CommitUnknownError, FencedError, FenceMisuseError, NotSentError, TxcoreError, UsageError
from txcore.ids import ID_BYTES, id_text, known_id
from txcore.sqlfence import identity, messages
from txcore.sqlfence.border import SQLITE, Border, Writer
from txcore.sqlfence.dialects import SAVEPOINT_TEXT, Dialect, RowRefused
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.schema import GROUP_LENGTH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from txcore.message_table import TableRow
    from txcore.sqlfence.identity import Database

Read = TypeVar("Read")
_OWNED_ATTEMPTS_MAX: Final = 4
"""Most tries of a row that the fence inserts as the first statement of a transaction of its own.

The database may abort it although no other statement is in it: on MariaDB and MySQL two producers block each other if
they waited for two rows of one check, and the check rolls back.
"""
_AUTOCOMMIT_TEXT: Final = (
    "the connection is in autocommit mode: the fence row would be committed before the local transaction; "
    "begin a transaction first"
)


class RowKeeper:
    """Acts on the connections of producers; synchronous, on a border. Thread safe."""

    def __init__(self, dialect: Dialect, secret: str | None) -> None:
        self._dialect = dialect
        self._secret = secret
        self._durable: weakref.WeakSet[Any] = weakref.WeakSet()

    def insert(
        self,
        border: Border,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow] = (),
        *,
        owned: bool,
        expected: bytes = b"",
        digest: bytes = b"",
    ) -> None:
        """Insert the row; *owned* means that the fence opened the connection. See `SqlFence.insert`.

        *expected* is the identity in the half, if the half was written before. A row that is not verified again,
        because the caller opened the connection, is certainly in the open transaction: the server's answer has said
        so, or the server is asked.
        """
        check_id(transaction_id)
        check_group(group)
        for left in reversed(range(_OWNED_ATTEMPTS_MAX if owned else 1)):
            try:
                writer = self._writer(border)
                self._dialect.begin(border, writer)
                if not self._dialect.sets_durability:
                    self._require_durable(border, writer)
                database = self._write(border, writer, transaction_id, group, rows, expected, digest)
                if not owned and not writer.is_surely_open():
                    self._dialect.verify(writer, transaction_id)
                border.mark(transaction_id, database, owned=owned)
            except Exception as error:  # noqa: BLE001 - it is raised again as an error of txcore
                if not left or failure_of(error, self._secret).cause is not Cause.COLLISION:
                    self._undo(border, transaction_id, "written", error)
                self.roll_back(border)
            else:
                return

    def _write(
        self,
        border: Border,
        writer: Writer,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow],
        expected: bytes,
        digest: bytes,
    ) -> Database:
        """Insert if the database is still the one that this connection has read; else read it again; return it."""
        database = identity.look(self._dialect, border, writer)
        try:
            self._insert(border, writer, transaction_id, group, rows, database, digest)
        except RowRefused:
            seen, database = database, identity.look_anew(self._dialect, border)
            if seen.is_at(database.stored, database.oids):
                raise
            self._insert(border, writer, transaction_id, group, rows, database, digest)
        if expected and not database.decides(expected):
            database = identity.look_anew(self._dialect, border)
            identity.require(database, expected)
        return database

    def _insert(
        self,
        border: Border,
        writer: Writer,
        transaction_id: bytes,
        group: str,
        rows: Sequence[TableRow],
        database: Database,
        digest: bytes,
    ) -> None:
        digest = digest if database.has_digest else b""
        if rows:
            messages.insert(self._dialect, border, writer, transaction_id, group, rows, database, digest)
        else:
            self._dialect.insert(writer, transaction_id, group, database.stored, database.oids, digest)

    def verify(self, border: Border, transaction_id: bytes, digest: bytes = b"") -> None:
        """Raise unless the row belongs to this open top-level transaction. See `SqlFence.verify`."""
        check_id(transaction_id)
        try:
            writer = self._writer(border)
            border.begin()
            self._dialect.verify(writer, transaction_id, self._taken(border, digest))
        except Exception as error:  # noqa: BLE001 - it is raised again as an error of txcore
            self._undo(border, transaction_id, "verified", error)

    def enqueue(
        self, border: Border, transaction_id: bytes, group: str, rows: Sequence[TableRow], digest: bytes
    ) -> None:
        """Put messages into the message table. See `SqlFence.enqueue`."""
        self.change(
            border,
            transaction_id,
            lambda at, of: messages.enqueue(self._dialect, at, of, group, rows, self._taken(at, digest)),
        )

    def _taken(self, border: Border, digest: bytes) -> bytes:
        """Return *digest* if the table that has the row takes one; the insert has read which database that is."""
        if not digest:
            return b""
        mark = border.marked()
        database = identity.recall(self._dialect, border) if mark is None else mark.database
        return digest if database is not None and database.has_digest else b""

    def change(self, border: Border, transaction_id: bytes, action: Callable[[Border, bytes], None]) -> None:
        """Run *action*, which changes the row in its own transaction."""
        try:
            action(border, transaction_id)
        except Exception as error:  # noqa: BLE001 - it is raised again as an error of txcore
            self._undo(border, transaction_id, "changed", error)

    def read(self, border: Border, action: Callable[[Border], Read]) -> Read:
        """Return the result of *action*, which reads in the row's own transaction."""
        mark = border.marked()
        try:
            return action(border)
        except Exception as error:  # noqa: BLE001 - it is raised again as an error of txcore
            self._undo(border, bytes(ID_BYTES) if mark is None else mark.transaction_id, "followed by a message", error)

    def commit(self, border: Border) -> None:
        """Commit and close. See `SqlFence.commit`."""
        mark = border.marked()
        if mark is None or not mark.owned:
            raise FenceMisuseError("the fence commits only connections that it opened; commit this one yourself")
        try:
            border.commit()
        except Exception as error:
            name, failure = known_id(mark.transaction_id), failure_of(error, self._secret)
            if failure.is_undone or _is_still_open(border):
                raise NotSentError(
                    f"the database rolled transaction {name} back at its COMMIT, {failure}; nothing was sent and "
                    "nothing will be sent: try again with a new transaction",
                    transaction_id=name,
                ) from error
            raise CommitUnknownError(
                f"COMMIT of transaction {name} failed and may have applied, {failure}; the check decides",
                transaction_id=name,
            ) from error
        finally:
            border.close()

    def roll_back(self, border: Border) -> None:
        """Roll back, and close a connection that the fence opened. See `SqlFence.rollback`."""
        mark = border.marked()
        # If the rollback fails, the connection is lost, and the database ends its transaction.
        with suppress(Exception):
            border.rollback()
        if mark is not None and mark.owned:
            border.close()

    def _undo(self, border: Border, transaction_id: bytes, what: str, error: Exception) -> NoReturn:
        """Roll back, and raise the error of txcore for *error*."""
        self.roll_back(border)
        if isinstance(error, TxcoreError):
            raise error
        name = id_text(transaction_id)
        if isinstance(error, RowRefused):
            raise FencedError(
                f"the fence refused transaction {name}: {error}; rolled back, nothing sent",
                transaction_id=known_id(transaction_id),
            ) from None
        failure = failure_of(error, self._secret)
        if failure.cause is Cause.DUPLICATE:
            raise FencedError(
                f"the fence refused transaction {name}: a check decided it, or it was prepared before; "
                "rolled back, nothing sent: try again with a new transaction",
                transaction_id=known_id(transaction_id),
            ) from error
        raise NotSentError(
            f"the fence row of transaction {name} could not be {what}: {failure}; rolled back, nothing sent",
            transaction_id=known_id(transaction_id),
        ) from error

    def _writer(self, border: Border) -> Writer:
        """Return the writer on a connection whose open top-level transaction may carry the row."""
        writer = border.writer()
        if writer.family != self._dialect.family:
            raise FenceMisuseError(
                f"the connection is of {writer.family}, the fence's table of {self._dialect.family}: the row must be "
                "in the database that the local transaction changes"
            )
        # A mode that the driver itself calls off commits nothing.
        if writer.is_autocommit() is not False and border.commits_each_statement():
            raise FenceMisuseError(_AUTOCOMMIT_TEXT)
        if border.has_known_savepoint():
            raise FenceMisuseError(SAVEPOINT_TEXT)
        return writer

    def _require_durable(self, border: Border, writer: Writer) -> None:
        if writer.family == SQLITE:  # the setting belongs to each connection
            self._dialect.require_durable(writer)
        elif border.home not in self._durable:  # the setting belongs to the server and is read once
            self._dialect.require_durable(writer)
            self._durable.add(border.home)


def _is_still_open(border: Border) -> bool:
    """Return whether a failed COMMIT has left its transaction open, and roll it back.

    Only SQLite does this: there COMMIT can be busy, or break a constraint, and can be retried.
    """
    if border.family != SQLITE:
        return False
    with suppress(Exception):
        writer = border.writer()
        if writer.open_at_driver():
            writer.quick_change("ROLLBACK", {})
            return True
    return False


def check_arguments(transaction_ids: Sequence[bytes], group: str) -> None:
    """Refuse ids of another length and a group name that no column holds.

    Raises:
        UsageError: there is one.
    """
    for transaction_id in transaction_ids:
        check_id(transaction_id)
    check_group(group)


def check_id(transaction_id: bytes) -> None:
    """Refuse an id of another length.

    Raises:
        UsageError: it is one.
    """
    if not isinstance(transaction_id, bytes) or len(transaction_id) != ID_BYTES:
        raise UsageError(f"a transaction id has {ID_BYTES} bytes, not {transaction_id!r}")


def check_group(group: str) -> None:
    """Refuse a group name that no column holds.

    Raises:
        UsageError: it is one.
    """
    if len(group) > GROUP_LENGTH_MAX:
        raise UsageError(f"a producer group has at most {GROUP_LENGTH_MAX} characters, not {len(group)}")
