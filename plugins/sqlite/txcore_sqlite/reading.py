"""Reading logs: one partition's half, op or parked log, forward from a position."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from txcore.errors import ClosedError, DataLossError, TxcoreError
from txcore.port import failed, resolved
from txcore.records import LogKind, LogRecord, Position
from txcore_sqlite.ownership import require_group
from txcore_sqlite.store import Store

FETCH_POSITIONS_MAX: Final = 500

_SELECT: Final = {
    kind: f"SELECT position, body, appended_ms FROM {kind.value} WHERE group_id = ? AND partition = ? "  # noqa: S608
    for kind in LogKind
}
_LAST: Final = {kind: select + "ORDER BY position DESC LIMIT 1" for kind, select in _SELECT.items()}


class SqliteReader:
    """A reader of one log; implements `Reader`. Holds no connection between calls; one thread at a time.

    Records appear in the order of their positions and never before their transaction is committed. So no record will
    ever appear before a position that was read. The reader notices records that an administrator deleted only when
    reading starts.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        kind: LogKind,
        partition: int,
        *,
        start: Position | None,
        check: Callable[[], None],
    ) -> None:
        self._store = store
        self._check = check
        self._group = group
        self._kind = kind
        self._partition = partition
        self._start = start
        self._next = 0 if start is None else int(start)
        self._end = 0  #: the furthest end that was returned
        self._is_started = False
        self._is_closed = False
        self._group_id: int | None = None

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`.

        Raises:
            DataLossError: the record at the start, or the log's very first one, was deleted.
            ConfigError: the group does not exist.
            BackendUnavailableError: SQLite cannot read the file; calling again is allowed.
            ClosedError: the reader or its backend is closed.
        """
        self._require_open()
        with self._store.reading() as connection:
            group_id = self._known_group(connection)
            if not self._is_started:
                self._require_start(connection, group_id)
            rows = connection.execute(
                _SELECT[self._kind] + "AND position >= ? ORDER BY position LIMIT ?",
                (group_id, self._partition, self._next, count_max),
            ).fetchall()
        if rows:
            self._next = rows[-1][0] + 1
        if len(rows) < count_max:
            self._next = max(self._next, self._end)  # All records before that end were committed before this read.
        return [LogRecord(*row) for row in rows]

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`; reads in the calling thread."""
        self._require_open()
        try:
            return resolved(self._fetch(positions))
        except TxcoreError as error:
            return failed(error)

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return Position(self._next)

    def end(self) -> Future[Position]:
        """See `Reader.end`; reads in the calling thread."""
        try:
            self._require_open()
            with self._store.reading() as connection:
                log = (self._known_group(connection), self._partition)
                last = connection.execute(_LAST[self._kind], log).fetchone()
        except TxcoreError as error:
            return failed(error)
        end = 0 if last is None else last[0] + 1
        self._end = max(self._end, end)
        return resolved(Position(end))

    def close(self) -> None:
        """See `Reader.close`."""
        self._is_closed = True

    def _fetch(self, positions: Sequence[Position]) -> Mapping[Position, LogRecord]:
        found: dict[Position, LogRecord] = {}
        with self._store.reading() as connection:
            group_id = self._known_group(connection)
            for begin in range(0, len(positions), FETCH_POSITIONS_MAX):
                chunk = positions[begin : begin + FETCH_POSITIONS_MAX]
                rows = connection.execute(
                    _SELECT[self._kind] + f"AND position IN ({','.join('?' * len(chunk))})",
                    (group_id, self._partition, *chunk),
                ).fetchall()
                found.update((row[0], LogRecord(*row)) for row in rows)
        return found

    def _known_group(self, connection: sqlite3.Connection) -> int:
        if self._group_id is None:
            self._group_id = require_group(connection, self._group)
        return self._group_id

    def _require_start(self, connection: sqlite3.Connection, group_id: int) -> None:
        """Check once that the log still holds the record to start with."""
        log = (group_id, self._partition, self._kind.value)
        first = connection.execute(
            "SELECT first FROM log WHERE group_id = ? AND partition = ? AND kind = ?", log
        ).fetchone()
        if first is None and self._start is None:
            return  # nothing was ever written
        asked = first[0] if self._start is None else self._next
        held = connection.execute(
            _SELECT[self._kind] + "AND position >= ? ORDER BY position LIMIT 1", (group_id, self._partition, self._next)
        ).fetchone()
        if held is None or held[0] != asked:
            (following,) = connection.execute("SELECT next FROM sequence").fetchone()
            now_first = held[0] if held is not None else following
            if now_first != self._next:
                raise DataLossError(self._next, now_first)
        self._is_started = True

    def _require_open(self) -> None:
        self._check()
        if self._is_closed:
            raise ClosedError("this reader is closed")
