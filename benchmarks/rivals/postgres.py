"""The business database: one PostgreSQL, one table of orders, and its rate without any message.

It skips fsync for every system alike: the comparison is of the work and the round trips, not of this machine's disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from txcore_conformance import servers

from benchmarks.drive import Drive
from benchmarks.rivals.system import BUSINESS, CALLERS, Row, callers

INSERT_ORDER: Final = "INSERT INTO orders (item) VALUES ('tea')"
_CREATE: Final = "CREATE TABLE orders (id bigserial PRIMARY KEY, item text NOT NULL)"
_DRIVER: Final = "postgresql+psycopg://"


@contextlib.contextmanager
def database() -> Iterator[str]:
    """Run a server with an empty table of orders; gives the database's URL as libpq reads it."""
    server = servers.postgresql()
    try:
        url = server.fresh_database().replace(_DRIVER, "postgresql://")
        with psycopg.connect(url) as connection:
            connection.execute(_CREATE)
        yield url
    finally:
        server.remove()


def sqlalchemy_url(url: str, driver: str = "psycopg") -> str:
    """Return the database's URL for SQLAlchemy."""
    return url.replace("postgresql://", f"postgresql+{driver}://")


class Connections:
    """One connection for each thread, all closed together."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._own = threading.local()
        self._all: list[psycopg.Connection[Any]] = []

    def get(self) -> psycopg.Connection[Any]:
        """Return this thread's connection."""
        if not hasattr(self._own, "connection"):
            self._own.connection = psycopg.connect(self._url)
            self._all.append(self._own.connection)
        connection: psycopg.Connection[Any] = self._own.connection
        return connection

    def close(self) -> None:
        """Close all connections."""
        for each in self._all:
            each.close()


def business_only(url: str, seconds: float) -> dict[Row, float]:
    """Measure the business row alone: plain psycopg, a connection for each thread."""
    connections = Connections(url)

    def call() -> None:
        connection = connections.get()
        connection.execute(INSERT_ORDER)
        connection.commit()

    try:
        Drive(0.3).threads(call, CALLERS)
        rate = Drive(seconds).threads(call, CALLERS).per_s
    finally:
        connections.close()
    return {Row(BUSINESS, f"{callers(CALLERS)}, psycopg", "/s"): rate}
