"""Two sides that a command compares in DuckDB, as tables in a file that it may spill to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa


class Sides:
    """A database of one comparison. Used by one thread; `close` it."""

    def __init__(self, path: Path, schemas: Mapping[str, pa.Schema]) -> None:
        self._database = duckdb.connect(str(path))
        for name, schema in schemas.items():
            self.make(name, schema)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def make(self, name: str, schema: pa.Schema) -> None:
        """Make an empty table, in place of another one of this name."""
        with self.given(name="empty", table=schema.empty_table()):
            self.run(f"CREATE OR REPLACE TABLE {name} AS FROM empty")

    def add(self, name: str, tables: Iterable[pa.Table]) -> None:
        """Add rows to a table; columns by name."""
        for each in tables:
            with self.given(name="batch", table=each):
                self.run(f"INSERT INTO {name} BY NAME FROM batch")

    @contextmanager
    def given(self, name: str, table: pa.Table) -> Iterator[None]:
        """Within the block, statements may read *table* under this name."""
        self._database.register(name, table)
        try:
            yield
        finally:
            self._database.unregister(name)

    def run(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Run a statement."""
        self._database.execute(sql, values)

    def all(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return self._database.execute(sql, values).fetchall()
