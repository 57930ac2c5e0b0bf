"""Engines on the database URLs of commands and of configuration files; each mistake in one is one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from txcore.errors import BackendNotInstalledError, UsageError

EXTRAS: Final = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
"""Names of extras, by the database whose driver they install."""


def open_engine(
    url: str, user: str, options_of: Callable[[URL], dict[str, Any]], mistake: Callable[[str], UsageError] = UsageError
) -> Engine:
    """Return an engine on *url*; nothing is connected yet.

    Args:
        url: A URL of SQLAlchemy.
        user: The name of the program that opens it, for texts: the doctor, the demo.
        options_of: Called with the parsed URL; returns the options of the engine, or raises the error in it.
        mistake: Makes the error for a text.

    Raises:
        UsageError: not a database URL, or an asynchronous driver; as *mistake* makes it.
        BackendNotInstalledError: the database's driver is missing; the text names the extra.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite" and url.count("@") > 1:
            raise mistake("the database URL has two @: encode those of a password by %")
        if parsed.get_dialect().is_async:
            raise mistake(f"{parsed.drivername} is an asynchronous driver; {user} needs a synchronous driver")
        return create_engine(parsed, **options_of(parsed))
    except (ArgumentError, NoSuchModuleError, ValueError):  # their texts may hold the password
        raise mistake("SQLAlchemy does not know this database URL") from None
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(parsed.get_backend_name())
        if extra is None:
            raise mistake(f"{parsed.drivername} needs the Python package {error.name}; install it") from error
        raise BackendNotInstalledError(parsed.drivername, str(error.name), extra) from error


def connect_timeout(url: URL, timeout_s: float) -> dict[str, int]:
    """Return the driver's arguments for a longest time to connect, at least 1 s; none for a file."""
    return {"connect_timeout": max(round(timeout_s), 1)} if url.get_backend_name() in EXTRAS else {}
