"""The fence, backend and producer of a Django process, made from its settings when first needed."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import sqlalchemy
from django.conf import settings
from django.db import connections

import txcore
from txcore.errors import ConfigError
from txcore.port import Backend


@dataclass(frozen=True, slots=True)
class Settings:
    """The project's TXCORE setting."""

    broker: str
    group: str
    database: str = "default"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The objects that are made once in a process."""

    settings: Settings
    backend: Backend
    fence: txcore.SqlFence
    producer: txcore.TransactionProducer


def read_settings() -> Settings:
    """Return the TXCORE setting.

    Raises:
        ConfigError: it is missing, or a key is missing or unknown.
    """
    given = getattr(settings, "TXCORE", None)
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(
            'settings.TXCORE must be {"broker": URL, "group": NAME}, and "database" if it is not "default"',
            key="TXCORE",
        ) from error


def engine_of(alias: str) -> sqlalchemy.Engine:
    """Return a SQLAlchemy engine on one of the project's databases, for the fence's own connections.

    Raises:
        ConfigError: the database is neither PostgreSQL nor a SQLite file.
    """
    wrapper = connections[alias]
    given = wrapper.settings_dict
    if wrapper.vendor == "sqlite" and not wrapper.is_in_memory_db():
        return sqlalchemy.create_engine(f"sqlite:///{given['NAME']}")
    if wrapper.vendor == "postgresql":
        return sqlalchemy.create_engine(
            sqlalchemy.URL.create(
                "postgresql+psycopg",
                given["USER"] or None,
                given["PASSWORD"] or None,
                given["HOST"] or None,
                int(given["PORT"]) if given["PORT"] else None,
                given["NAME"],
            )
        )
    raise ConfigError(f"the fence needs PostgreSQL or a SQLite file; DATABASES[{alias!r}] is neither", key="database")


def runtime() -> Runtime:
    """Return the shared objects of this process; a forked child makes its own.

    Raises:
        ConfigError: see `read_settings` and `engine_of`; or the broker's URL is wrong.
        BackendUnavailableError: the broker cannot be reached.
    """
    return _runtime_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _runtime_of(_process: int) -> Runtime:
    chosen = read_settings()
    fence = txcore.SqlFence(engine_of(chosen.database))
    backend = txcore.connect(chosen.broker)
    return Runtime(chosen, backend, fence, txcore.TransactionProducer(backend, chosen.group, fence=fence))
