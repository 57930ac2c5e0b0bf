"""Readers: one consumer per open log, assigned and never subscribed; a log without new records has no consumer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, DataLossError
from txcore.port import running
from txcore.records import LogKind, LogRecord, Position
from txcore_kafka.clients import close
from txcore_kafka.codec import is_forbidden, is_missing, translated
from txcore_kafka.ends import Log, is_end_marker
from txcore_kafka.readers import Connection, Readers
from txcore_kafka.resting import Rest
from txcore_kafka.threads import Worker

MISSES_MAX: Final = 4
RETRY_S: Final = 0.6
"""Pause, in seconds, between two questions to a broker that did not answer the first."""
REST_AFTER_S: Final = 5.0
"""Time without a record, in seconds, after which a log is not read until its end moves."""


class KafkaReader:
    """The reader of one log of one partition; implements `Reader`."""

    def __init__(self, readers: Readers, group: str, kind: LogKind, partition: int, start: Position | None) -> None:
        self._readers = readers
        self._group = group
        self._kind = kind
        self._log = Log(group, kind, partition)
        self._topic = self._log.topic
        self._partition = partition
        self._next = 0 if start is None else int(start)
        self._end = 0  #: offset after the last record that the broker reported
        self._asked_end = 0  #: the furthest end that `end` returned; written by another thread
        self._ends: set[Future[Position]] = set()  #: questions without an answer yet
        self._doubt: Future[int] | None = None  #: the true end of a log whose leader reported an end before `_next`
        self._connection: Connection | None = None
        self._asks_at_s = 0.0
        self._miss_count = 0
        self._may_wait = True
        self._rest: Rest | None = None
        self._rest_mark_count = 0
        self._quiet_since_s = readers.clock.elapsed_s()
        self._is_closed = False

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`.

        The reader waits for records that the log is known to hold, for at most `ARRIVAL_S` and never twice in a row.
        So, if the broker answers, the first empty result means that all records are read that the log held when reading
        began. A log without new records is checked every `resting.ASK_MAX_S`, after each mark of this backend, and
        when `end` returned a later offset.
        """
        if self._is_resting() or (connection := self._connection or self._begin()) is None:
            return ()
        records: list[LogRecord] = []
        try:
            for message in self._arrived(connection.consumer, count_max):
                error = message.error()
                if error is None:
                    self._take(message, records)
                else:
                    self._judge(error, message.offset() or 0, connection)
        except (KafkaException, RuntimeError) as raised:
            raise translated(raised, f"reading {self._topic!r}") from raised
        if not records and connection.news.trouble is not None:
            trouble, connection.news.trouble = connection.news.trouble, None
            if is_forbidden(trouble):
                raise translated(trouble, f"reading {self._topic!r}")
            raise BackendUnavailableError(f"reading {self._topic!r}: {trouble.str()}")
        self._consider_rest(is_quiet=not records)
        return records

    def _is_resting(self) -> bool:
        """Return whether the reader has no consumer and there is still no record to read."""
        if self._rest is None or self._connection is not None:
            return False
        self._require_open()
        self._readers.resting.look()
        if self._asked_end == self._next + 1:  # Only our own marker is new.
            self._next = self._rest.end = self._asked_end
        is_marked = self._rest_mark_count != self._marks()
        if self._rest.end == self._next and not is_marked and self._asked_end <= self._next:
            return True
        self._wake()
        return False

    def _consider_rest(self, *, is_quiet: bool) -> None:
        """Give the consumer up after some time without records, if the broker reports no record after the last one."""
        if not is_quiet or (self._rest is not None and self._rest.end not in {None, self._next}):
            self._wake()
        elif self._rest is not None and self._rest.end is not None:
            self._disconnect()
        elif self._rest is not None:
            self._readers.resting.look()
        elif self._readers.clock.elapsed_s() - self._quiet_since_s > REST_AFTER_S:
            self._begin_rest(self._marks())

    def _begin_rest(self, mark_count: int) -> Rest:
        self._rest_mark_count = mark_count
        self._rest = self._readers.resting.begin((self._topic, self._partition))
        return self._rest

    def _wake(self) -> None:
        self._quiet_since_s = self._readers.clock.elapsed_s()
        rest, self._rest = self._rest, None
        if rest is not None:
            self._readers.resting.end(rest)

    def _marks(self) -> int:
        return self._readers.mark_counts[self._group, self._partition]

    def _arrived(self, consumer: Any, count_max: int) -> Sequence[Any]:
        messages: list[Any] = consumer.consume(count_max, 0)
        if not messages and self._may_wait and self._next < self._end - self._readers.marker_count(self._kind):
            self._may_wait = False
            first = consumer.poll(self._readers.patience_s)
            if first is not None:
                messages = [first, *consumer.consume(count_max - 1, 0)] if count_max > 1 else [first]
        return messages

    def _take(self, message: Any, records: list[LogRecord]) -> None:
        offset = message.offset()
        if offset >= self._next:
            if not is_end_marker(message.key()):
                records.append(_record(message))
            self._next = offset + 1
            self._may_wait = True

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`."""
        wanted = sorted(set(positions))
        return self._readers.worker.submit(lambda: self._fetch(wanted))

    @property
    def passed(self) -> Position:
        """See `Reader.passed`; also moves past control records and aborted records, as the driver reports the end."""
        return Position(self._next)

    def end(self) -> Future[Position]:
        """See `Reader.end`: the end is after a marker, which only the log's current leader can acknowledge."""
        self._require_open()
        asked: Future[Position] = running()
        self._ends.add(asked)
        answer = self._readers.log_ends.ask(self._log)
        answer.add_done_callback(lambda _: self._settle_end(asked, answer))
        return asked

    def _settle_end(self, asked: Future[Position], answer: Future[int]) -> None:
        error = answer.exception()
        if error is not None:
            self._fail_end(asked, error)
            return
        self._asked_end = max(self._asked_end, answer.result())
        with contextlib.suppress(InvalidStateError):  # closed meanwhile
            asked.set_result(Position(answer.result()))
        self._ends.discard(asked)

    def _fail_end(self, asked: Future[Position], error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):  # closed meanwhile
            asked.set_exception(error)
        self._ends.discard(asked)

    def close(self) -> None:
        """See `Reader.close`."""
        self._is_closed = True
        for asked in tuple(self._ends):
            self._fail_end(asked, BackendUnavailableError("this reader was closed before the log's end was known"))
        self._wake()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection.consumer)

    def _require_open(self) -> None:
        self._readers.require_open()
        if self._is_closed:
            raise ClosedError("this reader is closed")

    def _bounds(self, timeout_s: float) -> tuple[int, int]:
        return self._readers.bounds(self._readers.asking(self._group), self._topic, self._partition, timeout_s)

    def _begin(self) -> Connection | None:
        """Return a consumer at the reader's position if the log has records after it; else rest and return None.

        Also returns None while the broker has not reported the log's bounds yet.

        Raises:
            DataLossError: the position is not within the log any more.
            BackendUnavailableError: the broker has been silent for seconds.
        """
        self._require_open()
        if self._group not in self._readers.control.partition_counts:
            _blocking(self._readers.worker, lambda: self._readers.control.partition_count(self._group))
        now_s = self._readers.clock.elapsed_s()
        if now_s < self._asks_at_s:
            return None
        self._asks_at_s = now_s + RETRY_S
        mark_count = self._marks()
        try:
            low, high = self._bounds(self._readers.patience_s)
        except BackendTimeoutError as error:
            self._miss_count += 1
            if self._miss_count % MISSES_MAX:
                return None  # The broker is busy; `read` promises only records that have arrived.
            raise BackendUnavailableError(str(error)) from error
        self._miss_count = 0
        if self._next < low:
            raise DataLossError(self._next, low)
        if self._next > high:
            self._look_for_cut(low)
            return None
        self._asks_at_s = 0.0
        self._end = high
        if self._next == high:
            self._begin_rest(mark_count).end = high
            return None
        self._connection = self._readers.connect(self._group, tells_end=True)
        self._connection.consumer.assign([TopicPartition(self._topic, self._partition, self._next)])
        return self._connection

    def _look_for_cut(self, low: int) -> None:
        """Find out, over several calls, whether the log really ends before the reader's position, as a leader reports.

        A deposed leader may report this too. Only the current leader acknowledges a marker, which shows the true end.

        Raises:
            DataLossError: the log ends before the reader's position.
            BackendUnavailableError, ConfigError: the broker does not report the end.
        """
        doubt, self._doubt = self._doubt, None
        error = doubt.exception() if doubt is not None and doubt.done() else None
        if doubt is None or isinstance(error, BackendTimeoutError):
            self._doubt = self._readers.log_ends.ask(self._log)
        elif not doubt.done():
            self._doubt = doubt
        elif doubt.result() <= self._next:
            raise DataLossError(self._next, low)

    def _judge(self, error: KafkaError, offset: int, connection: Connection) -> None:
        """Handle an error in the place of a record, or the report that no record comes before *offset*."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            # The position is gone, or the broker was not ready; the log's bounds show which.
            self._disconnect()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            self._next = max(self._next, offset)
        elif is_missing(error):
            self._readers.control.partition_counts.pop(self._group, None)
            connection.news.trouble = error
        else:
            connection.news.trouble = error

    def _fetch(self, positions: Sequence[Position]) -> Mapping[Position, LogRecord]:
        messages = self._readers.read_some(self._log, positions)
        records = (_record(message) for message in messages if not is_end_marker(message.key()))
        return {record.position: record for record in records}


def _record(message: Any) -> LogRecord:
    return LogRecord(Position(message.offset()), message.value() or b"", message.timestamp()[1])


def _blocking(worker: Worker, request: Callable[[], Any]) -> None:
    worker.submit(request).result()
