"""Expressions as SQL of DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from txcore_spark.expressions import Column, Named, output_name

INT_MAX: Final = (1 << 31) - 1
_TYPES: Final = {"bigint": "BIGINT", "int": "INTEGER", "string": "VARCHAR", "double": "DOUBLE"}
_OPERATORS: Final = {
    "and": "AND", "or": "OR", "=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "+": "+", "-": "-",
    "*": "*", "/": "/", "%": "%", "bits_and": "&", "bits_or": "|", "shifted_right": ">>", "quotient": "//",
}  # fmt: skip
_FORMS: Final[Mapping[str, str]] = {
    "not": "NOT {}",
    "is_null": "{} IS NULL",
    # An engine may compute a branch that is not chosen: a number below 0 must not fail there.
    "bit": "CAST(1 AS BIGINT) << CAST(greatest({}, 0) AS BIGINT)",
    "bit_count": "CAST(bit_count({}) AS INTEGER)",
    "born_ms": "CAST('0x' || substring(hex({}), 1, 12) AS BIGINT)",
    "hex_text": "lower(hex({}))",
    "ceil": "ceil({})",
    "log": "ln({})",
    "size": "len({})",
    "explode": "unnest({})",
    "texts_with": "list_concat({}, {})",
    "sum": "CAST(sum({}) AS BIGINT)",
    "try_sum": "TRY_CAST(sum({}) AS BIGINT)",
    "min": "min({})",
    "max": "max({})",
    "bit_or": "bit_or({})",
    "bit_xor": "bit_xor({})",
    "any": "any_value({})",
    "sha256": "sha256(unhex(coalesce(string_agg(hex({0}), '' ORDER BY {1}), '')))",
}


def sql_of(column: Named) -> str:
    """Return an expression, or the column of this name, as SQL."""
    if isinstance(column, str):
        return quoted(column)
    special = _SPECIAL.get(column.name)
    if special is not None:
        return special(*column.arguments)
    if column.name in _OPERATORS:
        left, right = map(_value, column.arguments)
        return f"({left} {_OPERATORS[column.name]} {right})"
    return f"({_FORMS[column.name].format(*map(sql_of, column.arguments))})"


def quoted(name: str) -> str:
    """Return a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """Return a constant as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (bytes, bytearray)):
        return f"unhex('{bytes(value).hex()}')"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        return f"CAST({value!r} AS DOUBLE)"
    return str(value) if -INT_MAX <= value <= INT_MAX else f"CAST({value} AS BIGINT)"


def _value(value: Any) -> str:
    return sql_of(value) if isinstance(value, Column) else literal(value)


def _cases(*cases: tuple[Column, Column]) -> str:
    return " ".join(f"WHEN {sql_of(holds)} THEN {sql_of(value)}" for holds, value in cases)


def _isin(column: Column, *values: Any) -> str:
    return f"({sql_of(column)} IN ({', '.join(map(_value, values))}))" if values else "FALSE"


def _lookup(column: Column, names: tuple[tuple[int, str], ...]) -> str:
    number = sql_of(column)
    cases = " ".join(f"WHEN {key} THEN {literal(name)}" for key, name in names)
    return f"CASE {number} {cases} ELSE CAST({number} AS VARCHAR) END" if names else f"CAST({number} AS VARCHAR)"


def _following(column: str, default: int, within: tuple[str, ...], order: str) -> str:
    parts = ", ".join(map(quoted, within))
    return f"lead({quoted(column)}, 1, {literal(default)}) OVER (PARTITION BY {parts} ORDER BY {quoted(order)})"


def _texts(*columns: Column) -> str:
    if not columns:
        return "CAST([] AS VARCHAR[])"
    return f"list_filter([{', '.join(map(sql_of, columns))}], lambda each: each IS NOT NULL)"


def _record(*columns: Named) -> str:
    parts = (f"{literal(output_name(each))}: {sql_of(_without_name(each))}" for each in columns)
    return f"{{{', '.join(parts)}}}"


def _without_name(column: Named) -> Named:
    return column.arguments[0] if isinstance(column, Column) and column.name == "alias" else column


def _some(column: Column, count_max: int) -> str:
    value = sql_of(column)
    found = f"list_sort(list(DISTINCT {value}) FILTER ({value} IS NOT NULL))"
    return f"coalesce(list_slice({found}, 1, {count_max}), [])"


def _signed_of_hex(column: Column, first: int) -> str:
    number = f"CAST(CAST('0x' || substring({sql_of(column)}, {first}, 16) AS UBIGINT) AS HUGEINT)"
    top = literal(1 << 63).replace("BIGINT", "HUGEINT")
    return f"CAST(CASE WHEN {number} >= {top} THEN {number} - {top} - {top} ELSE {number} END AS BIGINT)"


def _listed(function: str) -> Callable[..., str]:
    return lambda *columns: f"{function}({', '.join(map(sql_of, columns))})"


_SPECIAL: Final[Mapping[str, Callable[..., str]]] = {
    "col": quoted,
    "lit": literal,
    "alias": lambda column, name: f"{sql_of(column)} AS {quoted(name)}",
    "cast": lambda column, kind: f"CAST({sql_of(column)} AS {_TYPES[kind]})",
    "isin": _isin,
    "when": lambda *cases: f"CASE {_cases(*cases)} END",
    "otherwise": lambda choice, value: f"CASE {_cases(*choice.arguments)} ELSE {sql_of(value)} END",
    "coalesce": _listed("coalesce"),
    "greatest": _listed("greatest"),
    "least": _listed("least"),
    "count": lambda *columns: f"count({sql_of(columns[0]) if columns else '*'})",
    "concat": lambda *columns: f"({' || '.join(map(sql_of, columns))})",
    "lookup": _lookup,
    "following": _following,
    "texts": _texts,
    "record": _record,
    "some": _some,
    "signed_of_hex": _signed_of_hex,
}
