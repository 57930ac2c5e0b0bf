"""The business database of a run: a SQLite file for each place, or one PostgreSQL server for the whole run."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final, Protocol

import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance import servers
from txcore_conformance.processes import ManagedProcess

NAMES: Final = ("sqlite", "postgresql")
INSERT_ORDER: Final = sqlalchemy.text("INSERT INTO orders (item) VALUES ('tea')")
PLAIN_INSERT_ORDER: Final = "INSERT INTO orders (item) VALUES ('tea')"


class Database(Protocol):
    """A database for the business rows.

    Attributes:
        description: Its kind and the durability of its commits.
        has_plain_driver: `connect` works, and many threads may write at once.
        pid: Id of the leading process of a server that this run has started, or None.
    """

    description: str
    has_plain_driver: bool
    pid: int | None

    def create(self, folder: Path) -> str:
        """Create an empty database with a table of orders; returns its SQLAlchemy URL."""

    def pool(self, size: int) -> dict[str, Any]:
        """Return the pool options of an engine for this number of callers."""

    def close(self) -> None:
        """Stop the database if this run has started it."""


class SqliteFile:
    """A file with WAL and synchronous=FULL; it has one writer, so callers wait for the one pooled connection."""

    description = "a SQLite file, WAL, synchronous=FULL"
    has_plain_driver = False
    pid: int | None = None

    def create(self, folder: Path) -> str:
        """See `Database.create`."""
        connection = sqlite3.connect(folder / "business.db")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        connection.close()
        return f"sqlite:///{folder / 'business.db'}"

    def pool(self, size: int) -> dict[str, Any]:  # noqa: ARG002
        """See `Database.pool`."""
        return {"pool_size": 1, "max_overflow": 0, "pool_timeout": 120}

    def close(self) -> None:
        """See `Database.close`."""


class Postgresql:
    """A server for this run only, which forces its log to the disk at each commit, as a production server does."""

    description = "PostgreSQL on this machine, fsync=on"
    has_plain_driver = True

    def __init__(self) -> None:
        self._server = servers.postgresql(fsync="on", full_page_writes="on", shared_buffers="128MB")
        self.pid = self._server.pid if isinstance(self._server, ManagedProcess) else None

    def create(self, folder: Path) -> str:  # noqa: ARG002 - the server has a folder of its own
        """See `Database.create`."""
        url = self._server.fresh_database()
        engine = sqlalchemy.create_engine(url)
        with engine.begin() as connection:
            connection.execute(
                sqlalchemy.text("CREATE TABLE orders (id bigserial PRIMARY KEY, item varchar(80) NOT NULL)")
            )
        engine.dispose()
        return url

    def pool(self, size: int) -> dict[str, Any]:
        """See `Database.pool`."""
        return {"pool_size": min(size, 100), "max_overflow": 2, "pool_timeout": 120}

    def close(self) -> None:
        """See `Database.close`."""
        self._server.remove()


def start_database(name: str) -> Database:
    """Start one of `NAMES`.

    Raises:
        ServerUnavailableError: the database's programs are not available on this machine.
    """
    return Postgresql() if name == "postgresql" else SqliteFile()


def make_engine(url: str, pool: dict[str, Any]) -> sqlalchemy.Engine:
    """Return an engine; on SQLite each commit reaches the disk."""
    engine = sqlalchemy.create_engine(url, **pool)
    _require_full(engine)
    return engine


def make_async_engine(url: str, pool: dict[str, Any]) -> Any:
    """Return an AsyncEngine of the same database; the caller disposes of it in its event loop."""
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:", 1), **pool)
    _require_full(engine.sync_engine)
    return engine


def _require_full(engine: sqlalchemy.Engine) -> None:
    if engine.dialect.name == "sqlite":
        sqlalchemy.event.listen(engine, "connect", _set_full)


def _set_full(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()
