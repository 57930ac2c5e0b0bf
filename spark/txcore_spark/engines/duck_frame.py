"""A frame of DuckDB: a query that is computed when its rows are wanted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import duckdb

from txcore_spark.engines.duck_sql import quoted, sql_of
from txcore_spark.expressions import Column, Named, output_name
from txcore_spark.frames import How

_JOINS: Final = {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "left_semi": "SEMI JOIN"}
_numbers: Final[Iterator[int]] = itertools.count(1)


class DuckFrame:
    """Implements `Frame` on a query."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, sql: str, columns: Sequence[str], table: str = ""
    ) -> None:
        self.connection = connection
        self.sql = sql
        self.columns = list(columns)
        self.table = table

    def _made(self, sql: str, columns: Sequence[str]) -> DuckFrame:
        return DuckFrame(self.connection, sql, columns)

    def where(self, holds: Column) -> DuckFrame:
        """See `Frame.where`."""
        return self._made(f"SELECT * FROM ({self.sql}) WHERE {sql_of(holds)}", self.columns)

    def select(self, *columns: Named) -> DuckFrame:
        """See `Frame.select`."""
        shown = ", ".join(map(sql_of, columns))
        return self._made(f"SELECT {shown} FROM ({self.sql})", [output_name(each) for each in columns])

    def with_column(self, name: str, value: Column) -> DuckFrame:
        """See `Frame.with_column`."""
        others: list[Named] = [value.alias(name) if each == name else each for each in self.columns]
        return self.select(*others, *([] if name in self.columns else [value.alias(name)]))

    def aggregate(self, by: Sequence[Named], *columns: Column) -> DuckFrame:
        """See `Frame.aggregate`."""
        shown = ", ".join(map(sql_of, [*by, *columns]))
        names = [output_name(each) for each in (*by, *columns)]
        places = ", ".join(str(number) for number in range(1, len(by) + 1))
        grouping = f" GROUP BY {places}" if by else ""
        return self._made(f"SELECT {shown} FROM ({self.sql}){grouping}", names)

    def join(self, other: DuckFrame, on: Sequence[str], how: How = "inner") -> DuckFrame:
        """See `Frame.join`."""
        if how == "left_anti":
            # A key that is null equals none, so its row stays.
            return self._beside(other, on, "ANTI JOIN", self.columns)
        if how == "left_semi":
            return self._beside(other, on, _JOINS[how], self.columns)
        rest = [each for each in (*self.columns, *other.columns) if each not in on]
        return self._beside(other, on, _JOINS[how], [*on, *rest])

    def _beside(self, other: DuckFrame, on: Sequence[str], kind: str, columns: Sequence[str]) -> DuckFrame:
        keys, shown = (", ".join(map(quoted, names)) for names in (on, columns))
        return self._made(f"SELECT {shown} FROM ({self.sql}) l {kind} ({other.sql}) r USING ({keys})", columns)

    def union(self, other: DuckFrame) -> DuckFrame:
        """See `Frame.union`."""
        shown = ", ".join(map(quoted, self.columns))
        both = f"SELECT {shown} FROM ({self.sql}) UNION ALL SELECT {shown} FROM ({other.sql})"
        return self._made(both, self.columns)

    def distinct(self) -> DuckFrame:
        """See `Frame.distinct`."""
        return self._made(f"SELECT DISTINCT * FROM ({self.sql})", self.columns)

    def one_of_each(self, names: Sequence[str]) -> DuckFrame:
        """See `Frame.one_of_each`."""
        return self._made(f"SELECT DISTINCT ON ({', '.join(map(quoted, names))}) * FROM ({self.sql})", self.columns)

    def small(self) -> DuckFrame:
        """See `Frame.small`: DuckDB knows the sizes."""
        return self

    def small_if_few(self) -> DuckFrame:
        """See `Frame.small_if_few`."""
        return self

    def spread(self, name: str) -> DuckFrame:  # noqa: ARG002 - there is nothing to exchange
        """See `Frame.spread`."""
        return self

    def kept(self) -> DuckFrame:
        """See `Frame.kept`: a temporary table, made now."""
        table = f"kept_{next(_numbers)}"
        self.connection.execute(f"CREATE TEMP TABLE {table} AS {self.sql}")
        return DuckFrame(self.connection, f"SELECT * FROM {table}", self.columns, table)

    def release(self) -> None:
        """See `Frame.release`."""
        self.connection.execute(f"DROP TABLE {self.table}")

    def collect(self) -> list[dict[str, Any]]:
        """See `Frame.collect`."""
        rows = self.connection.execute(self.sql).fetchall()
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def count(self) -> int:
        """See `Frame.count`."""
        found = self.connection.execute(f"SELECT count(*) FROM ({self.sql})").fetchone()
        return int(found[0]) if found else 0

    def is_empty(self) -> bool:
        """See `Frame.is_empty`."""
        return not self.connection.execute(f"SELECT 1 FROM ({self.sql}) LIMIT 1").fetchall()
