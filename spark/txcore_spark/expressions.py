"""Expressions over the columns of a frame, without an engine: the audit's rules are written in them, once.

An expression is a tree of names. Each engine renders it in its own language (`txcore_spark.engines`), so no rule has a
second copy. Where an argument is a text, it names a column; a text as a value is written as `lit("text")`. Values that
are compared or chosen may be plain. Null is as in SQL: unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

TYPES: Final = ("bigint", "int", "string", "double")


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One node of an expression: a name, which the engines know, and its arguments."""

    name: str
    arguments: tuple[Any, ...]

    def __and__(self, other: Any) -> Column:
        return _pair("and", self, other)

    def __or__(self, other: Any) -> Column:
        return _pair("or", self, other)

    def __invert__(self) -> Column:
        return Column("not", (self,))

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return _pair("=", self, other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return _pair("!=", self, other)

    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> Column:
        return _pair("<", self, other)

    def __le__(self, other: Any) -> Column:
        return _pair("<=", self, other)

    def __gt__(self, other: Any) -> Column:
        return _pair(">", self, other)

    def __ge__(self, other: Any) -> Column:
        return _pair(">=", self, other)

    def __add__(self, other: Any) -> Column:
        return _pair("+", self, other)

    def __sub__(self, other: Any) -> Column:
        return _pair("-", self, other)

    def __mul__(self, other: Any) -> Column:
        return _pair("*", self, other)

    def __truediv__(self, other: Any) -> Column:
        return _pair("/", self, other)

    def __mod__(self, other: Any) -> Column:
        return _pair("%", self, other)

    def bits_and(self, mask: int) -> Column:
        """Return the bits that *mask* has too."""
        return _pair("bits_and", self, mask)

    def bits_or(self, mask: int) -> Column:
        """Return the bits with those of *mask*."""
        return _pair("bits_or", self, mask)

    def shifted_right(self, bits: int) -> Column:
        """Return a number without its lowest *bits*."""
        return Column("shifted_right", (self, bits))

    def isin(self, *values: Any) -> Column:
        """Return whether it is one of the values, which may also be one list; false without any."""
        known = values[0] if len(values) == 1 and isinstance(values[0], (list, tuple, set, frozenset)) else values
        return Column("isin", (self, *known))

    def between(self, low: Any, high: Any) -> Column:
        """Return whether it is at least *low* and at most *high*."""
        return _pair("and", _pair(">=", self, low), _pair("<=", self, high))

    def is_null(self) -> Column:
        """Return whether it has no value."""
        return Column("is_null", (self,))

    def is_not_null(self) -> Column:
        """Return whether it has a value."""
        return ~self.is_null()

    def cast(self, kind: str) -> Column:
        """Return the value as one of `TYPES`."""
        assert kind in TYPES
        return Column("cast", (self, kind))

    def alias(self, name: str) -> Column:
        """Return the value under this name."""
        return Column("alias", (self, name))

    def when(self, holds: Column, value: Any) -> Column:
        """Return a choice with one more case; only after `when`."""
        assert self.name == "when"
        return Column("when", (*self.arguments, (holds, value_of(value))))

    def otherwise(self, value: Any) -> Column:
        """Return a choice with the value for all other rows; only after `when`."""
        assert self.name == "when"
        return Column("otherwise", (self, value_of(value)))


Named: TypeAlias = "str | Column"


def _pair(name: str, left: Column, right: Any) -> Column:
    return Column(name, (left, value_of(right)))


def value_of(value: Any) -> Column:
    """Return a plain value as an expression."""
    return value if isinstance(value, Column) else lit(value)


def column_of(named: Any) -> Column:
    """Return the column that a text names; anything else as `value_of`."""
    return col(named) if isinstance(named, str) else value_of(named)


def output_name(column: Named) -> str:
    """Return the name of a selected column."""
    if isinstance(column, str):
        return column
    assert column.name in {"alias", "col"}, f"{column.name} needs a name"
    return str(column.arguments[-1])


def col(name: str) -> Column:
    """Return a column of the frame."""
    return Column("col", (name,))


def lit(value: Any) -> Column:
    """Return a constant: a number, a text, bytes, a truth value, or None for null."""
    return Column("lit", (value,))


def when(holds: Column, value: Any) -> Column:
    """Return *value* where a condition holds, else what the later cases say; null without one."""
    return Column("when", ((holds, value_of(value)),))


def coalesce(*columns: Any) -> Column:
    """Return the first value that is not null."""
    return _call("coalesce", columns)


def greatest(*columns: Any) -> Column:
    """Return the largest value; nulls do not count."""
    return _call("greatest", columns)


def least(*columns: Any) -> Column:
    """Return the smallest value; nulls do not count."""
    return _call("least", columns)


def quotient(column: Any, divisor: int) -> Column:
    """Return a whole number of at least 0, below 2**52, divided by another one, without the rest."""
    return Column("quotient", (column_of(column), lit(divisor)))


def ceil(column: Column) -> Column:
    """Return the next whole number."""
    return _call("ceil", [column])


def log(column: Column) -> Column:
    """Return the natural logarithm."""
    return _call("log", [column])


def bit(column: Any, last: int) -> Column:
    """Return a number with the bit of this number, at most *last*, set."""
    return Column("bit", (least(column, lit(last)),))


def bit_count(column: Any) -> Column:
    """Return how many bits are set."""
    return _call("bit_count", [column])


def born_ms(identity: str = "tx") -> Column:
    """Return the time in a transaction id."""
    return _call("born_ms", [identity])


def hex_text(column: Any) -> Column:
    """Return bytes as hexadecimal text in lower case."""
    return _call("hex_text", [column])


def signed_of_hex(column: Column, first: int) -> Column:
    """Return the signed 64-bit number that 16 hexadecimal digits from digit *first* (the first is 1) hold."""
    return Column("signed_of_hex", (column, first))


def concat(*columns: Any) -> Column:
    """Return texts after one another; null if one is null."""
    return _call("concat", columns)


def lookup(names: Mapping[int, str], column: Column) -> Column:
    """Return the name of a number; a number without one as text."""
    return Column("lookup", (column, tuple(names.items())))


def texts(*columns: Column) -> Column:
    """Return a list of the texts that are not null."""
    return _call("texts", columns)


def texts_with(first: Column, second: Column) -> Column:
    """Return two lists of texts as one."""
    return _call("texts_with", [first, second])


def record(*columns: Named) -> Column:
    """Return named values as one value; such values are equal and sorted in the order of their parts."""
    return Column("record", columns)


def size(column: Any) -> Column:
    """Return the length of a list."""
    return _call("size", [column])


def explode(column: Any) -> Column:
    """Return one row for each item of a list; a column of a `select` only."""
    return _call("explode", [column])


def following(column: str, default: int, *, within: Sequence[str], order: str) -> Column:
    """Return the next row's value among the rows that are equal *within* these columns, in this order."""
    return Column("following", (column, default, tuple(within), order))


def count_of(column: Any = None) -> Column:
    """Return the number of rows where *column* is not null; of all rows without one."""
    return Column("count", () if column is None else (column_of(column),))


def sum_of(column: Any) -> Column:
    """Return the sum, a 64-bit number; the run fails if it does not fit."""
    return _call("sum", [column])


def try_sum_of(column: Any) -> Column:
    """Return the sum, a 64-bit number; null if it does not fit."""
    return _call("try_sum", [column])


def min_of(column: Any) -> Column:
    """Return the smallest value."""
    return _call("min", [column])


def max_of(column: Any) -> Column:
    """Return the largest value."""
    return _call("max", [column])


def bit_or_of(column: Any) -> Column:
    """Return the bits that any value has."""
    return _call("bit_or", [column])


def bit_xor_of(column: Any) -> Column:
    """Return the bits that an odd number of values have."""
    return _call("bit_xor", [column])


def any_of(column: Any) -> Column:
    """Return one of the values that are not null."""
    return _call("any", [column])


def some_of(column: Any, count_max: int) -> Column:
    """Return the first of the different values, sorted, as a list."""
    return Column("some", (column_of(column), count_max))


def sha256_of(parts: str, order: str) -> Column:
    """Return the SHA-256, as hexadecimal text, of all bytes in *parts* that are not null, in this order."""
    return Column("sha256", (column_of(parts), column_of(order)))


def any_holds(conditions: Iterable[Column]) -> Column:
    """Return whether one of these conditions holds; false without any."""
    found = lit(False)
    for condition in conditions:
        found = found | condition
    return found


def _call(name: str, columns: Iterable[Any]) -> Column:
    return Column(name, tuple(column_of(each) for each in columns))
