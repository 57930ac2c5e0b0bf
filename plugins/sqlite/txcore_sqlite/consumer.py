"""Consuming target topics: one active consumer per topic and group, with its offset in the same file.

Delivery is at least once: messages polled and not acknowledged are polled again by the next consumer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import ClosedError, UsageError
from txcore.records import Position
from txcore_sqlite.backend import SqliteBackend
from txcore_sqlite.codec import certain_error, decode_headers, is_busy
from txcore_sqlite.options import Address, Options
from txcore_sqlite.store import BUSY_ATTEMPT_MS, Store

_SELECT: Final = (
    "SELECT position, name, key, body, headers, appended_ms FROM target JOIN topic USING (topic_id) "
    "WHERE topic_id = (SELECT topic_id FROM topic WHERE name = ?) AND position >= ? ORDER BY position LIMIT ?"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received:
    """A message as its consumers get it; `headers` has the user's headers, `txcore-id`, `-group` and `-by`."""

    position: Position
    topic: str
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]
    appended_ms: int


class SqliteConsumer:
    """The reader of one topic for a consumer group. One thread may use it at a time; any number of processes may read.

    Of the consumers of one topic and group a single one is active and receives all messages, in order. The others
    receive none; one of them takes over when the active one closes, or has not polled for `lease_s`. Groups are
    independent. A new group starts with the topic's first message.

    Args:
        source: The file, or a backend that uses it (its options and clock are used too).
        topic: The topic to read; it may be created later.
        options: Options for a file; a backend brings its own.

    Raises:
        ConfigError, BackendUnavailableError: see `Store`.
    """

    def __init__(
        self,
        source: str | Path | SqliteBackend,
        topic: str,
        group: str,
        *,
        options: Options | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self.topic = topic
        self.group = group
        self._clock = clock or (source.clock if isinstance(source, SqliteBackend) else SystemClock())
        self._store = _open(source, options)
        self._lease_ms = round(self._store.options.lease_s * 1000)
        self._member = f"{(randomness or system_randomness()).getrandbits(64):016x}"
        self._connection = self._store.connect()
        self._next: int | None = None  # the first position to poll; None while another consumer is active
        self._renewed_ms = 0
        self._is_closed = False

    def poll(self, count_max: int = 100) -> list[Received]:
        """Return at once at most *count_max* messages after those polled before; the list is empty if there are none.

        The first poll of an active consumer starts after the last acknowledged message of its group.

        Raises:
            BusyError: other processes held the file's lock for `busy_timeout_s`.
            BackendUnavailableError: SQLite cannot read the file.
        """
        self._require_open()
        now_ms = self._clock.wall_ms()
        if self._next is None or not 0 <= now_ms - self._renewed_ms < self._lease_ms // 3:
            self._next = self._write(self._renew)
        if self._next is None:
            return []
        with self._store.reading() as connection:
            received = _received(connection, self.topic, self._next, count_max)
        if received:
            self._next = received[-1].position + 1
        return received

    def ack(self, position: Position) -> bool:
        """Store that all messages up to *position*, inclusive, are done; return False if another consumer took over.

        After False nothing is stored, and the other consumer receives the messages again. After True it is durable.

        Raises:
            BusyError: other processes held the file's lock for `busy_timeout_s`.
        """
        self._require_open()
        is_stored = self._write(lambda connection: self._advance(connection, position + 1))
        if not is_stored:
            self._next = None
        return is_stored

    def __enter__(self) -> Self:
        """Return this consumer, which is open already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close; see `close`."""
        self.close()

    def close(self) -> None:
        """Let another consumer of the group take over at once; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._write(self._leave)
        finally:
            self._connection.close()
            self._store.close()

    def _renew(self, connection: sqlite3.Connection) -> int | None:
        """Take or keep the lease; return the next position, or None if another consumer holds the lease."""
        now_ms = self._clock.wall_ms()
        key = (self.topic, self.group)
        connection.execute("INSERT INTO consumer (topic, consumer_group) VALUES (?, ?) ON CONFLICT DO NOTHING", key)
        stored, member, seen_ms = connection.execute(
            "SELECT next, member, seen_ms FROM consumer WHERE topic = ? AND consumer_group = ?", key
        ).fetchone()
        if member not in {None, self._member} and abs(now_ms - seen_ms) < self._lease_ms:
            return None
        connection.execute(
            "UPDATE consumer SET member = ?, seen_ms = ? WHERE topic = ? AND consumer_group = ?",
            (self._member, now_ms, *key),
        )
        self._renewed_ms = now_ms
        if self._next is None or member != self._member:
            return int(stored)
        return self._next

    def _advance(self, connection: sqlite3.Connection, following: int) -> bool:
        updated = connection.execute(
            "UPDATE consumer SET next = max(next, ?) WHERE topic = ? AND consumer_group = ? AND member = ?",
            (following, self.topic, self.group, self._member),
        )
        return updated.rowcount == 1

    def _leave(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "UPDATE consumer SET member = NULL WHERE topic = ? AND consumer_group = ? AND member = ?",
            (self.topic, self.group, self._member),
        )

    def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run *change* in a transaction of its own."""
        connection = self._connection
        try:
            _begin(connection, self._store.options)
            result = change(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise certain_error(error) from error
        return result

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this consumer is closed")


def read_topic(source: str | Path | SqliteBackend, topic: str) -> list[Received]:
    """Return every message of a topic, in order, without consuming any; for tests and audits."""
    store = _open(source)
    try:
        with store.reading() as connection:
            return _received(connection, topic, 0, -1)
    finally:
        store.close()


def open_consumer(address: Address, topic: str, group: str) -> SqliteConsumer:
    """Return a consumer of *topic*, which is made if it is missing; see `BackendPlugin.consumer`.

    Raises:
        ConfigError, BackendUnavailableError: see `SqliteBackend`.
    """
    path, options = address
    make_topic(address, topic)
    return SqliteConsumer(path, topic, group, options=options)


def make_topic(address: Address, topic: str) -> None:
    """Make a topic that is missing; see `BackendPlugin.target`.

    Raises:
        ConfigError, BackendUnavailableError: see `SqliteBackend`.
    """
    with SqliteBackend(*address) as backend:
        backend.create_topic(topic)


def _open(source: str | Path | SqliteBackend, options: Options | None = None) -> Store:
    if isinstance(source, SqliteBackend):
        return Store(source.path, source.options)
    if "://" in str(source):
        raise UsageError(f"a consumer is given the file itself, not the URL {source!r}")
    return Store(Path(source).absolute(), options or Options())


def _received(connection: sqlite3.Connection, topic: str, start: int, count_max: int) -> list[Received]:
    rows: Sequence[tuple[Position, str, bytes | None, bytes, bytes, int]] = connection.execute(
        _SELECT, (topic, start, count_max)
    ).fetchall()
    return [
        Received(position, name, key, body, decode_headers(headers), appended_ms)
        for position, name, key, body, headers, appended_ms in rows
    ]


def _begin(connection: sqlite3.Connection, options: Options) -> None:
    for attempts_left in reversed(range(1 + round(options.busy_timeout_s * 1000 / BUSY_ATTEMPT_MS))):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if attempts_left == 0 or not is_busy(error):
                raise
        else:
            return
