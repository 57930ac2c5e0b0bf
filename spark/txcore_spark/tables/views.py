"""Questions in SQL to the results of a store: views over its tables and its landed rows, computed by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from txcore.errors import UsageError
from txcore.operator.formatting import iso
from txcore.records import OpKind
from txcore_spark.engines.duck_sql import literal, quoted
from txcore_spark.rows import SCHEMA, Kind
from txcore_spark.store import Store
from txcore_spark.tables.schemas import FINDINGS, SCHEMAS

KINDS: Final = {Kind.HALF: "half", Kind.OP: "op", Kind.TARGET: "target", Kind.ROW: "row", Kind.PARKED: "parked"}
"""Kinds of landed rows that are shown, by the names that they have in a finding's places."""
OPEN: Final = "open_findings"
RECORDS: Final = "records"
TRANSACTIONS: Final = "transactions"
VIEWS: Final = (*SCHEMAS, OPEN, RECORDS, TRANSACTIONS)
_LANDED: Final = re.compile(rf"\b({RECORDS}|{TRANSACTIONS})\b", re.IGNORECASE)
_CUT: Final = 'NOT (source = {source} AND "partition" = {partition} AND "position" >= {end})'
_RECORDS_OF: Final = """
SELECT tx, {identity} AS transaction_id, {kind} AS kind, {op} AS op, {group} AS producer_group, {broker} AS broker,
    {source} AS log, "partition", "position", "index" AS message, "count" AS messages, topic, generation,
    CASE WHEN kind = {row} THEN code END AS fence_state, "text",
    CASE WHEN ts_ms > 0 THEN to_timestamp(ts_ms / 1000) END AS recorded_at, place
FROM landed WHERE kind IN ({kinds}) AND tx <> unhex(repeat('00', 16))
"""
_TRANSACTIONS_OF: Final = """
SELECT transaction_id, max(producer_group) AS producer_group,
    to_timestamp(CAST('0x' || substring(hex(any_value(tx)), 1, 12) AS BIGINT) / 1000) AS born_at,
    max(messages) FILTER (kind = 'half') AS messages,
    count(DISTINCT message) FILTER (kind = 'target') AS targets,
    count(DISTINCT (log, "partition", "position")) FILTER (kind = 'half') AS halves,
    count(*) FILTER (op = 'COMMIT') AS commits, count(*) FILTER (op = 'ROLLBACK') AS rollbacks,
    max_by(fence_state, place) FILTER (kind = 'row') AS fence_state,
    min(recorded_at) AS first_at, max(recorded_at) AS last_at
FROM facts GROUP BY transaction_id
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, with the names of its columns; its times are texts in UTC, its bytes texts in hex."""

    columns: list[str]
    rows: list[list[Any]]

    def as_builtin(self) -> list[dict[str, Any]]:
        """Return the rows for programs."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(store: Store, sql: str) -> Answer:
    """Return the answer to one SELECT over the views of a store; nothing can be changed by it.

    Raises:
        UsageError: the store has no tables, or *sql* is no SELECT that can be computed.
    """
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET autoinstall_known_extensions = false")
        # Arrow applies a pushed filter to the texts as delta-rs wrote them, a type that its comparisons do not have.
        connection.execute("SET disabled_optimizers = 'filter_pushdown'")
        _define(connection, store, with_landed=bool(_LANDED.search(sql)))
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            statements = connection.extract_statements(sql)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise UsageError("txcore audit sql takes one SELECT and changes nothing")
            found: pa.Table = connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise UsageError(_sentence(error)) from error
    return Answer(found.column_names, [list(row) for row in zip(*map(_values, found.columns), strict=True)])


def _define(connection: duckdb.DuckDBPyConnection, store: Store, *, with_landed: bool) -> None:
    for name, schema in SCHEMAS.items():
        place = store.table(name)
        if not DeltaTable.is_deltatable(place):
            raise UsageError(f"{store.uri} has no tables yet: txcore audit writes them, unless audit.tables is false")
        files = pa.table(DeltaTable(place).get_add_actions())["path"].to_pylist()
        connection.register(name, store.table_files(name, files, schema) if files else schema.empty_table())
    connection.execute(f"CREATE TEMP VIEW {OPEN} AS SELECT * FROM {FINDINGS} WHERE closed_run IS NULL")
    if with_landed:
        _define_landed(connection, store)


def _define_landed(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    """Define the views of the rows on which the newest run with landed rows builds."""
    manifest = next((each for each in store.newest_first() if each["rows"]), None)
    connection.register("nothing", SCHEMA.empty_table())
    parts = ["SELECT * FROM nothing"]
    shown = ", ".join(map(quoted, SCHEMA.names))
    for number, part in enumerate(store.parts(manifest) if manifest else ()):
        connection.register(f"landed_{number}", part.data)
        holds = ["TRUE", *(_CUT.format(**each) for each in part.cuts)]
        parts.append(f"SELECT {shown} FROM landed_{number} WHERE {' AND '.join(holds)}")
    connection.execute(f"CREATE TEMP VIEW landed AS {' UNION ALL '.join(parts)}")
    connection.execute(f"CREATE TEMP VIEW facts AS {_records_of(manifest or {})}")
    connection.execute(f"CREATE TEMP VIEW {RECORDS} AS SELECT * EXCLUDE (tx, place) FROM facts")
    connection.execute(f"CREATE TEMP VIEW {TRANSACTIONS} AS {_TRANSACTIONS_OF}")


def _records_of(manifest: Mapping[str, Any]) -> str:
    sources = {each["number"]: each["topic"] or f"{each['name']}.{each['log']}" for each in manifest.get("sources", ())}
    digits = "lower(hex(tx))"
    parts = (f"substring({digits}, {first}, {size})" for first, size in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12)))
    return _RECORDS_OF.format(
        identity=" || '-' || ".join(parts),
        kind=_named("kind", {int(number): name for number, name in KINDS.items()}),
        op=f"CASE WHEN kind = {int(Kind.OP)} THEN {_named('code', {int(each): each.name for each in OpKind})} END",
        group=_named('"group"', {number: name for name, number in manifest.get("groups", {}).items()}),
        broker=_named("backend", {number: name for name, number in manifest.get("backends", {}).items()}),
        source=_named("source", sources),
        row=int(Kind.ROW),
        kinds=", ".join(str(int(each)) for each in KINDS),
    )


def _named(column: str, names: Mapping[int, str]) -> str:
    cases = " ".join(f"WHEN {number} THEN {literal(name)}" for number, name in names.items())
    return f"CASE {column} {cases} END" if cases else "CAST(NULL AS VARCHAR)"


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield a column's values as JSON has them."""
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        yield from (None if each is None else iso(each // 1000) for each in micros)
    else:
        yield from map(_plain, column.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):  # a sum of integers
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _sentence(error: BaseException) -> str:
    """Return what is wrong with a query, without the picture of the place in it."""
    lines = [line.strip() for line in str(error).partition("LINE ")[0].splitlines()]
    return " ".join(line for line in lines if line)
