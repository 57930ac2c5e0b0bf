"""Values that users give: one error text for every option, policy and bound out of range, or of a wrong type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from txcore.errors import ConfigError

Kind = type[int] | type[float]


def require(key: str, value: object, kind: Kind, low: float, high: float = math.inf) -> None:
    """Require that *value* is a number of this kind from *low* to *high*; a whole number counts as a float.

    Raises:
        ConfigError: it is not a number, or out of range; `key` names it.
    """
    kinds = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
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


def require_type(key: str, value: object, kind: type | tuple[type, ...], noun: str) -> None:
    """Require that *value* is of this *kind*, which *noun* describes.

    Raises:
        ConfigError: it is not; `key` names it.
    """
    if not isinstance(value, kind):
        raise _of_wrong_type(key, value, noun)


def require_place(backend: object, group: object, fence: object = None, plugins: object = ()) -> None:
    """Require an open backend, a group's name, a fence or None, and a list of plugins.

    A URL as the backend and an engine as the fence are common mistakes.

    Raises:
        ConfigError: one is of another type, or the group has no name; `key` names it.
    """
    if not hasattr(backend, "capabilities"):
        raise _of_wrong_type("backend", backend, "an open backend, as txcore.connect(url) returns")
    if not isinstance(group, str) or not group:
        raise ConfigError(f"group must be a name, not {group!r}", key="group")
    if fence is not None and not hasattr(fence, "check"):
        raise _of_wrong_type("fence", fence, "a fence such as txcore.SqlFence(engine)")
    if not isinstance(plugins, Sequence) or isinstance(plugins, str):
        raise _of_wrong_type("plugins", plugins, "a list of plugins")


def require_listener(listener: object, kind: type, owner: str) -> None:
    """Require that *listener* derives from *kind*, as *owner* calls it; its class alone is a common mistake.

    Raises:
        ConfigError: it does not.
    """
    if not isinstance(listener, kind):
        given = f"the class {listener.__name__}" if isinstance(listener, type) else type(listener).__name__
        text = f"listener must be an object that derives from {kind.__name__}, for {owner}; not {given}"
        raise ConfigError(text, key="listener")


def require_check_listener(listener: object) -> None:
    """Require that a checker can ask *listener*; its class alone is a common mistake.

    Raises:
        ConfigError: it is a class, or has no `check_local_transaction`.
    """
    if isinstance(listener, type):
        raise ConfigError(f"listener must be an object, not the class {listener.__name__}: make one", key="listener")
    if not callable(getattr(listener, "check_local_transaction", None)):
        raise _of_wrong_type("listener", listener, "an object with check_local_transaction(half)")


def _of_wrong_type(key: str, value: object, noun: str) -> ConfigError:
    return ConfigError(f"{key} must be {noun}, not {type(value).__name__}", key=key)


def _out_of_range(key: str, value: object, kind: Kind, low: float, high: float) -> ConfigError:
    noun = "whole number" if kind is int else "number of seconds" if key.endswith("_s") else "number"
    until = "" if high == math.inf else f" to {_text(high)}"
    return ConfigError(f"{key} is a {noun} from {_text(low)}{until}, not {value!r}", key=key)


def _text(number: float) -> str:
    return f"{number:g}" if abs(number) < 1_000_000 else f"{number:.0f}"
