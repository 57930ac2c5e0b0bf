"""The file: its tables, how connections to it are opened, and rows written many at a time.

Positions of all logs and topics come from one counter, so they also give the order in which a file's records were
written. This package never changes or deletes a row of a log.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from txcore.errors import BackendUnavailableError, ClosedError, ConfigError
from txcore_sqlite.codec import is_busy, reading_error
from txcore_sqlite.options import Options

APPLICATION_ID: Final = 0x74786331  # "txc1"
SCHEMA_VERSION: Final = 1
BUSY_ATTEMPT_MS: Final = 50
"""Length of one attempt at a lock, in milliseconds; `close` waits at most so long for a thread that wants the lock."""
SWITCH_ATTEMPTS_MAX: Final = 200
IDLE_READERS_MAX: Final = 4
CHECKPOINT_PAGES: Final = 4_000
JOURNAL_BYTES_MAX: Final = 64 * 1_048_576
STATEMENTS_CACHED: Final = 512

_TABLES: Final = (
    "CREATE TABLE sequence (next INTEGER NOT NULL)",
    "INSERT INTO sequence VALUES (1)",
    """CREATE TABLE producer_group (group_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        partitions INTEGER NOT NULL)""",
    """CREATE TABLE partition (group_id INTEGER NOT NULL, partition INTEGER NOT NULL, token BLOB NOT NULL DEFAULT x'',
        member TEXT, revoke_ms INTEGER, PRIMARY KEY (group_id, partition)) WITHOUT ROWID""",
    """CREATE TABLE log (group_id INTEGER NOT NULL, partition INTEGER NOT NULL, kind TEXT NOT NULL,
        first INTEGER NOT NULL, PRIMARY KEY (group_id, partition, kind)) WITHOUT ROWID""",
    """CREATE TABLE half (position INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, partition INTEGER NOT NULL,
        body BLOB NOT NULL, appended_ms INTEGER NOT NULL)""",
    "CREATE INDEX half_log ON half (group_id, partition)",
    """CREATE TABLE op (position INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, partition INTEGER NOT NULL,
        body BLOB NOT NULL, appended_ms INTEGER NOT NULL)""",
    "CREATE INDEX op_log ON op (group_id, partition)",
    """CREATE TABLE parked (position INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, partition INTEGER NOT NULL,
        body BLOB NOT NULL, appended_ms INTEGER NOT NULL)""",
    "CREATE INDEX parked_log ON parked (group_id, partition)",
    """CREATE TABLE resolved (transaction_id BLOB NOT NULL, group_id INTEGER NOT NULL, generation INTEGER NOT NULL,
        kind INTEGER NOT NULL, PRIMARY KEY (transaction_id, group_id, generation)) WITHOUT ROWID""",
    "CREATE TABLE topic (topic_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE target (position INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, key BLOB, body BLOB NOT NULL,
        headers BLOB NOT NULL, appended_ms INTEGER NOT NULL)""",
    "CREATE INDEX target_topic ON target (topic_id)",
    """CREATE TABLE checkpoint (group_id INTEGER NOT NULL, partition INTEGER NOT NULL, half INTEGER, op INTEGER,
        token BLOB NOT NULL, note BLOB NOT NULL, PRIMARY KEY (group_id, partition)) WITHOUT ROWID""",
    """CREATE TABLE member (group_id INTEGER NOT NULL, member TEXT NOT NULL, joined INTEGER NOT NULL,
        seen_ms INTEGER NOT NULL, PRIMARY KEY (group_id, member)) WITHOUT ROWID""",
    """CREATE TABLE consumer (topic TEXT NOT NULL, consumer_group TEXT NOT NULL, next INTEGER NOT NULL DEFAULT 0,
        member TEXT, seen_ms INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, consumer_group)) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class Store:
    """One file and the idle read connections to it. Thread safe.

    Raises (when made):
        ConfigError: the file belongs to another application or another version, or cannot be used with WAL.
        BackendUnavailableError: the file cannot be opened or made.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        with closing(self.connect()) as connection:
            self._prepare(connection)

    def connect(self) -> sqlite3.Connection:
        """Return a new connection that may write; its transactions are begun and ended explicitly.

        Raises:
            BackendUnavailableError: the file cannot be opened.
        """
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=BUSY_ATTEMPT_MS / 1000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=STATEMENTS_CACHED,
            )
        except sqlite3.Error as error:
            raise BackendUnavailableError(f"SQLite cannot open {self.path}: {error}") from error
        try:
            connection.execute(f"PRAGMA synchronous = {self.options.synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES_MAX}")
            if self.options.page_count_max:
                connection.execute(f"PRAGMA max_page_count = {self.options.page_count_max}")
        except sqlite3.Error as error:
            connection.close()
            raise BackendUnavailableError(f"SQLite cannot open {self.path}: {error}") from error
        return connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a read connection for a few statements; none of them may be left unfinished.

        Raises:
            ClosedError: the store is closed.
            BackendUnavailableError: SQLite cannot read.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the sqlite backend is closed")
            connection = self._idle.pop() if self._idle else None
        usable = False
        try:
            if connection is None:
                connection = self.connect()
                connection.execute("PRAGMA query_only = ON")
            yield connection
            usable = True
        except sqlite3.Error as error:
            raise reading_error(error) from error
        finally:
            if connection is not None:
                self._take_back(connection, usable=usable)

    def close(self) -> None:
        """Close the idle connections; lent connections are closed when they are returned. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take_back(self, connection: sqlite3.Connection, *, usable: bool) -> None:
        with self._lock:
            if usable and not self._closed and len(self._idle) < IDLE_READERS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check that the file is ours, or create our tables in an empty one; only this takes the write lock."""
        try:
            is_ours = self._is_ours(connection)  # before anything is changed in another application's file
            mode = _retry(connection, "PRAGMA journal_mode = WAL")
            if mode != "wal":
                raise ConfigError(f"{self.path} cannot be used with WAL (journal mode {mode!r}); use a local disk")
            if not is_ours:
                _retry(connection, "BEGIN IMMEDIATE")
                try:
                    self._create(connection)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise BackendUnavailableError(f"SQLite cannot use {self.path}: {error}") from error

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Return False for an empty file; raises ConfigError for one that is not ours."""
        application = _retry(connection, "PRAGMA application_id")
        if application == APPLICATION_ID:
            version = _retry(connection, "PRAGMA user_version")
            if version != SCHEMA_VERSION:
                text = f"{self.path} has layout {version}; this txcore uses layout {SCHEMA_VERSION}"
                raise ConfigError(text, key="url")
            return True
        if application or _retry(connection, "SELECT count(*) FROM sqlite_master"):
            raise ConfigError(
                f"{self.path} is another application's database; the broker needs a file of its own: an open "
                "transaction of the application would lock it out",
                key="url",
            )
        return False

    def _create(self, connection: sqlite3.Connection) -> None:
        if self._is_ours(connection):
            return  # another process was first
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("COMMIT")


class RowWriter:
    """The INSERT statements of one table: of 1 to 32 rows, and of 64 to 1,024 rows by powers of two.

    A statement gives up the interpreter lock once, whatever its number of rows. With one row for each statement, a busy
    thread beside the writer makes every row wait for the lock (measured: a fifth of the rate).
    """

    _SIZES: Final = (*(1 << power for power in range(10, 5, -1)), *range(32, 0, -1))

    def __init__(self, table: str, columns: str, *, replaces: bool = False) -> None:
        self.width = columns.count(",") + 1
        row = f"({','.join('?' * self.width)})"
        verb = "INSERT OR REPLACE" if replaces else "INSERT"
        head = f"{verb} INTO {table} ({columns}) VALUES "
        self._statements = [(size * self.width, head + ",".join([row] * size)) for size in self._SIZES]

    def write(self, connection: sqlite3.Connection, values: Sequence[Any]) -> None:
        """Insert the rows whose columns follow one another in *values*, in order."""
        begin, left = 0, len(values)
        for width, statement in self._statements:
            while left >= width:
                connection.execute(statement, values[begin : begin + width])
                begin += width
                left -= width
            if not left:
                break


def _retry(connection: sqlite3.Connection, statement: str) -> Any:
    """Execute *statement*, again while another process holds the lock.

    If two processes switch a new file to WAL, one of them fails at once, without SQLite's own waiting.
    """
    pause = threading.Event()
    for _ in range(SWITCH_ATTEMPTS_MAX):
        try:
            row = connection.execute(statement).fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            pause.wait(BUSY_ATTEMPT_MS / 1000)
        else:
            return row[0] if row else None
    raise BackendUnavailableError(f"other processes held the file's lock through {SWITCH_ATTEMPTS_MAX} attempts")
