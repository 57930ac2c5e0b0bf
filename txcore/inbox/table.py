"""The inbox's two tables and their statements.

`<table>` holds one row per received message: transaction_id, message_index, producer_group and time. A delayed
message's id has the time at which it was due instead of that of its birth. `<table>_meta` holds one row: the schema
version and `pruned_below`, the horizon. Both are made and pruned like those of the fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txcore.errors import InboxHorizonError, UsageError
from txcore.sqlfence.border import MYSQL, Border
from txcore.sqlfence.definitions import inbox_ddl
from txcore.sqlfence.dialects import decode_id
from txcore.sqlfence.failures import Cause, failure_of, unless
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.schema import Tables

if TYPE_CHECKING:
    from txcore.inbox.identity import MessageId


class InboxTable:
    """The statements for one pair of tables. Immutable, thread safe."""

    def __init__(self, dialect_name: str, tables: Tables) -> None:
        self.tables = tables
        self.dialect = dialect_of(dialect_name, tables)
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
        self.dialect.create(border, inbox_ddl(self.dialect.family, self.tables), has_identity=False)
        self.dialect.horizon(border)

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
        try:
            is_new = self._inserted(border, message)
        except Exception as error:
            if failure_of(error).cause is not Cause.NO_TABLE:
                raise
            raise UsageError(
                f"table {self.tables.fence} is missing: run create() of the inbox once; the message is not recorded, "
                "so roll back and do not acknowledge it"
            ) from error
        if not is_new:
            return False
        # Only now: a prune raises the horizon before it deletes rows, so a read after both sees the raised horizon.
        if not old_is_first and message.key < self._horizon_now(border):
            # A caller that notes it for a person, and commits, must not have it remembered as taken in.
            border.change(self._delete, self._values(message))
            raise InboxHorizonError(
                f"message {message.transaction_id}:{message.index} is older than what {self.tables.fence} "
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
        return unless(Cause.DUPLICATE, lambda: border.change(self._insert, values))

    def _values(self, message: MessageId) -> dict[str, Any]:
        return {
            "id": self.dialect.encode(message.key),
            "message_index": message.index,
            "producer_group": message.group,
        }

    def _horizon_now(self, border: Border) -> bytes:
        rows = border.rows(self.dialect.current_horizon, {})
        if not rows or rows[0][0] is None:
            raise UsageError(f"table {self.tables.meta} has no row; run create()")
        return decode_id(rows[0][0])
