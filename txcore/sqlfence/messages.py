"""The message table for producers and checks: created, filled in the fence row's transaction, read.

Small tables of text hold the differences between the databases, because only types and one idiom differ.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from txcore.errors import FenceMisuseError
from txcore.ids import id_text
from txcore.sqlfence import later
from txcore.sqlfence.border import POSTGRESQL, Border
from txcore.sqlfence.dialects import Dialect, decode_id
from txcore.sqlfence.later import BELL
from txcore.sqlfence.postgresql import PostgreSQL
from txcore.sqlfence.schema import COMMITTED, VIA_TABLE, Tables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from txcore.message_table import TableRow
    from txcore.sqlfence.border import Writer
    from txcore.sqlfence.identity import Database

ROWS_MAX: Final = 100
"""Most rows in one insert."""
ASLEEP: Final = "asleep"
DROPPED: Final = 2
"""Value of the column `parked` of a message that an operator has dropped; the row stays as a record."""

_encode: Final = msgspec.json.Encoder().encode


def insert(
    dialect: Dialect,
    border: Border,
    writer: Writer,
    transaction_id: bytes,
    group: str,
    rows: Sequence[TableRow],
    database: Database,
    digest: bytes,
) -> None:
    """Insert the producer's row and its messages *rows*; the tables are then the same as after `enqueue`.

    Raises: as `Dialect.insert`.
    """
    bound = database.stored, database.oids, digest
    if isinstance(dialect, PostgreSQL):
        put, ring = _put_text(dialect.tables, "fence"), _ring(dialect.tables, group)
        dialect.insert_via_table(writer, transaction_id, put, ring, _text_values(group, rows), *bound)
    else:
        dialect.insert(writer, transaction_id, group, *bound)
        enqueue(dialect, border, transaction_id, group, rows)


def enqueue(
    dialect: Dialect,
    border: Border,
    transaction_id: bytes,
    group: str,
    rows: Sequence[TableRow],
    digest: bytes = b"",
) -> None:
    """Set the producer's own row to state 3, insert *rows* in their order, and wake a sleeping relay at COMMIT.

    A *digest* goes into the row. Rows with a `due_ms` wait in a table of their own.

    Raises:
        FenceMisuseError: the fence row is not in this transaction.
    """
    delayed = [row for row in rows if row.due_ms]
    if delayed:
        rows = [row for row in rows if not row.due_ms]
        later.put(dialect, border, transaction_id, group, delayed)
    tables, values = dialect.tables, {"id": dialect.encode(transaction_id)}
    changed = values | ({"digest": dialect.encode_digest(digest)} if digest else {})
    update = (
        f"UPDATE {tables.fence} SET state = {VIA_TABLE}{f', digest = {dialect.digest_place}' if digest else ''} "  # noqa: S608
        f"WHERE transaction_id = {dialect.place('id')} AND state = {COMMITTED}"
    )
    if dialect.family == POSTGRESQL:
        sql = (
            f"WITH moved AS ({update} RETURNING 1), put AS ({_put_text(tables, 'moved')}) "  # noqa: S608
            f"SELECT CAST((SELECT count(*) FROM moved) AS text), {_ring(tables, group)}"
        )
        moved = int(border.writer().quick_rows(sql, changed | _text_values(group, rows))[0][0])
        inserts = []
    else:
        moved = border.change(update, changed)
        inserts = [_insert(dialect, rows[start : start + ROWS_MAX]) for start in range(0, len(rows), ROWS_MAX)]
    if moved != 1:
        raise FenceMisuseError(f"the fence row of {id_text(transaction_id)} is not in this transaction")
    for sql, of_rows in inserts:
        border.change(sql, values | {"producer_group": group} | of_rows)


def waiting(dialect: Dialect, border: Border, ids: Collection[bytes], *, has_dropped: bool = False) -> set[bytes]:
    """Return the *ids* with a message that waits, parked or delayed ones included, dropped ones if *has_dropped*."""
    delayed = later.waiting(dialect, border, ids)  # first: a row that is turned now is in the message table after it
    names, values = dialect.named(ids)
    sql = f"SELECT DISTINCT transaction_id FROM {dialect.tables.message} WHERE transaction_id IN ({names})"  # noqa: S608
    if not has_dropped:
        sql += f" AND parked < {DROPPED}"
    return delayed | {decode_id(row[0]) for row in border.rows(sql, values)}


def channel_of(tables: Tables, group: str) -> str:
    """Return the name under which relays of *group* listen on PostgreSQL."""
    return "txcore_" + hashlib.blake2b(f"{tables.message}\0{group}".encode(), digest_size=12).hexdigest()


@functools.lru_cache(maxsize=16)
def _put_text(tables: Tables, given: str) -> str:
    """Return a preparable statement that inserts any number of rows in their order, on PostgreSQL.

    *given* names the part of the whole statement with the fence row; without a row there, none are inserted. The
    fence row may be refused because the database is another one; it is then written once more, with its messages.

    Rows are one parameter, a text that any driver sends. Not an array: PostgreSQL would plan the statement each time
    again, to know its length, which takes longer than to run it.
    """
    return (
        f"INSERT INTO {tables.message} (transaction_id, message_index, producer_group, lane, slot, body) "  # noqa: S608
        "SELECT CAST(:id AS uuid), n, CAST(:producer_group AS varchar), lane, slot, decode(body, 'hex') "
        "FROM ROWS FROM (json_to_recordset(CAST(CAST(:rows AS text) AS json)) "
        "AS (n integer, lane bigint, slot smallint, body text)) "
        "WITH ORDINALITY AS each (n, lane, slot, body, place) "
        f"WHERE EXISTS (SELECT 1 FROM {given}) ORDER BY place"
    )


def _text_values(group: str, rows: Sequence[TableRow]) -> dict[str, str]:
    """Return the values of `_put_text`, without the id."""
    each = [{"n": row.index, "lane": row.lane, "slot": row.slot, "body": row.body.hex()} for row in rows]
    return {"producer_group": group, "rows": _encode(each).decode()}


@functools.lru_cache(maxsize=64)
def _ring(tables: Tables, group: str) -> str:
    """Return the column that wakes a relay at COMMIT on PostgreSQL, if the relay sleeps.

    A NOTIFY makes the server's commits wait for each other, so a busy table must not send any.
    """
    return (
        f"COALESCE((SELECT CAST(pg_notify('{channel_of(tables, group)}', '') AS text) FROM {tables.slot} "  # noqa: S608
        f"WHERE producer_group = CAST(:producer_group AS varchar) AND slot = {BELL} AND owner = '{ASLEEP}'), '')"
    )


def _insert(dialect: Dialect, rows: Sequence[TableRow]) -> tuple[str, dict[str, Any]]:
    """Return the statement that inserts *rows* in their order, and its values without the id and the group."""
    place = f"({dialect.place('id')}, :n{{0}}, :producer_group, :l{{0}}, :s{{0}}, :b{{0}})"
    values: dict[str, Any] = {}
    for number, row in enumerate(rows):
        values |= {f"n{number}": row.index, f"l{number}": row.lane, f"s{number}": row.slot, f"b{number}": row.body}
    columns = "(transaction_id, message_index, producer_group, lane, slot, body)"
    places = ", ".join(place.format(number) for number in range(len(rows)))
    return f"INSERT INTO {dialect.tables.message} {columns} VALUES {places}", values  # noqa: S608
