"""Reading streams: from a position, single records, and from the beginning to a marker.

A stream consumer's acks are nothing but credit; a consumer is stopped by closing its channel, never by a cancel,
which would cost the whole connection (pika #1389).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, DataLossError, TxcoreError
from txcore.records import LogRecord, Position
from txcore_rabbitmq.codec import OFFSET_HEADER, offset_of, translate
from txcore_rabbitmq.connection import LoopThread

_log = logging.getLogger("txcore.rabbitmq")

PREFETCH_COUNT: Final = 1_000
ACK_EVERY: Final = PREFETCH_COUNT // 4
FETCH_SPAN: Final = 200
"""A wanted record at most this far ahead is waited for on the consumer that is open."""
REOPEN_DELAY_S: Final = 0.5
FETCH_COUNT_MAX: Final = 16
"""Fetches that run at once; each takes a channel."""
FETCH_TIMEOUT_S: Final = 5.0
START_TIMEOUT_S: Final = 2.0
"""A record that was seen before comes at once, or is gone; below that, brokers that elect a leader look alike."""


class Consumer:
    """One stream consumer on one channel; on the loop's thread. *deliver* gets offset, body and delivery tag."""

    def __init__(
        self,
        connection: Any,
        stream: str,
        start: Position | str,
        deliver: Callable[[Position, bytes, int], None],
        ended: Callable[[BaseException], None],
    ) -> None:
        self._stream = stream
        self._start = start
        self._deliver = deliver
        self._ended = ended
        self._is_stopped = False
        self._is_consuming = False
        self._channel = connection.channel(on_open_callback=self._opened)
        self._channel.add_on_close_callback(self._closed)

    @property
    def is_started(self) -> bool:
        """The broker has accepted the consumer, and it is not stopped."""
        return self._is_consuming and not self._is_stopped

    def ack(self, tag: int) -> None:
        """Give credit for everything up to *tag*."""
        if self._channel.is_open:
            self._channel.basic_ack(tag, multiple=True)

    def stop(self) -> None:
        """Close the channel; nothing is delivered any more."""
        self._is_stopped = True
        if self._channel.is_open:
            self._channel.close()

    def _opened(self, channel: Any) -> None:
        if self._is_stopped:
            channel.close()
            return
        channel.add_on_cancel_callback(lambda _frame: self._fail(BackendUnavailableError("the stream went away")))
        channel.basic_qos(prefetch_count=PREFETCH_COUNT)
        arguments = {OFFSET_HEADER: self._start}
        channel.basic_consume(self._stream, self._arrived, arguments=arguments, callback=self._started)

    def _started(self, _frame: Any) -> None:
        self._is_consuming = True

    def _arrived(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if not self._is_stopped:
            self._deliver(offset_of(properties), body, method.delivery_tag)

    def _closed(self, _channel: Any, error: BaseException) -> None:
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._is_stopped:
            self.stop()
            self._ended(error)


class ReadingLink:
    """The reading connection and what is open on it; tells everyone when it comes and goes. On the loop's thread."""

    def __init__(self, loop: LoopThread) -> None:
        self.loop = loop
        self.connection: Any = None
        self._waiting: set[Callable[[], None]] = set()
        self._fetches: deque[Fetch] = deque()
        self._fetch_count = 0

    def fetch(self, fetch: Fetch) -> None:
        """Run a fetch when its turn comes."""
        self.loop.later(FETCH_TIMEOUT_S, fetch.expire)
        self._fetches.append(fetch)
        self._next_fetch()

    def when_up(self, request: Callable[[], None]) -> None:
        """Run *request* now, or as soon as there is a connection."""
        if self.connection is not None:
            request()
        else:
            self._waiting.add(request)

    def link_up(self, connection: Any) -> None:
        """The connection is open."""
        self.connection = connection
        waiting, self._waiting = self._waiting, set()
        for request in waiting:
            request()

    def link_down(self, error: BaseException) -> None:
        """The connection is gone; consumers hear of it through their channels."""
        self.connection = None
        _log.info("rabbitmq.reading_down", extra={"reason": repr(error)})

    def link_blocked(self, *, is_blocked: bool) -> None:
        """Alarms stop publishers only."""

    def _next_fetch(self) -> None:
        if self._fetches and self._fetch_count < FETCH_COUNT_MAX:
            self._fetch_count += 1
            fetch = self._fetches.popleft()
            fetch.future.add_done_callback(lambda _future: self.loop.call(self._fetch_ended))
            self.when_up(fetch.open)

    def _fetch_ended(self) -> None:
        self._fetch_count -= 1
        self._next_fetch()


class StreamReader:
    """The port's Reader on one stream. Comes back by itself after a lost connection, at the last record it had."""

    def __init__(self, link: ReadingLink, stream: str, start: Position | None) -> None:
        self._loop = link.loop
        self._link = link
        self._stream = stream
        self._expected = start
        self._last: Position | None = None
        self._records: deque[tuple[LogRecord, Consumer, int]] = deque()
        self._error: TxcoreError | None = None
        self._is_lost = False
        self._is_closed = False
        self._taken = 0
        self._consumer: Consumer | None = None
        self._loop.call(self._open)

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """Return what has arrived."""
        if self._is_closed:
            raise ClosedError("this reader is closed")
        records = self._records
        if not records and self._error is not None:
            error = self._error
            if not self._is_lost:
                self._error = None
            raise error
        taken: list[LogRecord] = []
        while records and len(taken) < count_max:
            record, consumer, tag = records.popleft()
            taken.append(record)
            self._taken += 1
            if self._taken >= ACK_EVERY:
                self._taken = 0
                self._loop.call(lambda consumer=consumer, tag=tag: consumer.ack(tag))  # type: ignore[misc]
        return taken

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """Re-read single records."""
        future: Future[Mapping[Position, LogRecord]] = Future()
        future.set_running_or_notify_cancel()
        fetch = Fetch(self._link, self._stream, sorted(set(positions)), future)
        self._loop.call(lambda: self._link.fetch(fetch))
        return future

    def close(self) -> None:
        """Stop reading."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call(self._stop)

    def _stop(self) -> None:
        if self._consumer is not None:
            self._consumer.stop()

    def _open(self) -> None:
        if not self._is_closed and not self._is_lost:
            self._link.when_up(self._attach)

    def _attach(self) -> None:
        # Always at a record that was seen, so that a later first record means loss and not one of a stream's gaps.
        expected = self._last if self._last is not None else self._expected
        is_first = True

        def deliver(offset: Position, body: bytes, tag: int) -> None:
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
            self._records.append((LogRecord(offset, body), consumer, tag))

        def overdue() -> None:
            if is_first and expected is not None and consumer is self._consumer and consumer.is_started:
                consumer.stop()
                self._probe(expected)

        start: Position | str = "first" if expected is None else expected
        consumer = Consumer(self._link.connection, self._stream, start, deliver, self._ended)
        self._consumer = consumer
        self._loop.later(START_TIMEOUT_S, overdue)

    def _probe(self, asked: Position) -> None:
        """Find out where the log begins, as a record that was seen has not come."""

        def deliver(offset: Position, _body: bytes, _tag: int) -> None:
            consumer.stop()
            if offset > asked:
                self._lose(asked, offset)
            elif consumer is self._consumer:
                # The log goes on below: the broker was slow, or has lost its tail and this place with it.
                self._attach()

        def silent() -> None:
            if consumer is self._consumer and consumer.is_started:
                self._lose(asked, None)

        consumer = Consumer(self._link.connection, self._stream, "first", deliver, self._ended)
        self._consumer = consumer
        self._loop.later(START_TIMEOUT_S, silent)

    def _lose(self, asked: int, first: int | None) -> None:
        self._is_lost = True
        self._error = DataLossError(asked, first)
        if self._consumer is not None:
            self._consumer.stop()

    def _ended(self, error: BaseException) -> None:
        self._error = translate(error, f"reading {self._stream!r}")
        self._loop.later(REOPEN_DELAY_S, self._open)


class Fetch:
    """Reads single records by jumping from one to the next; on the loop's thread."""

    def __init__(
        self,
        link: ReadingLink,
        stream: str,
        positions: Sequence[Position],
        future: Future[Mapping[Position, LogRecord]],
    ) -> None:
        self._link = link
        self._stream = stream
        self._wanted = deque(positions)
        self._found: dict[Position, LogRecord] = {}
        self.future = future
        self._consumer: Consumer | None = None

    def open(self) -> None:
        """Jump to the next wanted record."""
        if self.future.done():
            return
        if not self._wanted:
            self.future.set_result(self._found)
            return
        self._consumer = Consumer(self._link.connection, self._stream, self._wanted[0], self._deliver, self._ended)

    def expire(self) -> None:
        """Give up."""
        if not self.future.done():
            if self._consumer is not None:
                self._consumer.stop()
            self.future.set_exception(BackendTimeoutError(f"records of {self._stream!r} have not arrived in time"))

    def _deliver(self, offset: Position, body: bytes, tag: int) -> None:
        assert self._consumer is not None
        wanted = self._wanted
        while wanted and wanted[0] < offset:
            wanted.popleft()
        if wanted and wanted[0] == offset:
            wanted.popleft()
            self._found[offset] = LogRecord(offset, body)
        if not wanted or wanted[0] - offset > FETCH_SPAN:
            self._consumer.stop()
            self.open()
        elif tag % ACK_EVERY == 0:
            self._consumer.ack(tag)

    def _ended(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(translate(error, f"reading {self._stream!r}"))


class Scan:
    """Reads a short stream from its beginning until *take* answers True; on the loop's thread."""

    def __init__(self, link: ReadingLink, stream: str, take: Callable[[bytes], bool], future: Future[Any]) -> None:
        self._link = link
        self._stream = stream
        self._take = take
        self._future = future
        self._consumer: Consumer | None = None

    def open(self) -> None:
        """Start to read."""
        if not self._future.done():
            self._consumer = Consumer(self._link.connection, self._stream, "first", self._deliver, self._ended)

    def expire(self) -> None:
        """Give up."""
        if not self._future.done():
            if self._consumer is not None:
                self._consumer.stop()
            self._future.set_exception(BackendTimeoutError(f"{self._stream!r} could not be read in time"))

    def _deliver(self, _offset: Position, body: bytes, tag: int) -> None:
        assert self._consumer is not None
        if self._take(body):
            self._consumer.stop()
        elif tag % ACK_EVERY == 0:
            self._consumer.ack(tag)

    def _ended(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(translate(error, f"reading {self._stream!r}"))
