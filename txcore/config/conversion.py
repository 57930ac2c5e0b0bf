"""From a raw TOML table to the structs of `schema`, collecting every mistake instead of stopping at the first."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from txcore.config.lines import Path
from txcore.config.problems import unknown_key, wrong_value

S = TypeVar("S", bound=Struct)
Report = Callable[[Path, str], None]
SECRET_KEYS: Final = frozenset({"url"})
"""Keys whose values may hold a password and are never shown."""


def convert(raw: Any, struct: type[S], report: Report, path: Path = ()) -> S:
    """Return *raw* as *struct*; keys in error keep their defaults and are reported."""
    known = hints_of(struct)
    if not isinstance(raw, Mapping):
        report(path, f"must be a table with {', '.join(known)}")
        return struct()
    values: dict[str, Any] = {}
    for key, value in raw.items():
        place = (*path, key)
        if key not in known:
            report(place, unknown_key(key, value, list(known), _elsewhere(known, path)))
            continue
        inner, kind = section_of(known[key])
        if kind == "one" and inner is not None:
            values[key] = convert(value, inner, report, place)
        elif inner is not None:
            values[key] = _convert_each(value, inner, report, place)
        else:
            try:
                values[key] = msgspec.convert(value, known[key], strict=True)
            except msgspec.ValidationError as error:
                choices = choices_of(known[key])
                report(place, wrong_value(key, value, error, choices=choices, is_secret=key in SECRET_KEYS))
    return struct(**values)


def hints_of(struct: type[Struct]) -> dict[str, Any]:
    """Return the annotation of each key, with its bounds and description."""
    return get_type_hints(struct, include_extras=True)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the only values that *hint* allows; empty when it is not of that kind."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else ()


def section_of(hint: Any) -> tuple[type[Struct] | None, str]:
    """Return the struct that *hint* holds, and whether "one" of them or one "each" per name; None for a value."""
    origin = get_origin(hint)
    if origin is Annotated:
        return section_of(get_args(hint)[0])
    if origin is dict:
        return section_of(get_args(hint)[1])[0], "each"
    if origin in {Union, types.UnionType}:
        for each in get_args(hint):
            if each is not type(None):
                return section_of(each)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint, "one"
    return None, ""


def _convert_each(raw: Any, struct: type[S], report: Report, path: Path) -> dict[str, S]:
    if not isinstance(raw, Mapping):
        report(path, f"must hold a table for each name, such as [{path[-1]}.main]")
        return {}
    found = {}
    for name, value in raw.items():
        if not isinstance(value, Mapping):
            report((*path, name), f"must be a table: [{path[-1]}.{name}]")
            continue
        found[name] = convert(value, struct, report, (*path, name))
    return found


def _elsewhere(known: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the keys of the sections below this one, and where they belong."""
    found: dict[str, str] = {}
    for name, hint in known.items():
        inner, kind = section_of(hint)
        if inner is not None and kind == "one":
            section = ".".join((*path, name))
            found |= dict.fromkeys(hints_of(inner), f"[{section}]")
    return found
