"""The line of each key in a TOML text; `tomllib` does not report it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any, Final

Path = tuple[str, ...]
STATEMENT_LINES_MAX: Final = 1_000


def lines_of(text: str) -> dict[Path, int]:
    """Return the line, counted from 1, of each table and key of *text*, which is valid TOML.

    Keys inside an inline table get the line where their statement begins.
    """
    found: dict[Path, int] = {}
    table: Path = ()
    for number, statement in _statements(text.splitlines()):
        paths = list(_paths(tomllib.loads(statement)))
        if statement.lstrip().startswith("["):
            table = max(paths, key=len, default=())
            paths = [table[:depth] for depth in range(1, len(table) + 1)]
        else:
            paths = [table + path for path in paths]
        for path in paths:
            found.setdefault(path, number)
    return found


def _statements(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each statement with the number of its first line; a statement may take several lines."""
    index = 0
    while index < len(lines):
        start, statement = index, lines[index]
        index += 1
        if not statement.strip() or statement.lstrip().startswith("#"):
            continue
        while not _is_complete(statement) and index < min(len(lines), start + STATEMENT_LINES_MAX):
            statement += "\n" + lines[index]
            index += 1
        if _is_complete(statement):
            yield start + 1, statement


def _is_complete(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _paths(table: dict[str, Any]) -> Iterator[Path]:
    for key, value in table.items():
        yield (key,)
        if isinstance(value, dict):
            for path in _paths(value):
                yield (key, *path)
