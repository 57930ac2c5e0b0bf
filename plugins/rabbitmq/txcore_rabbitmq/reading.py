"""The port's reader on one stream: it starts at a position, survives lost connections, and reports lost records."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from txcore.errors import ClosedError, DataLossError, TxcoreError
from txcore.port import running
from txcore.records import LogRecord, Position
from txcore.wake import Wake
from txcore_rabbitmq.codec import translate
from txcore_rabbitmq.ends import EndSearch, is_end_marker
from txcore_rabbitmq.streams import Consumer, Fetch, ReadingLink

REOPEN_DELAY_S: Final = 0.5
FIRST_READ_S: Final = 1.0
FIRST_RECORD_S: Final = 0.1
"""Longest wait, in seconds, for the first record of a stream read from its beginning; then it counts as empty."""
IDLE_ACK_S: Final = 60.0
"""Time, in seconds, that a few records may stay unacknowledged; brokers before 4.3 close the channel after 30 min."""
START_TIMEOUT_S: Final = 2.0
"""Longest wait, in seconds, for a record that was seen before; then it may be gone. During an election of a leader a
broker may need almost as long."""


class StreamReader:
    """The port's Reader. After a lost connection it continues by itself, at the last record it had.

    With *waits_once* the first `read` waits briefly until the broker begins to deliver. So it reports a missing log,
    and its empty result does not come from a slow start.
    """

    def __init__(
        self, link: ReadingLink, stream: str, start: Position | None, search: EndSearch, *, waits_once: bool = False
    ) -> None:
        self._loop = link.loop
        self._link = link
        self._stream = stream
        self._expected = start
        self._last: Position | None = None
        self._passed = Position(0 if start is None else start)
        self._search: EndSearch = search
        self._records: deque[tuple[LogRecord, bool, Consumer, int]] = deque()  #: the bool: whether it is a marker
        self._error: TxcoreError | None = None
        self._is_lost = False
        self._is_closed = False
        self._waits_once = waits_once
        self._answered = Wake()
        self._taken = 0
        self._last_taken: tuple[Consumer, int] | None = None
        self._consumer: Consumer | None = None
        self._loop.call(self._open)
        self._loop.call(self._ack_now_and_then)

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """Return the records that have arrived."""
        if self._is_closed or self._link.is_closed:
            raise ClosedError("this reader or its backend is closed")
        if self._waits_once:
            self._waits_once = False
            self._answered.wait(FIRST_READ_S)
        records = self._records
        if not records and self._error is not None:
            error = self._error
            if not self._is_lost:
                self._error = None
            raise error
        taken: list[LogRecord] = []
        while records and len(taken) < count_max:
            record, is_marker, consumer, tag = records.popleft()
            if not is_marker:
                taken.append(record)
            self._passed = Position(record.position + 1)
            self._taken += 1
            self._last_taken = consumer, tag
            if self._taken >= self._link.ack_every:
                self._taken = 0
                self._loop.call(lambda consumer=consumer, tag=tag: consumer.ack(tag))  # type: ignore[misc]
        return taken

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """Read single records again."""
        future: Future[Mapping[Position, LogRecord]] = running()
        fetch = Fetch(self._link, self._stream, sorted(set(positions)), future)
        self._loop.call(lambda: self._link.fetch(fetch))
        return future

    def end(self) -> Future[Position]:
        """See `Reader.end`: one marker answers all calls before it is sent."""
        future: Future[Position] = running()
        self._loop.call(lambda: self._search.ask(future))
        return future

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return self._passed

    def close(self) -> None:
        """Stop reading."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call(self._stop)

    def _stop(self) -> None:
        self._search.close()
        if self._consumer is not None:
            self._consumer.stop()

    def _ack_now_and_then(self) -> None:
        taken, self._last_taken = self._last_taken, None
        if taken is not None:
            consumer, tag = taken
            consumer.ack(tag)
        if not self._is_closed:
            self._loop.later(IDLE_ACK_S, self._ack_now_and_then)

    def _open(self) -> None:
        if not self._is_closed and not self._is_lost:
            self._link.when_up(self._attach, self._refused)

    def _refused(self, error: TxcoreError) -> None:
        self._error = error
        self._answered.set()
        self._loop.later(REOPEN_DELAY_S, self._open)

    def _attach(self) -> None:
        if self._is_closed:
            return
        # Starts at a record that was seen, so that a later first record means loss, not a gap of the stream.
        expected = self._last if self._last is not None else self._expected
        is_first = True

        def deliver(offset: Position, body: bytes, tag: int, message_id: str | None) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                asked = 0 if expected is None else expected
                if offset > asked:
                    self._lose(asked, offset)
                    return
            if self._last is not None and offset <= self._last:
                return
            self._last = offset
            self._records.append((LogRecord(offset, body), is_end_marker(message_id), consumer, tag))
            self._answered.set()

        def started() -> None:
            self._loop.later(FIRST_RECORD_S, self._answered.set)

        def overdue() -> None:
            if is_first and expected is not None and consumer is self._consumer and consumer.is_started:
                consumer.stop()
                self._probe(expected)

        start: Position | str = "first" if expected is None else expected
        consumer = Consumer(self._link, self._stream, start, deliver, self._ended, started)
        self._consumer = consumer
        self._loop.later(START_TIMEOUT_S, overdue)

    def _probe(self, asked: Position) -> None:
        """Find out where the log begins, as a record that was seen before has not arrived."""

        def deliver(offset: Position, _body: bytes, _tag: int, _message_id: str | None) -> None:
            consumer.stop()
            if offset > asked:
                self._lose(asked, offset)
            elif consumer is self._consumer:
                # The log has earlier records: the broker was slow, or has lost the log's end with this record.
                self._attach()

        def silent() -> None:
            if consumer is self._consumer and consumer.is_started:
                self._lose(asked, None)

        consumer = Consumer(self._link, self._stream, "first", deliver, self._ended)
        self._consumer = consumer
        self._loop.later(START_TIMEOUT_S, silent)

    def _lose(self, asked: int, first: int | None) -> None:
        self._is_lost = True
        self._error = DataLossError(asked, first)
        self._answered.set()
        if self._consumer is not None:
            self._consumer.stop()

    def _ended(self, error: BaseException) -> None:
        self._error = translate(error, f"reading {self._stream!r}")
        self._answered.set()
        self._loop.later(REOPEN_DELAY_S, self._open)
