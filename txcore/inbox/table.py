"""The inbox's two tables and their statements.

`<table>` holds one row per received message: transaction_id, message_index, producer_group and time. `<table>_meta`
holds one row: the schema version and `pruned_below`, the horizon. Both are made and pruned like those of the fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from txcore.errors import InboxHorizonError, UsageError
from txcore.ids import id_text
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.dialects import decode_id
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.schema import GROUP_LENGTH_MAX, INBOX_VERSION, LOWEST_ID, Tables, check_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from txcore.inbox.identity import MessageId

_ID: Final = {POSTGRESQL: "uuid", MYSQL: "BINARY(16)", SQLITE: "BLOB"}
_CREATED: Final = {
    POSTGRESQL: "timestamptz NOT NULL DEFAULT clock_timestamp()",
    MYSQL: "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
    SQLITE: "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
}
_TAIL: Final = {POSTGRESQL: "", MYSQL: " ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", SQLITE: ""}


class InboxTable:
    """The statements for one pair of tables. Immutable, thread safe."""

    def __init__(self, dialect_name: str, tables: Tables) -> None:
        self.tables = tables
        self.dialect = dialect_of(dialect_name, tables)
        # Reads the current horizon, also in a transaction with an older snapshot: there the row is locked, and
        # PostgreSQL raises 40001 if it has changed since. SQLite's writer has no old snapshot.
        self._horizon = {
            POSTGRESQL: (
                "SELECT CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') "  # noqa: S608
                f"THEN (SELECT pruned_below FROM {tables.meta}) "
                f"ELSE (SELECT pruned_below FROM {tables.meta} FOR SHARE) END"
            ),
            MYSQL: f"SELECT pruned_below FROM {tables.meta} LOCK IN SHARE MODE",  # noqa: S608
            SQLITE: f"SELECT pruned_below FROM {tables.meta}",  # noqa: S608
        }[self.dialect.family]
        self._insert = (
            f"INSERT INTO {tables.fence} (transaction_id, message_index, producer_group) "  # noqa: S608
            f"VALUES ({self.dialect.place('id')}, :message_index, :producer_group)"
        )
        self._delete = (
            f"DELETE FROM {tables.fence} WHERE transaction_id = {self.dialect.place('id')} "  # noqa: S608
            "AND message_index = :message_index AND producer_group = :producer_group"
        )

    def create(self, border: Border) -> None:
        """Create both tables if they are missing, safe against another process that does the same.

        Raises:
            UsageError: they were made by a newer txcore.
        """
        family, name = self.dialect.family, self.tables.fence
        if family == POSTGRESQL:  # two CREATE TABLE IF NOT EXISTS at once can collide
            border.rows("SELECT pg_advisory_xact_lock(hashtext(:name))", {"name": f"txcore:{name}"})
        columns = (
            f"transaction_id {_ID[family]} NOT NULL, message_index integer NOT NULL, "
            f"producer_group varchar({GROUP_LENGTH_MAX}) NOT NULL, received {_CREATED[family]}, "
            "PRIMARY KEY (transaction_id, message_index, producer_group)"
        )
        border.change(f"CREATE TABLE IF NOT EXISTS {name} ({columns}){_TAIL[family]}", {})
        columns = (
            "singleton smallint NOT NULL PRIMARY KEY CHECK (singleton = 1), schema_version integer NOT NULL, "
            f"pruned_below {_ID[family]} NOT NULL"
        )
        border.change(f"CREATE TABLE IF NOT EXISTS {self.tables.meta} ({columns}){_TAIL[family]}", {})
        self._write_first_meta_row(border)

    def take(self, border: Border, message: MessageId, *, old_is_first: bool) -> bool:
        """Write the message's row; return whether it is new. See `Inbox.receive`."""
        if border.family != self.dialect.family:
            raise UsageError(
                f"the connection is of {border.family}, the inbox of {self.dialect.family}: the row must be in the "
                "database that the message's effect changes"
            )
        if border.commits_each_statement():
            raise UsageError(
                "the inbox needs a transaction, and this connection is in autocommit mode: the message would be marked "
                "as received before its effect is committed"
            )
        if not self._inserted(border, message):
            return False
        # Only now: a prune raises the horizon before it deletes rows, so a read after both sees the raised horizon.
        if not old_is_first and message.transaction_id < self._horizon_now(border):
            # A caller that notes it for a person, and commits, must not have it remembered as taken in.
            border.change(self._delete, self._values(message))
            raise InboxHorizonError(
                f"message {id_text(message.transaction_id)}:{message.index} is older than what {self.tables.fence} "
                "remembers: it may have been received before; roll back and ask a person, or receive it with "
                "old_is_first=True",
                transaction_id=message.transaction_id,
            )
        return True

    def _inserted(self, border: Border, message: MessageId) -> bool:
        values = self._values(message)
        if self.dialect.family != MYSQL:
            return border.change(f"{self._insert} ON CONFLICT DO NOTHING", values) == 1
        # INSERT IGNORE would hide other errors too; here only a duplicate fails the statement alone.
        return _unless_duplicate(lambda: border.change(self._insert, values))

    def _values(self, message: MessageId) -> dict[str, Any]:
        return {
            "id": self.dialect.encode(message.transaction_id),
            "message_index": message.index,
            "producer_group": message.group,
        }

    def _horizon_now(self, border: Border) -> bytes:
        rows = border.rows(self._horizon, {})
        if not rows or rows[0][0] is None:
            raise UsageError(f"table {self.tables.meta} has no row; run create()")
        return decode_id(rows[0][0])

    def _write_first_meta_row(self, border: Border) -> None:
        rows = border.rows(f"SELECT schema_version FROM {self.tables.meta}", {})  # noqa: S608
        if rows:
            check_version(self.tables.fence, int(rows[0][0]))
            return
        sql = (
            f"INSERT INTO {self.tables.meta} (singleton, schema_version, pruned_below) "  # noqa: S608
            f"VALUES (1, {INBOX_VERSION}, {self.dialect.place('id')})"
        )
        # Only on MariaDB, which commits each CREATE by itself, can another process be first here.
        _unless_duplicate(lambda: border.change(sql, {"id": self.dialect.encode(LOWEST_ID)}))


def _unless_duplicate(insert: Callable[[], Any]) -> bool:
    """Run an insert; return False when its row existed already. Other errors of the database are raised unchanged."""
    try:
        insert()
    except Exception as error:
        if failure_of(error).cause is not Cause.DUPLICATE:
            raise
        return False
    return True
