"""Plain psycopg connections, one per caller at a time, as in a service without SQLAlchemy."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from typing import Any

import psycopg
import sqlalchemy


class PlainPool:
    """A pool of open connections; a context manager that closes them."""

    def __init__(self, url: str, size: int) -> None:
        place = sqlalchemy.make_url(url)
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(size):
            self._idle.put(
                psycopg.connect(host=place.host, port=place.port, user=place.username, dbname=place.database)
            )
        self._size = size

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        """Lend one connection within the block."""
        connection = self._idle.get()
        try:
            yield connection
        finally:
            self._idle.put(connection)

    def __enter__(self) -> PlainPool:
        return self

    def __exit__(self, *_: object) -> None:
        for _each in range(self._size):
            self._idle.get().close()
