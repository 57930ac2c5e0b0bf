"""Delayed messages: the rows that wait until they are due, turned into ordinary ones, or cancelled.

They wait in a table of their own, `<table>_later`, so that relays of the version before do not see them, and undelayed
rows and their index are as small as without them. The state of a row changes once: to `TURNED`, in the transaction
that inserts the ordinary row, or to `CANCELLED`, with the caller's transaction. It stays as a record, without its body,
until its fence row is pruned.

No transaction that turns rows waits for a lock: rows that a cancel holds are passed over. A cancel locks all rows of
its transaction in the order of their index, and waits for those that are being turned.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from txcore.errors import FenceMisuseError
from txcore.message_table import CancelState
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.dialects import decode_id
from txcore.sqlfence.schema import COMMITTED, VIA_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from txcore.message_table import TableRow
    from txcore.sqlfence.dialects import Dialect
    from txcore.sqlfence.schema import Tables

TURN: Final = -2
"""Number of the slot whose row a relay locks while it turns rows, so that they join their queues in order."""
BELL: Final = -1
"""Number of the slot whose row shows whether a relay sleeps, and when one was last seen."""
WAITS: Final = 0
TURNED: Final = 1
CANCELLED: Final = 2
ROWS_MAX: Final = 100
"""Most rows in one insert or update."""

# Rounded down, so that no row is turned before its time.
NOW_MS: Final = {
    POSTGRESQL: "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)",
    MYSQL: "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)",
    SQLITE: "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}
_IS_THERE: Final = {
    POSTGRESQL: "SELECT 1 WHERE to_regclass('{table}') IS NOT NULL",
    MYSQL: "SELECT 1 FROM information_schema.tables WHERE table_name = '{name}' "
    "AND table_schema = COALESCE(NULLIF('{schema}', ''), DATABASE())",
    SQLITE: "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{name}'",
}
_encode: Final = msgspec.json.Encoder().encode


def is_there(dialect: Dialect, border: Border) -> bool:
    """Return whether the table exists: not in tables that an older txcore has made. Asked until it does."""
    table = dialect.tables.later
    memory = border.writer().memory
    if memory.get(table):
        return True
    schema, _, name = table.rpartition(".")
    found = bool(border.rows(_IS_THERE[dialect.family].format(table=table, schema=schema, name=name), {}))
    memory[table] = found
    return found


def now_ms(dialect: Dialect, border: Border) -> int:
    """Return the database's clock in whole milliseconds since 1970, rounded down."""
    return int(border.rows(f"SELECT {NOW_MS[dialect.family]}", {})[0][0])


def put(dialect: Dialect, border: Border, transaction_id: bytes, group: str, rows: Sequence[TableRow]) -> None:
    """Insert *rows*, which wait until their `due_ms`."""
    values = {"id": dialect.encode(transaction_id), "producer_group": group}
    if dialect.family == POSTGRESQL:
        each = [
            {"n": row.index, "lane": row.lane, "slot": row.slot, "due": row.due_ms, "body": row.body.hex()}
            for row in rows
        ]
        border.change(_put_text(dialect.tables), values | {"rows": _encode(each).decode()})
        return
    columns = "(transaction_id, message_index, producer_group, lane, slot, due, body)"
    place = f"({dialect.place('id')}, :n{{0}}, :producer_group, :l{{0}}, :s{{0}}, :d{{0}}, :b{{0}})"
    for start in range(0, len(rows), ROWS_MAX):
        chunk: dict[str, Any] = {}
        for number, row in enumerate(rows[start : start + ROWS_MAX]):
            chunk |= {f"n{number}": row.index, f"l{number}": row.lane, f"s{number}": row.slot}
            chunk |= {f"d{number}": row.due_ms, f"b{number}": row.body}
        places = ", ".join(place.format(number) for number in range(len(rows[start : start + ROWS_MAX])))
        border.change(f"INSERT INTO {dialect.tables.later} {columns} VALUES {places}", values | chunk)  # noqa: S608


@functools.lru_cache(maxsize=16)
def _put_text(tables: Tables) -> str:
    """Return a preparable statement that inserts any number of rows, on PostgreSQL; see `messages`."""
    return (
        f"INSERT INTO {tables.later} (transaction_id, message_index, producer_group, lane, slot, due, body) "  # noqa: S608
        "SELECT CAST(:id AS uuid), n, CAST(:producer_group AS varchar), lane, slot, due, decode(body, 'hex') "
        "FROM json_to_recordset(CAST(CAST(:rows AS text) AS json)) "
        "AS each (n integer, lane bigint, slot smallint, due bigint, body text)"
    )


def next_due_in_ms(dialect: Dialect, border: Border, group: str) -> int | None:
    """Return the time until the next row of *group* is due, 0 or less where one is; None when no row waits."""
    sql = (
        f"SELECT due - {NOW_MS[dialect.family]} FROM {dialect.tables.later} "  # noqa: S608
        f"WHERE producer_group = :producer_group AND state = {WAITS} ORDER BY due LIMIT 1"
    )
    return next((int(row[0]) for row in border.rows(sql, {"producer_group": group})), None)


def turn(dialect: Dialect, border: Border, group: str, row_max: int) -> int:
    """Turn up to *row_max* rows that are due into ordinary ones; returns their number."""
    tables, values = dialect.tables, {"producer_group": group}
    lock = "" if dialect.family == SQLITE else " FOR UPDATE SKIP LOCKED"
    found = border.rows(
        f"SELECT number FROM {tables.later} WHERE producer_group = :producer_group AND state = {WAITS} "  # noqa: S608
        # A subquery is read once: PostgreSQL would read the clock for each row, and no index could end the search.
        f"AND due <= (SELECT {NOW_MS[dialect.family]}) ORDER BY due LIMIT {int(row_max)}{lock}",
        values,
    )
    if not found:
        return 0
    which = f"number IN ({', '.join(str(int(row[0])) for row in found)})"
    columns = "transaction_id, message_index, producer_group, lane, slot, body"
    border.change(
        f"INSERT INTO {tables.message} ({columns}) SELECT {columns} FROM {tables.later} WHERE {which} "  # noqa: S608
        "ORDER BY due, number",
        {},
    )
    border.change(f"UPDATE {tables.later} SET state = {TURNED}, body = NULL WHERE {which}", {})  # noqa: S608
    return len(found)


def cancel(dialect: Dialect, border: Border, transaction_id: bytes, group: str, note: str = "") -> CancelState:
    """Cancel the delayed messages of a transaction in the open transaction; see `Fence.cancel`."""
    if border.family != dialect.family:
        raise FenceMisuseError(
            f"the connection is of {border.family}, the fence's tables of {dialect.family}: cancel in the database "
            "that has the messages"
        )
    if border.commits_each_statement():
        raise FenceMisuseError("the connection is in autocommit mode: begin the transaction that cancels first")
    dialect.begin(border, border.writer())
    values = {"id": dialect.encode(transaction_id), "producer_group": group}
    of_transaction = f"transaction_id = {dialect.place('id')} AND producer_group = :producer_group"
    rows = _locked(dialect, border, of_transaction, values) if is_there(dialect, border) else {}
    if not rows:
        sql = f"SELECT state FROM {dialect.tables.fence} WHERE {of_transaction}"  # noqa: S608
        is_committed = any(int(row[0]) in {COMMITTED, VIA_TABLE} for row in border.rows(sql, values))
        return CancelState.TOO_LATE if is_committed else CancelState.NOT_FOUND
    if TURNED in rows.values():
        return CancelState.TOO_LATE
    waits = [number for number, state in rows.items() if state == WAITS]
    for start in range(0, len(waits), ROWS_MAX):
        which = ", ".join(map(str, waits[start : start + ROWS_MAX]))
        sql = f"UPDATE {dialect.tables.later} SET state = {CANCELLED}, body = NULL, note = :note "  # noqa: S608
        border.change(f"{sql}WHERE number IN ({which})", {"note": note})
    return CancelState.CANCELLED


def _locked(dialect: Dialect, border: Border, of_transaction: str, values: dict[str, Any]) -> dict[int, int]:
    """Lock the rows of a transaction in the order of their index, and return their states as they are then, by number.

    First it finds the rows without a lock, then it names each by its number: so MariaDB and MySQL lock no gap of an
    index, in which other transactions insert their rows.
    """
    later = dialect.tables.later
    sql = f"SELECT number, state FROM {later} WHERE {of_transaction} ORDER BY message_index"  # noqa: S608
    found = {int(row[0]): int(row[1]) for row in border.rows(sql, values)}
    if dialect.family == SQLITE:  # the caller's transaction holds the file
        return found
    states = {}
    for number in found:
        for row in border.rows(f"SELECT state FROM {later} WHERE number = {number} FOR UPDATE", {}):  # noqa: S608
            states[number] = int(row[0])
    return states


def waiting(dialect: Dialect, border: Border, ids: Iterable[bytes], kept_from_ms: int | None = None) -> set[bytes]:
    """Return the *ids* with a row that waits, or, with *kept_from_ms*, one of any state that was due then or later."""
    names, values = dialect.named(ids)
    if not values or not is_there(dialect, border):
        return set()
    kept = "" if kept_from_ms is None else f" OR due >= {int(kept_from_ms)}"
    sql = (
        f"SELECT DISTINCT transaction_id FROM {dialect.tables.later} "  # noqa: S608
        f"WHERE transaction_id IN ({names}) AND (state = {WAITS}{kept})"
    )
    return {decode_id(row[0]) for row in border.rows(sql, values)}


def forget(dialect: Dialect, border: Border, ids: Sequence[bytes]) -> None:
    """Delete the records of *ids*, whose fence rows are pruned in the same transaction."""
    if ids and is_there(dialect, border):
        names, values = dialect.named(ids)
        border.change(f"DELETE FROM {dialect.tables.later} WHERE transaction_id IN ({names})", values)  # noqa: S608


def stats(dialect: Dialect, border: Border, group: str) -> tuple[int, int, float | None]:
    """Return how many rows of *group* wait and were cancelled, and the seconds until the next one is due."""
    if not is_there(dialect, border):
        return 0, 0, None
    sql = f"SELECT state, count(*) FROM {dialect.tables.later} WHERE producer_group = :producer_group GROUP BY state"  # noqa: S608
    found = {int(row[0]): int(row[1]) for row in border.rows(sql, {"producer_group": group})}
    next_ms = next_due_in_ms(dialect, border, group)
    return found.get(WAITS, 0), found.get(CANCELLED, 0), None if next_ms is None else next_ms / 1000


def relay_seen_ms(dialect: Dialect, border: Border) -> dict[str, int]:
    """Return for each group the time since a relay has last noted that it runs, where one ever did."""
    sql = (
        f"SELECT producer_group, {NOW_MS[dialect.family]} - until_ms FROM {dialect.tables.slot} "  # noqa: S608
        f"WHERE slot = {BELL} AND until_ms > 0"
    )
    return {str(row[0]): max(int(row[1]), 0) for row in border.rows(sql, {})}


def waits(dialect: Dialect, border: Border, group: str) -> bool:
    """Return whether a row of a group waits until it is due."""
    if not is_there(dialect, border):
        return False
    sql = f"SELECT 1 FROM {dialect.tables.later} WHERE producer_group = :producer_group AND state = {WAITS} LIMIT 1"  # noqa: S608
    return bool(border.rows(sql, {"producer_group": group}))


def waiting_by_group(dialect: Dialect, border: Border) -> dict[str, int]:
    """Return how many rows wait, by group."""
    sql = f"SELECT producer_group, count(*) FROM {dialect.tables.later} WHERE state = {WAITS} GROUP BY producer_group"  # noqa: S608
    return {str(row[0]): int(row[1]) for row in border.rows(sql, {})}
