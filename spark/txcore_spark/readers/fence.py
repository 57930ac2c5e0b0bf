"""Reading a fence table through SQLAlchemy in the order of its ids, in pages that bound the memory.

Each page is a statement of its own. That is sound: a row is judged as committed only when it was read as committed, and
rows leave the table only below the horizon, which is read last.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from txcore.audit.verdicts import DROPPED, PARKED, SENT
from txcore.errors import BackendUnavailableError
from txcore.ids import ID_BYTES
from txcore_spark.plan import Range, flushed

PAGE_ROWS: Final = 20_000


def read(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fence table, beginning at the range's `lower` id."""
    rows, count = wanted.rows(), 0
    last = wanted.lower or bytes(ID_BYTES)
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            expression = _state(connection, wanted.source.name)
            while page := _page(connection, wanted.source.name, expression, last):
                count += len(page)
                for transaction_id, state, group in page:
                    number = wanted.groups.get(group, -1)
                    if number == wanted.place.group:
                        rows.add_fence_row(transaction_id, state, wanted.reading, is_early=wanted.reading % 2 == 0)
                last = page[-1][0]
                yield from flushed(rows)
    except SQLAlchemyError as error:
        raise BackendUnavailableError(f"the fence table cannot be read: {type(error).__name__}") from error
    finally:
        engine.dispose()
    rows.add_cover(0, count, count)
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

    It gives `PARKED` where a message is parked, otherwise 3 while a message waits, `DROPPED` when the rest was dropped,
    and `SENT` when the table holds no message of the transaction.
    """
    try:
        connection.execute(text(f"SELECT 1 FROM {table}_msg WHERE 1 = 0"))
    except SQLAlchemyError:
        return "f.state"  # no such table: the database was set up by an older txcore
    finally:
        connection.rollback()
    worst = "max(CASE m.parked WHEN 1 THEN 3 WHEN 0 THEN 2 ELSE 1 END)"
    left = f"(SELECT {worst} FROM {table}_msg m WHERE m.transaction_id = f.transaction_id)"
    says = f"CASE {left} WHEN 3 THEN {PARKED} WHEN 2 THEN 3 WHEN 1 THEN {DROPPED} ELSE {SENT} END"
    return f"CASE WHEN f.state = 3 THEN {says} ELSE f.state END"


def _page(connection: Connection, table: str, state: str, last: bytes) -> list[tuple[bytes, int, str]]:
    is_uuid = connection.dialect.name == "postgresql"
    sql = (
        f"SELECT f.transaction_id, {state}, f.producer_group FROM {table} f "
        f"WHERE f.transaction_id > {'CAST(:last AS uuid)' if is_uuid else ':last'} "
        "ORDER BY f.transaction_id LIMIT :page"
    )
    values = {"last": str(uuid.UUID(bytes=last)) if is_uuid else last, "page": PAGE_ROWS}
    found = [(as_bytes(row[0]), int(row[1]), str(row[2])) for row in connection.execute(text(sql), values)]
    connection.rollback()
    return found
