"""The conformance harness: a fresh file, its topics, and a look at what its consumers would see."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from txcore_sqlite.backend import SqliteBackend
from txcore_sqlite.consumer import read_topic
from txcore_sqlite.options import Options


class SqliteHarness:
    """One temporary file and the backends opened on it.

    Topics are made beforehand and none comes into being by itself, so that an unknown one can be told.
    """

    name = "sqlite"

    def __init__(self, options: Options | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="txcore-sqlite-")
        self.path = Path(self._folder.name) / "broker.db"
        self._options = options or Options(auto_create=False, lease_s=1.0)
        self._opened: list[SqliteBackend] = []
        self._topic_count = 0

    def open(self) -> SqliteBackend:
        """Return another backend on the same file; `close` closes it if the test does not."""
        backend = SqliteBackend(self.path, self._options)
        self._opened.append(backend)
        return backend

    def topic(self, name: str) -> str:
        """Make a topic whose name begins with *name* and is used by nobody else."""
        self._topic_count += 1
        topic = f"{name}.{self._topic_count}"
        backend = SqliteBackend(self.path, self._options)
        backend.create_topic(topic).result()
        backend.close().result()
        return topic

    def missing_topic(self) -> str:
        """Return a topic that does not exist."""
        return "nobody.made.this.topic"

    def read_target(self, topic: str) -> list[tuple[bytes | None, bytes, Mapping[str, str | bytes], int]]:
        """Return what a consumer of *topic* gets from its beginning: key, body, headers, time of the append."""
        return [(each.key, each.body, each.headers, each.appended_ms) for each in read_topic(self.path, topic)]

    def close(self) -> None:
        """Close every backend and delete the file."""
        for backend in self._opened:
            backend.close().result()
        self._folder.cleanup()
