"""Numbers that users give, and their ranges: one error text for every option, policy and bound out of range."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, cast

from txcore.errors import ConfigError

Kind = type[int] | type[float]


def require(key: str, value: object, kind: Kind, low: float, high: float = math.inf) -> None:
    """Require that *value* is a number of this kind from *low* to *high*; a whole number counts as a float.

    Raises:
        ConfigError: it is not a number, or out of range; `key` names it.
    """
    is_number = isinstance(value, Integral if kind is int else Real)  # numpy's, too
    if isinstance(value, bool) or not is_number or not low <= cast("float", value) <= high:
        raise _out_of_range(key, value, kind, low, high)


def require_bounds(bounds: Any, time_min_s: float) -> None:
    """Require that a dataclass's fields named `…_s` are times of at least *time_min_s*, and those named `…_max` counts.

    Raises:
        ConfigError: as `require`; a count is a whole number from 1.
    """
    for key in (each.name for each in fields(bounds)):
        if key.endswith("_s"):
            require(key, getattr(bounds, key), float, time_min_s)
        elif key.endswith("_max"):
            require(key, getattr(bounds, key), int, 1)


def parse(key: str, text: str, kind: Kind, low: float, high: float = math.inf) -> int | float:
    """Return the number in *text*, from *low* to *high*.

    Raises:
        ConfigError: as `require`.
    """
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise _out_of_range(key, text, kind, low, high)
    return value


def number_text(number: float) -> str:
    """Return a number without a needless fraction or exponent."""
    return f"{number:g}" if abs(number) < 1_000_000 else f"{number:.0f}"


def _out_of_range(key: str, value: object, kind: Kind, low: float, high: float) -> ConfigError:
    noun = "whole number" if kind is int else "number of seconds" if key.endswith("_s") else "number"
    until = "" if high == math.inf else f" to {number_text(high)}"
    return ConfigError(f"{key} is a {noun} from {number_text(low)}{until}, not {value!r}", key=key)
