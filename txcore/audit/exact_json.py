"""JSON as it is: a name that an object has twice is refused, and no number is rounded."""

from __future__ import annotations

import json
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final, NoReturn

import msgspec

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", order="sorted")
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def exact_value(content: bytes) -> Any:
    """Return the value of JSON; a number with a point or an exponent is a Decimal without zeros at its end.

    Raises:
        ValueError: it is no JSON in UTF-8, is too deep, or has a name twice, of which programs read either one.
    """
    try:
        return json.loads(
            content.decode("utf-8"), parse_float=_number, parse_constant=_refused, object_pairs_hook=_object
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def exact_bytes(value: Any) -> bytes:
    """Return a value as JSON of one form: the names of an object in order, and no spaces.

    Raises:
        ValueError: a text in it is no UTF-8.
    """
    return _ENCODER.encode(value)


def _number(text: str) -> Decimal:
    try:
        return Decimal(text).normalize(_EXACT)
    except ArithmeticError:
        raise ValueError(f"{text[:40]} is no number") from None


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {doubled!r} twice")
    return found
