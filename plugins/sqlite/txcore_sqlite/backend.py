"""The backend: the port's members on top of one file, one writer thread and a few read connections."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import ClosedError, ConfigError, TxcoreError, UsageError
from txcore.lifecycle import ClosedAtExit
from txcore.port import Batch, Claim, failed, resolved, running
from txcore.records import (
    MARK_KINDS,
    Capabilities,
    Checkpoint,
    HalfRecord,
    LogKind,
    Op,
    Outcome,
    Position,
    Resolution,
)
from txcore_sqlite.guarantees import capabilities_of
from txcore_sqlite.options import PARTITION_COUNT_MAX, Options
from txcore_sqlite.ownership import Keeper, SqliteClaim, load_checkpoint, require_group
from txcore_sqlite.reading import SqliteReader
from txcore_sqlite.store import Store
from txcore_sqlite.work import CallWork, HalfWork, MarkWork, ReleaseWork
from txcore_sqlite.writer import Writer

T = TypeVar("T")


class SqliteBackend(ClosedAtExit):
    """One file as a broker; implements `Backend`. Thread safe; several processes may use the file at once.

    Threads start with the first call that writes. A forked child that inherits a started backend must open its own.

    Args:
        path: The file; made when it is absent.
        options: See `Options`.
        clock: Its wall clock stamps records and leases; must agree among the processes that use the file.
        randomness: Distinguishes members of one name.

    Raises:
        ConfigError: the file belongs to another application or another version, or cannot be used with WAL.
        BackendUnavailableError: the file cannot be opened or made.
    """

    def __init__(
        self,
        path: Path,
        options: Options | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self.path = path
        self.options = options or Options()
        self.clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._store = Store(path, self.options)
        self._writer = Writer(self._store, self.clock)
        self._keeper = Keeper(self.options.lease_s, self.clock, self._submit_call)
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None
        self._capabilities = capabilities_of(self.options)

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend.capabilities`."""
        return self._capabilities

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`; 1 to 256 partitions."""
        if not group or (partition_count is not None and not 1 <= partition_count <= PARTITION_COUNT_MAX):
            text = (
                f"a group has a name and 1 to {PARTITION_COUNT_MAX} partitions, not {group!r} and {partition_count!r}"
            )
            return failed(ConfigError(text, key="partition_count" if group else "group"))
        default = self.options.partitions
        return self._call(lambda connection, _: _ensure_group(connection, group, partition_count, default))

    def create_topic(self, topic: str) -> None:
        """Create a target topic, and wait for it; nothing happens when it exists. Needed only without `auto_create`.

        Raises:
            BackendTimeoutError, BackendUnavailableError: the file is locked for too long, or cannot be written.
        """
        self._call(lambda connection, _: _create_topic(connection, topic)).result()

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._enter()
        if len(batch.items) > 0:
            self._writer.submit(HalfWork(batch, self._deadline_s()))

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """See `Backend.release`: targets, parked record and op of an item appear together or not at all.

        A COMMIT, ROLLBACK or DISCARD is SUPERSEDED by an earlier final op of its transaction, even the same, and by
        a DISCARD of its generation or a later one.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._enter()
        if len(batch.items) > 0:
            self._writer.submit(ReleaseWork(batch, self._deadline_s(), fenced=claim is not None))

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:
        """See `Backend.mark`; a CLAIM makes its token the owner of the partition in the same transaction."""
        self._enter()
        assert op.kind in MARK_KINDS
        future = running()
        self._writer.submit(MarkWork(group, partition, op, claim is not None, self._deadline_s(), future))
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> SqliteReader:
        """See `Backend.read`."""
        self._enter()
        return SqliteReader(self._store, group, kind, partition, start=start, check=self._enter)

    def claim(self, group: str, member: str) -> SqliteClaim:
        """See `Backend.claim`; assignments need a group that `ensure_group` has made."""
        self._enter()
        identity = f"{member}#{self._randomness.getrandbits(64):016x}"
        return self._keeper.join(group, identity)

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`; reads in the calling thread."""
        self._enter()
        try:
            with self._store.reading() as connection:
                return resolved(load_checkpoint(connection, group, partition))
        except TxcoreError as error:
            return failed(error)

    def ping(self, group: str) -> Future[None]:
        """See `Backend.ping`; reads in the calling thread."""
        self._enter()
        try:
            with self._store.reading() as connection:
                require_group(connection, group)
        except TxcoreError as error:
            return failed(error)
        return resolved(None)

    def poll(self, *_: object, **__: object) -> bool:
        """See `Backend.poll`; its thread is not lent."""
        return False

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """See `Backend.close`; claims leave their groups, so that others take over at once."""
        with self._lock:
            if self._closing is None:
                self._closing = running()
                if self._pid is not None and self._pid != os.getpid():
                    self._closing.set_result(None)  # the threads and connections are the parent's
                else:
                    closer = threading.Thread(
                        target=self._close, args=(timeout_s, self._closing), name="txcore-sqlite-close", daemon=True
                    )
                    closer.start()
            return self._closing

    def _close(self, timeout_s: float, future: Future[None]) -> None:
        try:
            self._keeper.heartbeat.close()
            self._writer.close(timeout_s)
            self._store.close()
        finally:
            future.set_result(None)

    def _enter(self) -> None:
        """Refuse calls after `close` and in forked children."""
        if self._closing is not None:
            raise ClosedError(f"the sqlite backend of {self.path} is closed")
        pid = os.getpid()
        if self._pid != pid:
            if self._pid is not None:
                raise UsageError("this sqlite backend was opened before a fork; open another one in the child")
            self._pid = pid

    def _call(self, call: Callable[[sqlite3.Connection, int], T]) -> Future[T]:
        self._enter()
        return self._submit_call(call)

    def _submit_call(self, call: Callable[[sqlite3.Connection, int], Any]) -> Future[Any]:
        future = running()
        self._writer.submit(CallWork(call, self._deadline_s(), future))
        return future

    def _deadline_s(self) -> float:
        return self.clock.elapsed_s() + self.options.busy_timeout_s


def _ensure_group(connection: sqlite3.Connection, group: str, asked: int | None, default: int) -> int:
    row = connection.execute("SELECT partitions FROM producer_group WHERE name = ?", (group,)).fetchone()
    if row is not None:
        count = int(row[0])
        if asked is not None and asked != count:
            raise ConfigError(
                f"group {group!r} has {count} partitions, not {asked}; the number never changes", key="partition_count"
            )
        return count
    count = default if asked is None else asked
    (group_id,) = connection.execute(
        "INSERT INTO producer_group (name, partitions) VALUES (?, ?) RETURNING group_id", (group, count)
    ).fetchone()
    connection.executemany(
        "INSERT INTO partition (group_id, partition) VALUES (?, ?)", [(group_id, number) for number in range(count)]
    )
    return count


def _create_topic(connection: sqlite3.Connection, topic: str) -> None:
    if not topic:
        raise ConfigError("a topic needs a name", key="topic")
    connection.execute("INSERT INTO topic (name) VALUES (?) ON CONFLICT DO NOTHING", (topic,))
