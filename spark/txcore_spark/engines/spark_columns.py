"""Expressions as columns of Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import Window
from pyspark.sql import functions as F

from txcore_spark.expressions import Column

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "and": lambda left, right: left & right,
    "or": lambda left, right: left | right,
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "%": lambda left, right: left % right,
    "bits_and": lambda left, right: left.bitwiseAND(right),
    "bits_or": lambda left, right: left.bitwiseOR(right),
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: getattr(F, name)
        for name in (
            "coalesce", "greatest", "least", "ceil", "log", "bit_count", "concat", "size", "explode", "sum", "try_sum",
            "min", "max", "bit_or", "bit_xor",
        )
    },
    "not": lambda column: ~column,
    "is_null": lambda column: column.isNull(),
    "quotient": lambda column, divisor: F.floor(column / divisor),
    "bit": lambda column: F.call_function("shiftleft", F.lit(1).cast("bigint"), column),
    "born_ms": lambda identity: F.conv(F.hex(F.substring(identity, 1, 6)), 16, 10).cast("bigint"),
    "hex_text": lambda column: F.lower(F.hex(column)),
    "texts": lambda *columns: F.array_compact(F.array(*columns)) if columns else F.array().cast("array<string>"),
    "texts_with": F.concat,
    "count": lambda *columns: F.count(*columns or "*"),
    "any": lambda column: F.first(column, ignorenulls=True),
}  # fmt: skip


def spark_column(expression: str | Column) -> SparkColumn:
    """Return an expression, or the column of this name, as a column of Spark."""
    return _rendered(expression, {}) if isinstance(expression, Column) else F.col(_quoted(expression))


def _quoted(name: str) -> str:
    return f"`{name}`"


def _rendered(node: Column, known: dict[int, SparkColumn]) -> SparkColumn:
    """Return one node; parts that a tree has twice are rendered once."""
    if id(node) not in known:
        special = _SPECIAL.get(node.name)
        if special is not None:
            known[id(node)] = special(known, *node.arguments)
        else:
            call = _OPERATORS.get(node.name) or _FUNCTIONS[node.name]
            known[id(node)] = call(*(_rendered(each, known) for each in node.arguments))
    return known[id(node)]


def _lit(_: dict[int, SparkColumn], value: Any) -> SparkColumn:
    return F.lit(bytearray(value) if isinstance(value, bytes) else value)


def _isin(known: dict[int, SparkColumn], column: Column, *values: Any) -> SparkColumn:
    plain = [bytearray(each) if isinstance(each, bytes) else each for each in values]
    return _rendered(column, known).isin(plain)


def _when(known: dict[int, SparkColumn], *cases: tuple[Column, Column]) -> SparkColumn:
    found: Any = F
    for holds, value in cases:
        found = found.when(_rendered(holds, known), _rendered(value, known))
    chosen: SparkColumn = found
    return chosen


def _lookup(known: dict[int, SparkColumn], column: Column, names: tuple[tuple[int, str], ...]) -> SparkColumn:
    number = _rendered(column, known)
    pairs = [F.lit(each) for item in names for each in item]
    return F.coalesce(F.create_map(*pairs)[number], number.cast("string")) if pairs else number.cast("string")


def _following(
    _: dict[int, SparkColumn], column: str, default: int, within: tuple[str, ...], order: str
) -> SparkColumn:
    return F.lead(column, 1, default).over(Window.partitionBy(*within).orderBy(order))


def _sha256(known: dict[int, SparkColumn], parts: Column, order: Column) -> SparkColumn:
    part, number = _rendered(parts, known), _rendered(order, known)
    pairs = F.struct(number.alias("number"), part.alias("part"))
    ordered = F.array_sort(F.collect_list(F.when(part.isNotNull(), pairs)))
    return F.sha2(F.unhex(F.array_join(F.transform(ordered, lambda each: F.hex(each["part"])), "")), 256)


def _signed_of_hex(known: dict[int, SparkColumn], column: Column, first: int) -> SparkColumn:
    return F.conv(F.substring(_rendered(column, known), first, 16), 16, -10).cast("bigint")


_SPECIAL: Final[Mapping[str, Callable[..., SparkColumn]]] = {
    "col": lambda _, name: F.col(_quoted(name)),
    "lit": _lit,
    "alias": lambda known, column, name: _rendered(column, known).alias(name),
    "cast": lambda known, column, kind: _rendered(column, known).cast(kind),
    "isin": _isin,
    "when": _when,
    "otherwise": lambda known, choice, value: _rendered(choice, known).otherwise(_rendered(value, known)),
    "shifted_right": lambda known, column, bits: F.shiftright(_rendered(column, known), bits),
    "lookup": _lookup,
    "following": _following,
    "some": lambda known, column, count: F.slice(F.sort_array(F.collect_set(_rendered(column, known))), 1, count),
    "record": lambda _, *columns: F.struct(*map(spark_column, columns)),
    "sha256": _sha256,
    "signed_of_hex": _signed_of_hex,
}
