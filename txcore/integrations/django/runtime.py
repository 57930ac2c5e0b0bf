"""The fence, backend and producer of a Django process, made from its settings when first needed."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import sqlalchemy
from django.conf import settings
from django.db import connections

import txcore
from txcore.errors import ConfigError
from txcore.port import Backend

#: In the URL already, or types of Django's own rows.
_NOT_PASSED: Final = {"user", "password", "host", "port", "dbname", "cursor_factory", "context"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The project's TXCORE setting."""

    broker: str
    group: str
    database: str = "default"


@dataclass(frozen=True)
class Runtime:
    """The objects that are made once in a process."""

    settings: Settings
    backend: Backend
    fence: txcore.SqlFence

    @cached_property
    def producer(self) -> txcore.TransactionProducer:
        """The producer of all blocks. A checker needs none, and a broker that is down is asked again by the next block.

        Raises:
            NotJoinedError: the broker cannot be reached.
        """
        return txcore.TransactionProducer(self.backend, self.settings.group, fence=self.fence)


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
    """Return a SQLAlchemy engine on one of the project's databases, for connections of txcore's own.

    Raises:
        ConfigError: DATABASES lacks it, or it is neither PostgreSQL nor a SQLite file.
    """
    if alias not in connections:
        raise ConfigError(f"settings.TXCORE names database {alias!r}, which DATABASES does not have", key="database")
    wrapper = connections[alias]
    given = wrapper.settings_dict
    if wrapper.vendor == "sqlite" and (name := str(given["NAME"])) != ":memory:":
        # Django's test database in memory is file:…?cache=shared: it gets its tables, and a block refuses it.
        url = f"sqlite:///{name}" + ("&uri=true" if name.startswith("file:") else "")
        return sqlalchemy.create_engine(url, poolclass=sqlalchemy.QueuePool)
    if wrapper.vendor == "postgresql":
        address = sqlalchemy.URL.create(
            "postgresql+psycopg",
            given["USER"] or None,
            given["PASSWORD"] or None,
            given["HOST"] or None,
            int(given["PORT"]) if given["PORT"] else None,
            given["NAME"] or None,
        )
        as_django = wrapper.get_connection_params()  # of OPTIONS, too: sslmode, service, search_path
        arguments = {key: value for key, value in as_django.items() if key not in _NOT_PASSED}
        return sqlalchemy.create_engine(address, connect_args=arguments)
    raise ConfigError(f"the fence needs PostgreSQL or a SQLite file; DATABASES[{alias!r}] is neither", key="database")


def runtime() -> Runtime:
    """Return the shared objects of this process; a forked child makes its own.

    Raises:
        ConfigError: see `read_settings` and `engine_of`; or the broker's URL is wrong.
    """
    return _runtime_of(os.getpid())


def forget(*, setting: str, **_: Any) -> None:
    """End the shared objects, as a test has changed the setting: the next block makes others."""
    if setting == "TXCORE" and _runtime_of.cache_info().currsize:
        old = runtime()
        _runtime_of.cache_clear()
        if "producer" in vars(old):
            old.producer.close()
        old.backend.close()
        old.fence.engine.dispose()


@functools.lru_cache(maxsize=1)
def _runtime_of(_process: int) -> Runtime:
    chosen = read_settings()
    return Runtime(chosen, txcore.connect(chosen.broker), txcore.SqlFence(engine_of(chosen.database)))
