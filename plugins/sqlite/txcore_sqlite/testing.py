"""The conformance harness: a fresh file, its topics, and a look at what its consumers would see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from txcore_conformance.harness import Delivered, Harness

from txcore.port import Backend
from txcore_sqlite.backend import SqliteBackend
from txcore_sqlite.consumer import read_topic
from txcore_sqlite.options import Options


class SqliteHarness(Harness):
    """A file in a temporary folder. Topics are not created by publishing, so that a missing one can be told."""

    quiet_s = 0.0
    silent_member_max_s = 2.0

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
        self._admin.create_topic(topic).result()

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        return [
            Delivered(each.position, each.key, each.body, each.headers, each.appended_ms)
            for each in read_topic(self._path, topic)
        ]

    def missing_topic(self) -> str | None:
        """See `Harness.missing_topic`."""
        return "nobody-made-this-topic"
