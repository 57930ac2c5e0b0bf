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
    """Yield the rows of the range's groups and ids in a fence table."""
    rows, count = wanted.rows(), 0
    last = wanted.lower or bytes(ID_BYTES)
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            expression = _state(connection, wanted.source.name)
            while page := _page(connection, wanted, expression, last):
                count += len(page)
                for transaction_id, state, group in page:
                    number = wanted.groups.get(group)
                    if number is not None:  # a database may compare names without their case
                        is_early = wanted.reading % 2 == 0
                        rows.add_fence_row(transaction_id, state, wanted.reading, is_early=is_early, group=number)
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


def _page(connection: Connection, wanted: Range, state: str, last: bytes) -> list[tuple[bytes, int, str]]:
    """Return the next rows of the wanted groups and ids; the database sends no others."""
    is_uuid = connection.dialect.name == "postgresql"
    names = {f"group_{number}": group for number, group in enumerate(wanted.groups)}
    below = f" AND f.transaction_id < {_id('upper', is_uuid=is_uuid)}" if wanted.upper else ""
    sql = (
        f"SELECT f.transaction_id, {state}, f.producer_group FROM {wanted.source.name} f "
        f"WHERE f.transaction_id > {_id('last', is_uuid=is_uuid)}{below} "
        f"AND f.producer_group IN ({', '.join(f':{name}' for name in names)}) "
        "ORDER BY f.transaction_id LIMIT :page"
    )
    bounds = {"last": last} | ({"upper": wanted.upper} if wanted.upper else {})
    values = {name: str(uuid.UUID(bytes=each)) if is_uuid else each for name, each in bounds.items()}
    found = connection.execute(text(sql), {**values, **names, "page": PAGE_ROWS})
    page = [(as_bytes(row[0]), int(row[1]), str(row[2])) for row in found]
    connection.rollback()
    return page


def _id(name: str, *, is_uuid: bool) -> str:
    return f"CAST(:{name} AS uuid)" if is_uuid else f":{name}"
