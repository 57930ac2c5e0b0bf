"""SQLite's files, of brokers and of databases: a command that only looks must not make one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from txcore.backends.options import split_url
from txcore.errors import UsageError


def require_file(url: str, what: str) -> None:
    """Refuse the URL of an SQLite file that is missing: opening it would make an empty one.

    Args:
        url: The URL of a broker or a database; those of servers pass.
        what: "broker" or "database", for the text.

    Raises:
        UsageError: the file is missing.
        ConfigError: the URL cannot be split.
    """
    parts = split_url(url)
    name = parts.path.removeprefix("/")
    if parts.scheme.partition("+")[0] != "sqlite" or name in {"", ":memory:"} or name.startswith("file:"):
        return
    if not (Path(name).exists() or Path(unquote(name)).exists()):  # only a broker's URL encodes its file's name
        raise UsageError(f"there is no {what} file {name}")
