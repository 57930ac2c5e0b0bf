"""The table's side: every row of the outbox, and of the table that keeps its rows, in one consistent reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.operator.formatting import ms_of, ms_of_iso
from txcore.outbox.foreign_rows import message_of, uuid_of
from txcore_spark.outboxes.asked import Asked
from txcore_spark.outboxes.prints import body_print, header_prints, value_print
from txcore_spark.readers.failures import first_line

PAGE_ROWS: Final = 10_000
_OPEN: Final = (None, 0, "0", b"\0")
"""Values that a mark has before its row is sent, in columns of numbers, texts and bits."""
SCHEMA: Final = pa.schema(
    [
        ("id", pa.binary()),
        ("name", pa.string()),
        ("topic", pa.string()),
        ("created_ms", pa.int64()),
        ("is_kept", pa.bool_()),
        ("is_done", pa.bool_()),
        ("key", pa.int64()),
        ("body", pa.int64()),
        ("headers", pa.list_(pa.int64())),
    ]
)
"""A row of the outbox, `is_kept` if it is the kept copy; its parts are prints of 64 bits."""


class Table:
    """The outbox's database. Used by one thread; `close` it.

    Raises:
        ConfigError: an asynchronous driver.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        url = make_url(asked.database)
        own = {"json_deserializer": _undecoded} if url.get_backend_name() == "postgresql" else {}
        self._engine: Engine = create_engine(url, **own)
        if self._engine.dialect.is_async:
            raise ConfigError("the audit of an outbox takes a blocking driver", key="database")
        self._quote = self._engine.dialect.identifier_preparer.quote

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows as they are at one moment, the kept ones last.

        Raises:
            BackendUnavailableError: the database does not answer, or a table or column is missing.
        """
        layout, created = self._asked.layout, self._asked.created
        own = list(dict.fromkeys([*layout.columns, *filter(None, (created,))]))
        with self._reading() as connection:
            yield from self._batches(connection, self._asked.table, [*own, *filter(None, (layout.done,))])
            if self._asked.kept:
                yield from self._batches(connection, self._asked.kept, own)

    def present(self, wanted: Collection[bytes]) -> set[bytes]:
        """Return those of the *wanted* ids that have a row now, for messages of rows that were written meanwhile."""
        name, found = self._asked.layout.id, set[bytes]()
        with self._reading() as connection:
            for table in filter(None, (self._asked.table, self._asked.kept)):
                for page in self._pages(connection, table, [name]):
                    found.update(each for row in page if (each := uuid_of(row[name])) in wanted)
        return found

    def _batches(self, connection: Connection, table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for page in self._pages(connection, table, columns):
            found = [self._row(row, is_kept=table == self._asked.kept) for row in page]
            yield pa.RecordBatch.from_pylist(found, SCHEMA)

    def _row(self, row: Mapping[str, Any], *, is_kept: bool) -> dict[str, Any]:
        layout = self._asked.layout
        message = message_of(layout, row)
        return {
            "id": uuid_of(row[layout.id]),
            "name": _shown(row[layout.id]),
            "topic": message.topic,
            "created_ms": _time_ms(row[self._asked.created]) if self._asked.created else None,
            "is_kept": is_kept,
            "is_done": bool(layout.done) and row.get(layout.done) not in _OPEN,
            "key": None if message.key is None else value_print(message.key),
            "body": body_print(message.body),
            "headers": header_prints(message.headers),
        }

    def _pages(self, connection: Connection, table: str, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
        names = ", ".join(map(self._quote, columns))
        found = connection.execution_options(stream_results=True, max_row_buffer=PAGE_ROWS).execute(
            text(f"SELECT {names} FROM {table}")
        )
        while page := found.fetchmany(PAGE_ROWS):
            yield [dict(zip(columns, row, strict=True)) for row in page]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open one read-only view of the database."""
        try:
            with self._engine.connect() as connection:
                if self._engine.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN")  # its driver opens no transaction for a SELECT
                else:
                    connection.execution_options(isolation_level="REPEATABLE READ")
                try:
                    yield connection
                finally:
                    connection.rollback()
        except SQLAlchemyError as error:
            raise BackendUnavailableError(f"the outbox table cannot be read: {first_line(error)}") from error


def _undecoded(value: Any) -> str:
    """Return the text of a JSON column as the database has it: the driver would round its numbers."""
    return value if isinstance(value, str) else bytes(value).decode()


def _shown(identity: Any) -> str:
    return identity.hex() if isinstance(identity, bytes | memoryview) else str(identity)


def _time_ms(value: Any) -> int | None:
    """Return a column's time in milliseconds: a timestamp (UTC if it has no zone), text in ISO form, seconds or ms."""
    if isinstance(value, str):
        return ms_of_iso(value)
    if isinstance(value, datetime):
        return ms_of(value)
    if value is None:
        return None
    number = float(value)
    return round(number if number > SECONDS_MAX else number * 1000)


SECONDS_MAX: Final = 1e11
"""Largest number that is taken for seconds, and not for milliseconds."""
