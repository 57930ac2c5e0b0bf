"""What the databases of both ends hold: business rows by transaction, inbox rows, and a second look at the fence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from txcore.audit.verdicts import VIA_TABLE
from txcore.errors import BackendUnavailableError, ConfigError, UsageError
from txcore.ids import ID_BYTES, id_text
from txcore_spark.effects.asked import Consumer
from txcore_spark.readers.failures import first_line
from txcore_spark.readers.fence import as_bytes, bound, place_of

PAGE_ROWS: Final = 10_000
IDS_MAX: Final = 500
"""Most ids in one statement."""
COMMITTED: Final = frozenset({1, *VIA_TABLE})
"""States of a fence row whose business transaction has committed."""
ANSWERED: Final = COMMITTED | {4}
"""The same, and the state in which an operator has answered for it."""
BUSINESS: Final = pa.schema([("tx", pa.binary()), ("name", pa.string()), ("rows", pa.int64())])
"""Business rows of one transaction; `tx` is null where the row's id is none."""
INBOX: Final = pa.schema([("tx", pa.binary()), ("index", pa.int32())])


def business_rows(url: str, sql: str, first: bytes, until: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the transactions that a query names, with the number of rows of each.

    Args:
        first, until: Ids for `:first` and `:until` in the query, which may leave out what is not between them.

    Raises:
        BackendUnavailableError: the database does not answer.
        UsageError: the query does not return an id and a number.
    """
    bounds = {name: id_text(each) for name, each in (("first", first), ("until", until)) if f":{name}" in sql}
    with _reading(url, "the business rows") as connection:
        found = connection.execution_options(stream_results=True, max_row_buffer=PAGE_ROWS).execute(text(sql), bounds)
        if not found.returns_rows or len(found.keys()) != 2:
            raise UsageError("`business` must return two columns: a transaction id, and the number of its rows")
        while page := found.fetchmany(PAGE_ROWS):
            yield pa.RecordBatch.from_pylist([_business(*row) for row in page], BUSINESS)


def answered_of(url: str, table: str, group: str, ids: Collection[bytes]) -> set[bytes]:
    """Return those of *ids* whose rows in a fence table are committed, or answered by an operator, now."""
    found, wanted = set[bytes](), sorted(ids)
    with _reading(url, "the fence table") as connection:
        for start in range(0, len(wanted), IDS_MAX):
            part = wanted[start : start + IDS_MAX]
            values = {f"id_{number}": bound(connection, each) for number, each in enumerate(part)}
            names = ", ".join(place_of(connection, name) for name in values)
            sql = f"SELECT transaction_id, state FROM {table} WHERE transaction_id IN ({names}) AND producer_group = :g"
            rows = connection.execute(text(sql), {**values, "g": group})
            found.update(as_bytes(each) for each, state in rows if int(state) in ANSWERED)
    return found


def inbox_rows(consumer: Consumer, group: str, first: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a group's messages in an inbox, from an id on, in pages."""
    with _reading(consumer.database, f"the inbox {consumer.inbox}") as connection:
        sql = (
            f"SELECT transaction_id, message_index FROM {consumer.inbox} "
            f"WHERE transaction_id >= {place_of(connection, 'first')} AND producer_group = :g"
        )
        found = connection.execution_options(stream_results=True, max_row_buffer=PAGE_ROWS).execute(
            text(sql), {"first": bound(connection, first), "g": group}
        )
        while page := found.fetchmany(PAGE_ROWS):
            yield pa.RecordBatch.from_pylist([{"tx": as_bytes(tx), "index": int(index)} for tx, index in page], INBOX)


def _business(identity: Any, rows: Any) -> Mapping[str, Any]:
    count = int(rows or 0)
    if identity is None:
        return {"tx": None, "name": "", "rows": count}
    try:
        tx = as_bytes(identity)
    except (TypeError, ValueError):
        tx = b""
    if len(tx) != ID_BYTES:
        return {"tx": None, "name": str(identity), "rows": count}
    return {"tx": tx, "name": id_text(tx), "rows": count}


@contextmanager
def _reading(url: str, what: str) -> Iterator[Connection]:
    engine = create_engine(url)
    if engine.dialect.is_async:
        raise ConfigError("the audit takes a blocking driver", key="database")
    try:
        with engine.connect() as connection:
            yield connection
            connection.rollback()
    except SQLAlchemyError as error:
        raise BackendUnavailableError(f"{what} cannot be read: {first_line(error)}") from error
    finally:
        engine.dispose()
