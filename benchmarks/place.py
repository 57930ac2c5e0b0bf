"""Where one run happens: a fresh broker and a fresh business database in a folder of its own."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import txcore
from txcore.port import Backend

GROUP: Final = "bench"
TOPIC: Final = "bench.made"
BODY: Final = b"x" * 100
INSERT_ORDER: Final = sqlalchemy.text("INSERT INTO orders (item) VALUES ('tea')")
_POOL: Final = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 120}
"""One pooled connection: a SQLite file has one writer, so callers wait in the pool instead of for the file's lock."""

BROKERS: Final[dict[str, Callable[[Path], str]]] = {
    "memory": lambda folder: "memory://",  # noqa: ARG005 - no name: a broker of its own
    "sqlite": lambda folder: f"sqlite:///{quote(str(folder / 'broker.db'))}",
}


def message() -> txcore.Message:
    """Return the message that every transaction sends."""
    return txcore.Message(TOPIC, BODY, key=b"12345678")


class Place:
    """A context manager: the files of one run, made when asked for and removed at its end."""

    def __init__(self, parent: Path, broker: str | None) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=parent))
        self._broker = broker
        self._backend: Backend | None = None
        self._engines: list[sqlalchemy.Engine] = []

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._backend is not None:
            self._backend.close().result(30)
        for engine in self._engines:
            engine.dispose()
        shutil.rmtree(self.folder)

    def backend(self) -> Backend:
        """Return the broker's backend, opened at the first call."""
        assert self._broker is not None
        if self._backend is None:
            self._backend = txcore.connect(BROKERS[self._broker](self.folder))
        return self._backend

    def engine(self) -> sqlalchemy.Engine:
        """Return an engine of the business database: a file in WAL mode, synchronous=FULL."""
        self._create_business_file()
        engine = sqlalchemy.create_engine(f"sqlite:///{self.folder / 'business.db'}", **_POOL)
        sqlalchemy.event.listen(engine, "connect", _require_full)
        self._engines.append(engine)
        return engine

    def async_engine(self) -> Any:
        """Return an AsyncEngine of the same; the caller disposes of it in its event loop."""
        self._create_business_file()
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.folder / 'business.db'}", **_POOL)
        sqlalchemy.event.listen(engine.sync_engine, "connect", _require_full)
        return engine

    def _create_business_file(self) -> None:
        connection = sqlite3.connect(self.folder / "business.db")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        connection.close()


def _require_full(connection: Any, record: object) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()
