"""The inbox: a consumer's table that tells a first delivery from a repeated one.

Delivery is at least once, and every copy of a target message carries the same `txcore-id`. The inbox writes that id
in the consumer's own database transaction: the message's effect and the memory of it are committed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from txcore.errors import BackendNotInstalledError, ConfigError, UsageError
from txcore.ids import parse_id
from txcore.wire import HEADER_GROUP, HEADER_ID

try:
    from sqlalchemy import Engine
except ImportError as error:
    if error.name != "sqlalchemy":
        raise
    raise BackendNotInstalledError("Inbox", "SQLAlchemy", "sql") from error

from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.connections import border_of, family_of, is_async
from txcore.sqlfence.dialects import uuid_text
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.schema import GROUP_LENGTH_MAX, check_name

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]

_CREATED: Final = {
    POSTGRESQL: "timestamptz NOT NULL DEFAULT clock_timestamp()",
    MYSQL: "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
    SQLITE: "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
}
_ID: Final = {POSTGRESQL: "uuid", MYSQL: "BINARY(16)", SQLITE: "BLOB"}
_TAIL: Final = {POSTGRESQL: "", MYSQL: " ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", SQLITE: ""}


@dataclass(frozen=True, slots=True)
class MessageId:
    """What makes a target message unique: who produced it, in which transaction, and its place there."""

    group: str
    transaction_id: bytes
    index: int


class Inbox:
    """Remembers which target messages one consumer application has taken in. Thread safe.

    Applications that share a database and read the same topics need a table each.

    Args:
        engine: SQLAlchemy Engine of the consumer's database, used by `create` and `forget` only.
        table: Name of the table, with a schema before it if need be.
    """

    def __init__(self, engine: Engine, *, table: str = "txcore_inbox") -> None:
        if not isinstance(engine, Engine):
            raise ConfigError(f"the inbox takes a synchronous SQLAlchemy Engine, not {engine!r}", key="engine")
        check_name(table)
        self.engine = engine
        self.table = table
        self._family = family_of(engine.dialect.name)

    def create(self) -> None:
        """Create the table if it is missing; idempotent."""
        family = self._family
        columns = (
            f"transaction_id {_ID[family]} NOT NULL, message_index integer NOT NULL, "
            f"producer_group varchar({GROUP_LENGTH_MAX}) NOT NULL, received {_CREATED[family]}, "
            "PRIMARY KEY (transaction_id, message_index, producer_group)"
        )
        with self.engine.connect() as connection:
            border = border_of(connection)
            if family == POSTGRESQL:  # two CREATE TABLE IF NOT EXISTS at once can collide
                border.rows("SELECT pg_advisory_xact_lock(hashtext(:name))", {"name": f"txcore:{self.table}"})
            border.change(f"CREATE TABLE IF NOT EXISTS {self.table} ({columns}){_TAIL[family]}", {})
            border.commit()

    @contextmanager
    def receive(self, connection: Any, headers: Headers) -> Iterator[bool]:
        """Take a message in within the caller's open transaction; yields True for its first delivery.

            with engine.begin() as connection, inbox.receive(connection, message_headers) as first:
                if first:
                    connection.execute(...)

        Commit before the broker's offset or delivery is acknowledged. A second consumer of the same message waits
        until the first one's transaction has ended; then it sees False if that committed, True if it rolled back.
        On PostgreSQL at REPEATABLE READ and above it gets the database's serialization error instead.

        Args:
            connection: A SQLAlchemy Connection or Session, a sqlite3.Connection or a psycopg.Connection; the
                transaction begins with this call if it has not begun.
            headers: The message's headers, a mapping or pairs; `txcore-id` and `txcore-group` are read.

        Raises:
            UsageError: a header is missing or malformed, or the connection commits each statement by itself.
            What the database or its driver raises is raised as it is: the caller's transaction is the caller's.
        """
        message = message_id_of(headers)
        if is_async(connection):
            raise UsageError("the inbox works on synchronous connections; wrap the call in run_sync")
        border = border_of(connection, self.engine)
        if border.commits_each_statement():
            raise UsageError(
                "the inbox needs a transaction, and this connection is in autocommit mode: the message would be marked "
                "as received before its effect is committed"
            )
        yield self._insert(border, message)

    def forget(self, below: bytes) -> int:
        """Delete what was received with a transaction id below *below*, in one statement; returns how many.

        A copy of such a message that comes later counts as a first delivery again.
        """
        place = "CAST(:below AS uuid)" if self._family == POSTGRESQL else ":below"
        with self.engine.connect() as connection:
            border = border_of(connection)
            value = uuid_text(below) if self._family == POSTGRESQL else below
            count = border.change(f"DELETE FROM {self.table} WHERE transaction_id < {place}", {"below": value})  # noqa: S608
            border.commit()
        return count

    def _insert(self, border: Border, message: MessageId) -> bool:
        is_postgresql = border.family == POSTGRESQL
        place = "CAST(:id AS uuid)" if is_postgresql else ":id"
        identity: Any = uuid_text(message.transaction_id) if is_postgresql else message.transaction_id
        values = {"id": identity, "message_index": message.index, "producer_group": message.group}
        sql = (
            f"INSERT INTO {self.table} (transaction_id, message_index, producer_group) "  # noqa: S608
            f"VALUES ({place}, :message_index, :producer_group)"
        )
        if border.family != MYSQL:
            return border.change(f"{sql} ON CONFLICT DO NOTHING", values) == 1
        # INSERT IGNORE would hide other errors too; here a duplicate fails the statement and nothing else.
        try:
            border.change(sql, values)
        except Exception as error:
            if failure_of(error).cause is not Cause.DUPLICATE:
                raise
            return False
        return True


def message_id_of(headers: Headers) -> MessageId:
    """Return the identity in a target message's headers.

    Raises:
        UsageError: `txcore-id` or `txcore-group` is missing or malformed.
    """
    found = dict(headers)
    missing = [name for name in (HEADER_ID, HEADER_GROUP) if name not in found]
    if missing:
        raise UsageError(
            f"the message has no {' and no '.join(missing)} header: it was not published by txcore, or something on "
            "its way dropped its headers"
        )
    identity, separator, index = _text(found[HEADER_ID], HEADER_ID).rpartition(":")
    if not separator or not (index.isascii() and index.isdigit()):
        raise UsageError(f"the header {HEADER_ID} must be <transaction_id>:<index>, not {found[HEADER_ID]!r}")
    return MessageId(_text(found[HEADER_GROUP], HEADER_GROUP), parse_id(identity), int(index))


def _text(value: str | bytes, name: str) -> str:
    try:
        return value if isinstance(value, str) else bytes(value).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the header {name} is no UTF-8 text") from error
