"""The sources of settings: the file, the environment, the command line; later ones override earlier ones.

Each setting remembers its origin, so that a mistake is reported where it was made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from txcore.config.conversion import hints_of, section_of
from txcore.config.lines import Path, lines_of
from txcore.config.problems import ConfigFileError, Problem, key_text
from txcore.config.schema import Config
from txcore.errors import ConfigError

FILE_NAME: Final = "txcore.toml"
FILE_BYTES_MAX: Final = 1 << 20
PREFIX: Final = "TXCORE_"
SEPARATOR: Final = "__"
SIMPLE_NAME: Final = "main"
"""Name of the backend and the database that come from `--broker` and `--database`."""


@dataclass(frozen=True, slots=True)
class Simple:
    """One group without a file; also by TXCORE_BROKER, TXCORE_GROUP and so on."""

    broker: str = ""
    group: str = ""
    database: str = ""
    listener: str = ""
    callback: str = ""


@dataclass(slots=True)
class Raw:
    """All settings as one table, and the origin of each."""

    table: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    file: FilePath | None = None

    def where(self, path: Path) -> str:
        """Return the origin of the setting at *path*, or of the section around it."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.origins:
                return self.origins[path[:depth]]
        return str(self.file) if self.file is not None else "settings"

    def put(self, path: Path, value: Any, origin: str) -> None:
        """Set one value; a value that is not a table on its path is replaced."""
        table = self.table
        for part in path[:-1]:
            inner = table.get(part)
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[path[-1]] = value
        self.origins[path] = origin


def read_file(path: FilePath) -> Raw:
    """Return the settings of a TOML file.

    Raises:
        ConfigFileError: the file cannot be read, or is not TOML; with the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigFileError([Problem("", str(path), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigFileError([Problem("", str(path), "is no UTF-8 text")]) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigFileError([Problem("", str(path), f"is larger than {FILE_BYTES_MAX} bytes")])
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError([Problem("", str(path), f"is no TOML: {error}")]) from error
    return Raw(table, {key: f"{path}:{line}" for key, line in lines_of(text).items()}, path)


def add_simple(raw: Raw, simple: Simple, environment: Mapping[str, str]) -> None:
    """Add the one group that flags or the environment describe."""
    given_by = {name: _given(simple, name, environment) for name in Simple.__dataclass_fields__}
    group, origin = given_by["group"]
    for key, name in (("group", "producer group"), ("broker", "broker")):
        if not given_by[key][0]:
            given = " and ".join(sorted(where for value, where in given_by.values() if value))
            raise ConfigError(f"{given}: name the {name} too, with --{key} or {PREFIX}{key.upper()}", key=key)
    for name, place in (
        ("broker", ("backends", SIMPLE_NAME, "url")),
        ("database", ("databases", SIMPLE_NAME, "url")),
        ("listener", ("groups", group, "listener")),
        ("callback", ("groups", group, "callback", "url")),
    ):
        value, where = given_by[name]
        if value:
            raw.put(place, value, where)
    raw.put(("groups", group, "backend"), SIMPLE_NAME, origin)
    if given_by["database"][0]:
        raw.put(("groups", group, "database"), SIMPLE_NAME, given_by["database"][1])


def is_simple(simple: Simple, environment: Mapping[str, str]) -> str:
    """Return the origin of one-group settings; "" when there are none."""
    for name in Simple.__dataclass_fields__:
        value, where = _given(simple, name, environment)
        if value:
            return where
    return ""


def add_environment(raw: Raw, environment: Mapping[str, str]) -> None:
    """Add every `TXCORE_SECTION__KEY`; names are matched without regard to case, `-` and `.`."""
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and SEPARATOR in name:
            path = _named(tuple(name.removeprefix(PREFIX).split(SEPARATOR)), raw.table)
            raw.put(path, _value(path, text), f"environment {name}")


def add_settings(raw: Raw, settings: Sequence[str]) -> None:
    """Add every `--set section.key=value`.

    Raises:
        ConfigError: one is not `key=value`.
    """
    for setting in settings:
        name, equals, text = setting.partition("=")
        try:
            path = _dotted(name)
        except tomllib.TOMLDecodeError:
            path = ()
        if not equals or not path:
            raise ConfigError("--set takes section.key=value", key="--set")  # what is given may hold a password
        raw.put(path, _value(path, text), f"--set {key_text(path)}")


def _given(simple: Simple, name: str, environment: Mapping[str, str]) -> tuple[str, str]:
    value: str = getattr(simple, name)
    if value:
        return value, f"--{name}"
    variable = f"{PREFIX}{name.upper()}"
    return environment.get(variable, ""), f"environment {variable}"


def _dotted(name: str) -> Path:
    path: list[str] = []
    table: Any = tomllib.loads(f"{name} = 0")
    while isinstance(table, dict):
        key, table = next(iter(table.items()))
        path.append(key)
    return tuple(path)


def _named(parts: Path, table: Any) -> Path:
    """Return *parts* as they are written in *table*, where they are; else in lower case."""
    path = []
    for part in parts:
        existing = table if isinstance(table, Mapping) else {}
        found = next((key for key in existing if _folded(key) == _folded(part)), part.lower())
        path.append(found)
        table = existing.get(found)
    return tuple(path)


def _folded(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _value(path: Path, text: str) -> Any:
    """Return *text* as a TOML value, or unchanged where the key takes a text or *text* is not TOML."""
    if _wants_text(path):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _wants_text(path: Path) -> bool:
    struct: Any = Config
    is_name = False
    for part in path:
        if is_name:
            is_name = False
            continue
        hint = hints_of(struct).get(part)
        inner, kind = section_of(hint)
        if inner is None:
            return getattr(hint, "__origin__", hint) is str
        struct, is_name = inner, kind == "each"
    return False
