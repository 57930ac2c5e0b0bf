"""The message table on the producer's and the check's side: made, filled in the fence row's transaction, looked at.

What differs between the databases stands in three small tables of text, because only types and one idiom differ.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from txcore.errors import FenceMisuseError
from txcore.ids import id_text
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.dialects import Dialect, decode_id
from txcore.sqlfence.schema import COMMITTED, GROUP_LENGTH_MAX, VIA_TABLE, Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from txcore.table import TableRow

ROWS_MAX: Final = 100
"""Most rows of one insert."""
BELL: Final = -1
"""The slot whose row says whether a relay sleeps."""
ASLEEP: Final = "asleep"
DROPPED: Final = 2
"""In the column `parked`: an operator has given the message up; the row stays as the record of it."""

_NUMBER: Final = {
    POSTGRESQL: "number bigint GENERATED ALWAYS AS IDENTITY",
    MYSQL: "number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    SQLITE: "number INTEGER PRIMARY KEY",
}
_ID: Final = {POSTGRESQL: "uuid", MYSQL: "BINARY(16)", SQLITE: "BLOB"}
_BODY: Final = {POSTGRESQL: "bytea", MYSQL: "LONGBLOB", SQLITE: "BLOB"}
_GROUP: Final = {
    POSTGRESQL: f"varchar({GROUP_LENGTH_MAX})",
    MYSQL: f"VARCHAR({GROUP_LENGTH_MAX}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    SQLITE: "TEXT",
}
_CREATED: Final = {
    POSTGRESQL: "timestamptz NOT NULL DEFAULT clock_timestamp()",
    MYSQL: "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
    SQLITE: "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
}
_TAIL: Final = {POSTGRESQL: "", MYSQL: " ENGINE=InnoDB", SQLITE: ""}


def table_statements(family: str, tables: Tables) -> list[str]:
    """Return the statements that make both tables where they are missing."""
    columns = (
        f"{_NUMBER[family]}, transaction_id {_ID[family]} NOT NULL, message_index integer NOT NULL, "
        f"producer_group {_GROUP[family]} NOT NULL, lane bigint NOT NULL, slot smallint NOT NULL, "
        f"body {_BODY[family]} NOT NULL, tries smallint NOT NULL DEFAULT 0, parked smallint NOT NULL DEFAULT 0, "
        f"reason text, created {_CREATED[family]}"
    )
    slots = (
        f"producer_group {_GROUP[family]} NOT NULL, slot smallint NOT NULL, owner varchar(64) NOT NULL DEFAULT '', "
        "until_ms bigint NOT NULL DEFAULT 0, beats bigint NOT NULL DEFAULT 0, PRIMARY KEY (producer_group, slot)"
    )
    index, places = f"{tables.message.rpartition('.')[2]}_ix", "producer_group, parked, slot, number"
    unique = "UNIQUE (transaction_id, message_index)"
    if family == MYSQL:
        columns += f", {unique}, INDEX {index} ({places})"
    else:
        columns += f", {'PRIMARY KEY (transaction_id, message_index)' if family == POSTGRESQL else unique}"
    made = [
        f"CREATE TABLE IF NOT EXISTS {tables.message} ({columns}){_TAIL[family]}",
        f"CREATE TABLE IF NOT EXISTS {tables.slot} ({slots}){_TAIL[family]}",
    ]
    if family != MYSQL:
        made.append(f"CREATE INDEX IF NOT EXISTS {index} ON {tables.message} ({places})")
    return made


def enqueue(dialect: Dialect, border: Border, transaction_id: bytes, group: str, rows: Sequence[TableRow]) -> None:
    """Turn the producer's own row to state 3, insert *rows* in their order, and wake a relay that sleeps at COMMIT.

    Raises:
        FenceMisuseError: the fence row is not in this transaction.
    """
    update = (
        f"UPDATE {dialect.tables.fence} SET state = {VIA_TABLE} "  # noqa: S608
        f"WHERE transaction_id = {dialect.place('id')} AND state = {COMMITTED}"
    )
    own: dict[str, Any] = {"id": dialect.encode(transaction_id), "producer_group": group}
    inserts = [_insert(dialect, rows[start : start + ROWS_MAX]) for start in range(0, len(rows), ROWS_MAX)]
    if inserts and dialect.family == POSTGRESQL:
        sql, values = inserts.pop(0)
        moved = _moved_and_put(dialect.tables, border, update, sql, own | values)
    else:
        moved = border.change(update, {"id": own["id"]})
    if moved != 1:
        raise FenceMisuseError(f"the fence row of {id_text(transaction_id)} is not in this transaction")
    for sql, values in inserts:
        border.change(sql, own | values)


def waiting(dialect: Dialect, border: Border, ids: Iterable[bytes], *, has_dropped: bool = False) -> set[bytes]:
    """Return those of *ids* of which the message table holds a row, parked ones included, dropped ones if so asked."""
    values = {f"i{number}": dialect.encode(item) for number, item in enumerate(ids)}
    names = ", ".join(dialect.place(name) for name in values)
    sql = f"SELECT DISTINCT transaction_id FROM {dialect.tables.message} WHERE transaction_id IN ({names})"  # noqa: S608
    if not has_dropped:
        sql += f" AND parked < {DROPPED}"
    return {decode_id(row[0]) for row in border.rows(sql, values)}


def channel_of(tables: Tables, group: str) -> str:
    """Return the name under which relays of *group* listen on PostgreSQL."""
    return "txcore_" + hashlib.blake2b(f"{tables.message}\0{group}".encode(), digest_size=12).hexdigest()


def _moved_and_put(tables: Tables, border: Border, update: str, insert: str, values: dict[str, Any]) -> int:
    """Run both statements in one round trip, and ring, but only for a relay that has gone to sleep.

    A NOTIFY makes the server's commits wait for each other, so a busy table must not send any. Returns how many fence
    rows there were to turn; unless it is one, the transaction has to be rolled back.
    """
    sql = (
        f"WITH moved AS ({update} RETURNING 1), put AS ({insert}) SELECT (SELECT count(*) FROM moved), "  # noqa: S608
        f"(SELECT pg_notify(CAST(:channel AS text), '') IS NULL FROM {tables.slot} "
        f"WHERE producer_group = CAST(:producer_group AS varchar) AND slot = {BELL} AND owner = '{ASLEEP}')"
    )
    return int(border.rows(sql, values | {"channel": channel_of(tables, values["producer_group"])})[0][0])


def _insert(dialect: Dialect, rows: Sequence[TableRow]) -> tuple[str, dict[str, Any]]:
    """Return the statement that inserts *rows* in their order, and its values but for the id and the group."""
    body = "CAST(:b{0} AS bytea)" if dialect.family == POSTGRESQL else ":b{0}"
    place = f"({dialect.place('id')}, :n{{0}}, :producer_group, :l{{0}}, :s{{0}}, {body})"
    values: dict[str, Any] = {}
    for number, row in enumerate(rows):
        values |= {f"n{number}": row.index, f"l{number}": row.lane, f"s{number}": row.slot, f"b{number}": row.body}
    columns = "(transaction_id, message_index, producer_group, lane, slot, body)"
    places = ", ".join(place.format(number) for number in range(len(rows)))
    return f"INSERT INTO {dialect.tables.message} {columns} VALUES {places}", values  # noqa: S608
