"""The place of one run: a fresh group, topic and business database, and a broker that holds nothing else."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import sqlalchemy

import txcore
from benchmarks.brokers import IN_PROCESS, RawPublisher, Server, url_of
from benchmarks.databases import Database, SqliteFile, make_async_engine, make_engine
from txcore.port import Backend

KEY: Final = b"12345678"
BODY_SIZE: Final = 300
DELIVERY_TIMEOUT_S: Final = 20.0
POLICY: Final = txcore.CheckPolicy(immunity_s=60.0)
"""Timeout and immunity so long that nothing expires and no producer gives way while callers wait on a busy machine."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Servers that are started once for all places: the run's database, and the server of each broker that has one."""

    database: Database
    servers: dict[str, Server]

    def close(self) -> None:
        """Stop all servers."""
        for server in self.servers.values():
            server.close()
        self.database.close()


class Place:
    """A context manager for the resources of one run, created on first use and removed at its end."""

    def __init__(
        self, parent: Path, broker: str | None, stage: Stage | None = None, body_size: int = BODY_SIZE
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=parent))
        self.group = self.topic = f"bench-{self.folder.name.replace('_', '-')}"
        self.body = b"x" * body_size
        self._stage = stage or Stage(SqliteFile(), {})
        self.server = self._stage.servers.get(broker or "")
        self.broker = broker
        self._open = contextlib.ExitStack()
        self._backend: Backend | None = None
        self._business_url = ""
        self._has_topic = False

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self.server is not None:
            self.server.clear()
        shutil.rmtree(self.folder)

    def backend(self) -> Backend:
        """Return the broker's backend, opened at the first call."""
        assert self.broker is not None
        if self._backend is None:
            self._create_topic()
            backend = self._backend = txcore.connect(self.url)
            self._open.callback(lambda: backend.close().result(30))
        return self._backend

    @property
    def url(self) -> str:
        """URL of the broker."""
        assert self.broker is not None
        if self.broker in IN_PROCESS:
            return url_of(self.broker, self.folder)
        return f"{self._require_server().url}?delivery_timeout_s={DELIVERY_TIMEOUT_S:g}"

    def message(self) -> txcore.Message:
        """Return the message that every transaction sends."""
        return txcore.Message(self.topic, self.body, key=KEY)

    def raw_publisher(self) -> RawPublisher:
        """Return a publisher to the same topic with the driver alone."""
        self._create_topic()
        publisher = self._require_server().raw_publisher(self.topic, self.body, KEY)
        self._open.callback(publisher.close)
        return publisher

    def engine(self, size: int) -> sqlalchemy.Engine:
        """Return an engine of the business database for this number of callers."""
        engine = make_engine(self.business_url(), self._stage.database.pool(size))
        self._open.callback(engine.dispose)
        return engine

    def async_engine(self, size: int) -> Any:
        """Return an AsyncEngine of the same database; the caller disposes of it in its event loop."""
        return make_async_engine(self.business_url(), self._stage.database.pool(size))

    def business_url(self) -> str:
        """Return the SQLAlchemy URL of the business database."""
        if not self._business_url:
            self._business_url = self._stage.database.create(self.folder)
        return self._business_url

    def _create_topic(self) -> None:
        if self.server is not None and not self._has_topic:
            self._has_topic = True
            self.server.create_topic(self.topic)

    def _require_server(self) -> Server:
        assert self.server is not None
        return self.server
