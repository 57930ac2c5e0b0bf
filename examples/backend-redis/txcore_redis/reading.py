"""Reading logs: one partition's half, op or parked log, forward from a position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, DataLossError
from txcore.records import LogKind, LogRecord, Position
from txcore_redis.errors import require_group
from txcore_redis.lanes import Lane
from txcore_redis.scripts import LOOK, appended_ms_of, group_key, id_of, log_key, position_of


class RedisReader:
    """A reader of one log; implements `Reader`. It holds nothing on the server; one thread at a time.

    A stream shows an entry when its script has ended, and ids only ascend. So no record will ever appear before a
    position that was read.
    """

    def __init__(self, lane: Lane, group: str, kind: LogKind, partition: int, start: Position | None) -> None:
        self._lane = lane
        self._group = group
        self._partition = partition
        self._key = log_key(group, kind, partition)
        self._look = LOOK.call((group_key(group), self._key), partition)
        self._start = start
        self._next = 0 if start is None else int(start)
        self._count_max = 1_000
        self._end = 0  #: the furthest end that was returned
        self._is_started = False
        self._is_closed = False

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`; waits for the server's answer for at most `control_timeout_s`."""
        self._require_open()
        end, count = self._end, min(count_max, self._count_max)
        select = ("XRANGE", self._key, id_of(self._next), "+", "COUNT", count)
        try:
            *looked, entries = self._lane.ask([select] if self._is_started else [self._look, select], list).result()
        except BackendTimeoutError as error:
            self._count_max = max(1, count // 2)  # so many large records may take too long
            raise BackendUnavailableError(str(error)) from error
        if looked:
            self._require_start(looked[0])
        records = [_record(entry) for entry in entries]
        if records:
            self._next = records[-1].position + 1
        if len(records) < count:
            self._next = max(self._next, end)  # all records before that end were stored before this read
        return records

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`."""
        self._require_open()
        commands = [("XRANGE", self._key, id_of(position), id_of(position)) for position in positions]
        return self._lane.ask(commands, _by_position)

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return Position(self._next)

    def end(self) -> Future[Position]:
        """See `Reader.end`."""
        self._require_open()
        return self._lane.ask([self._look], self._ended)

    def close(self) -> None:
        """See `Reader.close`."""
        self._is_closed = True

    def _ended(self, answers: list[Any]) -> Position:
        found = require_group(answers[0], self._group, self._partition)
        end = 0 if found[0] == b"empty" else position_of(found[2]) + 1
        self._end = max(self._end, end)
        return Position(end)

    def _require_start(self, looked: list[Any]) -> None:
        """Check once that the log still holds the record to start with."""
        found = require_group(looked, self._group, self._partition)
        if found[0] == b"empty":
            if self._start is not None:
                raise DataLossError(self._start, None)
        else:
            first = position_of(found[1]) if found[1] else None
            is_gone = found[3] == 1 if self._start is None else first is None or self._start < first
            if is_gone and first != self._start:
                raise DataLossError(self._next, first if first is not None else position_of(found[2]) + 1)
        self._is_started = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this reader is closed")


def _record(entry: list[Any]) -> LogRecord:
    position = position_of(entry[0])
    return LogRecord(position, entry[1][1], appended_ms_of(position))


def _by_position(answers: list[Any]) -> dict[Position, LogRecord]:
    records = [_record(entry) for entries in answers for entry in entries]
    return {record.position: record for record in records}
