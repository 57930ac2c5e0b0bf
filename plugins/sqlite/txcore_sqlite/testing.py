"""The conformance harness: a fresh file, its topics, and their messages as consumers would see them."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from txcore_conformance.harness import Delivered, Harness

from txcore.port import Backend
from txcore.records import LogKind
from txcore_sqlite.backend import SqliteBackend
from txcore_sqlite.consumer import read_topic
from txcore_sqlite.options import Options


class SqliteHarness(Harness):
    """A file in a temporary folder. Topics are not created by publishing, so that a missing one can be recognized."""

    silent_member_max_s = 5.0

    def start(self) -> None:
        """See `Harness.start`."""
        self._path = Path(tempfile.mkdtemp(prefix="txcore-sqlite-")) / "broker.db"
        self._options = Options(auto_create=False, lease_s=1.0)
        self.url = f"sqlite:///{self._path}?auto_create=false&lease_s=1.0"
        self._admin = SqliteBackend(self._path, self._options)

    def stop(self) -> None:
        """See `Harness.stop`; deletes the file."""
        self._admin.close().result()
        shutil.rmtree(self._path.parent)

    def open(self) -> Backend:
        """See `Harness.open`."""
        return SqliteBackend(self._path, self._options)

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`."""
        self._admin.create_topic(topic)

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        return [
            Delivered(each.position, each.key, each.body, each.headers, each.appended_ms)
            for each in read_topic(self._path, topic)
        ]

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        with closing(sqlite3.connect(self._path, timeout=self.timeout_s)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            (group_id,) = connection.execute("SELECT group_id FROM producer_group WHERE name = ?", (group,)).fetchone()
            (position,) = connection.execute("UPDATE sequence SET next = next + 1 RETURNING next - 1").fetchone()
            log = (group_id, partition, kind.value, position)
            connection.execute("INSERT OR IGNORE INTO log (group_id, partition, kind, first) VALUES (?, ?, ?, ?)", log)
            row = (position, group_id, partition, body, time.time_ns() // 1_000_000)
            connection.execute(f"INSERT INTO {kind.value} VALUES (?, ?, ?, ?, ?)", row)  # noqa: S608
        return True

    def missing_topic(self) -> str | None:
        """See `Harness.missing_topic`."""
        return "never-made-topic"
