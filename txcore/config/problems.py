"""The mistakes of a configuration: each with its place, a sentence, and the probable intention."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from txcore.config.lines import Path
from txcore.errors import ConfigError

SECONDS: Final = "_s"
UNITS_S: Final[Mapping[str, float]] = {
    "ms": 0.001,
    "millis": 0.001,
    "milliseconds": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "mins": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
    "d": 86_400.0,
    "days": 86_400.0,
}
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the place of the setting, the key's full name, and a sentence."""

    key: str
    where: str
    text: str

    def __str__(self) -> str:
        """Return one line for a person."""
        return f"{self.where}: {self.key}: {self.text}" if self.key else f"{self.where}: {self.text}"


class ConfigFileError(ConfigError):
    """The configuration cannot be used; `problems` lists every mistake that was found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)), key=problems[0].key)
        self.problems = tuple(problems)


def key_text(path: Path) -> str:
    """Return a key's full name as it would be written in TOML."""
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in path)


def closest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?`, or "" when no known name is similar."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def unknown_key(key: str, value: Any, known: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    """Return the text for an unknown *key*, with the key that was probably meant.

    Args:
        elsewhere: Keys that neighbouring sections have, and the section's name.
    """
    seconds = _seconds_key(key, known)
    if seconds:
        amount = in_seconds(value, key)
        example = f" = {amount:g}" if amount is not None else ""
        return f"unknown key; durations are in seconds and end in _s: {seconds}{example}"
    if key in elsewhere:
        return f"unknown key; it belongs in {elsewhere[key]}"
    if suggestion := closest(key, known):
        return f"unknown key{suggestion}"
    if suggestion := closest(key, elsewhere):
        meant = difflib.get_close_matches(key, sorted(elsewhere), n=1)[0]
        return f"unknown key{suggestion[:-1]} (in {elsewhere[meant]})?"
    return f"unknown key; known here: {', '.join(known)}"


def wrong_value(
    key: str, value: Any, error: msgspec.ValidationError, *, choices: Sequence[Any] = (), is_secret: bool = False
) -> str:
    """Return the text for a wrong value, without repeating a secret one."""
    if key.endswith(SECONDS) and isinstance(value, str):
        amount = in_seconds(value, key)
        meant = f"; write {key} = {amount:g}" if amount is not None else ""
        return f"{value!r} is no number of seconds{meant}"
    said = str(error).replace("`", "")
    shown = "" if is_secret else f", not {_short(value)}"
    if choices:
        return f"must be {', '.join(choices[:-1])} or {choices[-1]}{shown}"
    if said.startswith("Expected"):
        expected = re.sub(r", got .*$", "", said.removeprefix("Expected "))
        return f"must be {_kind(expected)}{shown}"
    return f"{said[0].lower()}{said[1:]}{shown}"


def in_seconds(value: Any, key: str) -> float | None:
    """Return *value* in seconds, by its own unit ("500ms") or by that of its key (`immunity_ms`); None if unclear."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    unit = match[2].lower() or key.rpartition("_")[2]
    factor = UNITS_S.get(unit, 1.0 if not match[2] else None)
    return None if factor is None else round(float(match[1]) * factor, 6)


def _seconds_key(key: str, known: Sequence[str]) -> str:
    """Return the known key in seconds of which *key* names another unit, or none."""
    stem, _, unit = key.rpartition("_")
    for candidate in (f"{stem}_s" if unit in UNITS_S else "", f"{key}_s"):
        if candidate in known:
            return candidate
    return ""


def _kind(expected: str) -> str:
    words = {
        "int": "a whole number",
        "float": "a number",
        "str": "a text",
        "bool": "true or false",
        "object": "a table",
    }
    head, _, tail = expected.partition(" ")
    return f"{words.get(head, head)}{f' {tail}' if tail else ''}"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
