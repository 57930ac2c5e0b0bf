"""Engines from the URLs that a command is given; each mistake in one is one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from txcore.errors import BackendNotInstalledError, UsageError

EXTRAS: Final = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
"""Names of extras, by the database whose driver they install."""


def open_engine(url: str, command: str, options_of: Callable[[URL], dict[str, Any]]) -> Engine:
    """Return an engine on *url*; nothing is connected yet.

    Args:
        url: A URL of SQLAlchemy.
        command: Its name, for texts: doctor, demo.
        options_of: Called with the parsed URL; returns the options of the engine, or raises what is wrong with it.

    Raises:
        UsageError: not a database URL, or an asynchronous driver.
        BackendNotInstalledError: the database's driver is missing; the text names the extra.
    """
    try:
        parsed = make_url(url)
        if parsed.get_dialect().is_async:
            raise UsageError(f"the {command} needs a synchronous driver, not {parsed.drivername}")
        return create_engine(parsed, **options_of(parsed))
    except (ArgumentError, NoSuchModuleError) as error:
        raise UsageError(f"SQLAlchemy does not know this database URL: {error}") from error
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(parsed.get_backend_name())
        if extra is None:
            raise UsageError(f"{parsed.drivername} needs the Python package {error.name}; install it") from error
        raise BackendNotInstalledError(parsed.drivername, str(error.name), extra) from error
