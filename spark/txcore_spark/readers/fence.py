"""Reading a fence table through SQLAlchemy in the order of its ids, in pages that bound the memory.

Each page is a statement of its own. That is sound: a row is judged as committed only when it was read as committed, and
rows leave the table only below the horizon, which is read last.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from txcore.audit.verdicts import CANCELLED, DROPPED, PARKED, SENT
from txcore.errors import BackendUnavailableError
from txcore.ids import ID_BYTES, born_ms, first_id_at
from txcore_spark.plan import Range, flushed

PAGE_ROWS: Final = 20_000


def read(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the range's groups and ids in a fence table."""
    rows, count = wanted.rows(), 0
    last = _before(wanted.lower)
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            table = wanted.source.name
            columns = f"{_state(connection, table)}, {_digest(connection, table)}"
            while page := _page(connection, wanted, columns, last):
                count += len(page)
                for transaction_id, state, content, group in page:
                    number = wanted.groups.get(group)
                    if number is not None:  # a database may compare names without their case
                        is_early = wanted.reading % 2 == 0
                        rows.add_fence_row(
                            transaction_id, state, wanted.reading, is_early=is_early, group=number, content=content
                        )
                last = page[-1][0]
                yield from flushed(rows)
    except SQLAlchemyError as error:
        raise BackendUnavailableError(f"the fence table cannot be read: {type(error).__name__}") from error
    finally:
        engine.dispose()
    rows.add_cover(wanted.start, wanted.end, count)
    yield rows.take()


def pruned_below(url: str, table: str) -> bytes:
    """Return the horizon of a fence table: an id below it may have lost its row.

    Raises:
        BackendUnavailableError: the database does not answer, or there is no such table.
    """
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            found = connection.execute(text(f"SELECT pruned_below FROM {table}_meta")).scalar()
    except SQLAlchemyError as error:
        raise BackendUnavailableError(f"the table {table}_meta cannot be read: {type(error).__name__}") from error
    finally:
        engine.dispose()
    return as_bytes(found)


def as_bytes(value: Any) -> bytes:
    """Return the bytes of an id that a database returned as uuid, text or bytes."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return uuid.UUID(value).bytes
    return bytes(value or bytes(ID_BYTES))


def _state(connection: Connection, table: str) -> str:
    """Return the expression for a row's state, in which the message table's content replaces state 3.

    It gives `PARKED` where a message is parked, otherwise 3 while a message waits, also for its time, `DROPPED` or
    `CANCELLED` when the rest was dropped or cancelled, and `SENT` when no message of the transaction is left.
    """
    if not _is_there(connection, f"SELECT 1 FROM {table}_msg WHERE 1 = 0"):
        return "f.state"
    worst = "max(CASE m.parked WHEN 1 THEN 3 WHEN 0 THEN 2 ELSE 1 END)"
    left = f"(SELECT {worst} FROM {table}_msg m WHERE m.transaction_id = f.transaction_id)"
    delayed = str(SENT)
    if _is_there(connection, f"SELECT 1 FROM {table}_later WHERE 1 = 0"):
        worst = "max(CASE l.state WHEN 0 THEN 2 WHEN 2 THEN 1 ELSE 0 END)"
        waits = f"(SELECT {worst} FROM {table}_later l WHERE l.transaction_id = f.transaction_id)"
        delayed = f"CASE {waits} WHEN 2 THEN 3 WHEN 1 THEN {CANCELLED} ELSE {SENT} END"
    says = f"CASE {left} WHEN 3 THEN {PARKED} WHEN 2 THEN 3 WHEN 1 THEN {DROPPED} ELSE {delayed} END"
    return f"CASE WHEN f.state = 3 THEN {says} ELSE f.state END"


def _digest(connection: Connection, table: str) -> str:
    """Return the expression for a row's digest."""
    return "f.digest" if _is_there(connection, f"SELECT digest FROM {table} WHERE 1 = 0") else "NULL"


def _is_there(connection: Connection, sql: str) -> bool:
    """Return whether *sql* runs; if not, the database was set up by an older txcore."""
    try:
        connection.execute(text(sql))
    except SQLAlchemyError:
        return False
    finally:
        connection.rollback()
    return True


def split(url: str, wanted: Range, records_max: int) -> list[Range]:
    """Cut a range by the times of its ids into ranges of about *records_max* rows, each numbered by its start.

    A database that does not answer gives one range, whose task says why it cannot be read.
    """
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            where, values = _where(connection, wanted, _before(wanted.lower))
            table = wanted.source.name
            count = connection.execute(text(f"SELECT count(*) FROM {table} f {where}"), values).scalar() or 0
            parts = -(-count // records_max)
            if parts < 2:
                return [wanted]
            ends = [
                connection.execute(text(f"SELECT f.transaction_id FROM {table} f {where} {order} LIMIT 1"), values)
                for order in ("ORDER BY f.transaction_id", "ORDER BY f.transaction_id DESC")
            ]
            first_ms, last_ms = (born_ms(as_bytes(end.scalar())) for end in ends)
    except SQLAlchemyError:
        return [wanted]
    finally:
        engine.dispose()
    cuts = [bytes(first_id_at(first_ms + (last_ms - first_ms) * n // parts)) for n in range(1, parts)]
    bounds = itertools.pairwise([wanted.lower, *sorted(set(cuts)), wanted.upper])
    return [
        replace(wanted, start=wanted.start + n, end=wanted.start + n + 1, lower=lower, upper=upper)
        for n, (lower, upper) in enumerate(bounds)
    ]


def _before(lower: bytes) -> bytes:
    """Return the id after which *lower* is the next one; the lowest id of all belongs to no transaction."""
    return (int.from_bytes(lower, "big") - 1).to_bytes(ID_BYTES, "big") if any(lower) else bytes(ID_BYTES)


def _page(
    connection: Connection, wanted: Range, columns: str, last: bytes
) -> list[tuple[bytes, int, bytes | None, str]]:
    """Return the next rows of the wanted groups and ids; the database sends no others.

    Args:
        columns: The expressions for state and digest.
    """
    where, values = _where(connection, wanted, last)
    sql = (
        f"SELECT f.transaction_id, {columns}, f.producer_group FROM {wanted.source.name} f {where} "
        "ORDER BY f.transaction_id LIMIT :page"
    )
    found = connection.execute(text(sql), {**values, "page": PAGE_ROWS})
    page = [(as_bytes(row[0]), int(row[1]), None if row[2] is None else bytes(row[2]), str(row[3])) for row in found]
    connection.rollback()
    return page


def _where(connection: Connection, wanted: Range, last: bytes) -> tuple[str, dict[str, Any]]:
    """Return the condition for the wanted rows after the id *last*, and its values."""
    names = {f"group_{number}": group for number, group in enumerate(wanted.groups)}
    bounds = {"last": last} | ({"upper": wanted.upper} if wanted.upper else {})
    below = f"AND f.transaction_id < {place_of(connection, 'upper')} " if wanted.upper else ""
    sql = (
        f"WHERE f.transaction_id > {place_of(connection, 'last')} {below}"
        f"AND f.producer_group IN ({', '.join(f':{name}' for name in names)})"
    )
    return sql, {name: bound(connection, each) for name, each in bounds.items()} | names


def place_of(connection: Connection, name: str) -> str:
    """Return the expression for an id that is bound as *name*."""
    return f"CAST(:{name} AS uuid)" if connection.dialect.name == "postgresql" else f":{name}"


def bound(connection: Connection, transaction_id: bytes) -> Any:
    """Return an id as a database takes it."""
    return str(uuid.UUID(bytes=transaction_id)) if connection.dialect.name == "postgresql" else transaction_id
