"""Stream consumers: one on one channel, single records, and a short stream from its beginning to a marker.

A stream consumer's acks are only credit. A consumer is stopped by closing its channel, never by a cancel, which would
end the whole connection (pika #1389). All of it runs on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, TxcoreError
from txcore.records import LogRecord, Position
from txcore_rabbitmq.codec import OFFSET_HEADER, is_login_refused, offset_of, translate
from txcore_rabbitmq.connection import LoopThread

PREFETCH_COUNT_MIN: Final = 8
PREFETCH_COUNT_MAX: Final = 400
PREFETCH_BYTES: Final = 64_000_000
"""Most bytes under way to one reader; with more, reading is not faster."""
ACKS_PER_PREFETCH: Final = 4
FETCH_SPAN: Final = 200
"""Greatest distance, in records, at which the open consumer reads on to a wanted record."""
FETCH_COUNT_MAX: Final = 16
"""Most fetches that run at once; each uses a channel."""
FETCH_TIMEOUT_S: Final = 5.0
SILENCE_S: Final = 1.0
"""Time, in seconds, without a wanted record, after which a fetch asks for the stream's last records. If these arrive,
it waits half of this time again."""

Deliver = Callable[[Position, bytes, int, str | None], None]
"""A function that takes a record's offset, body, delivery tag and message id."""


class Consumer:
    """One stream consumer on one channel; *started* is called when the broker has accepted it."""

    def __init__(
        self,
        link: ReadingLink,
        stream: str,
        start: Position | str,
        deliver: Deliver,
        ended: Callable[[BaseException], None],
        started: Callable[[], None] | None = None,
    ) -> None:
        self._stream = stream
        self._start = start
        self._prefetch = link.prefetch_count
        self._deliver = deliver
        self._ended = ended
        self._on_started = started
        self._is_stopped = False
        self._is_consuming = False
        self._acked = 0
        self._channel = link.connection.channel(on_open_callback=self._opened)
        self._channel.add_on_close_callback(self._closed)

    @property
    def is_started(self) -> bool:
        """Whether the broker has accepted the consumer, and it is not stopped."""
        return self._is_consuming and not self._is_stopped

    def ack(self, tag: int) -> None:
        """Give credit for all records up to *tag*, unless this was done before."""
        if self._channel.is_open and tag > self._acked:
            self._acked = tag
            self._channel.basic_ack(tag, multiple=True)

    def stop(self) -> None:
        """Close the channel; no record is delivered any more."""
        self._is_stopped = True
        if self._channel.is_open:
            self._channel.close()

    def _opened(self, channel: Any) -> None:
        if self._is_stopped:
            channel.close()
            return
        channel.add_on_cancel_callback(lambda _frame: self._fail(BackendUnavailableError("the stream went away")))
        channel.basic_qos(prefetch_count=self._prefetch)
        arguments = {OFFSET_HEADER: self._start}
        channel.basic_consume(self._stream, self._arrived, arguments=arguments, callback=self._started)

    def _started(self, _frame: Any) -> None:
        self._is_consuming = True
        if self._on_started is not None:
            self._on_started()

    def _arrived(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if not self._is_stopped:
            self._deliver(offset_of(properties), body, method.delivery_tag, properties.message_id)

    def _closed(self, _channel: Any, error: BaseException) -> None:
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._is_stopped:
            self.stop()
            self._ended(error)


class ReadingLink:
    """The reading connection and the requests on it; notifies them when it is opened and lost."""

    def __init__(self, loop: LoopThread, body_size_max: int) -> None:
        self.loop = loop
        self.prefetch_count = min(PREFETCH_COUNT_MAX, max(PREFETCH_COUNT_MIN, PREFETCH_BYTES // body_size_max))
        self.ack_every = self.prefetch_count // ACKS_PER_PREFETCH
        self.connection: Any = None
        self.error: TxcoreError | None = None
        self.is_closed = False
        self._under_way: set[Future[Any]] = set()
        self._waiting: dict[Callable[[], None], Callable[[TxcoreError], None] | None] = {}
        self._fetches: deque[Fetch] = deque()
        self._fetch_count = 0

    def watch(self, future: Future[Any]) -> None:
        """Fail *future* when the backend is closed, unless it has ended before."""
        if self.is_closed:
            future.set_exception(ClosedError("this backend is closed"))
        else:
            self._under_way.add(future)
            future.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        """Fail all requests under way."""
        self.is_closed = True
        for future in list(self._under_way):
            if not future.done():
                future.set_exception(ClosedError("the backend was closed before the broker answered"))

    def fetch(self, fetch: Fetch) -> None:
        """Run a fetch as soon as fewer than `FETCH_COUNT_MAX` run."""
        self.watch(fetch.future)
        self.loop.later(FETCH_TIMEOUT_S, fetch.expire)
        self._fetches.append(fetch)
        self._next_fetch()

    def when_up(self, request: Callable[[], None], refused: Callable[[TxcoreError], None] | None = None) -> None:
        """Run *request* as soon as there is a connection, or *refused* if the broker refuses the login."""
        if self.connection is not None:
            request()
        elif refused is not None and self.error is not None and is_login_refused(self.error):
            refused(self.error)
        else:
            self._waiting[request] = refused

    def forget(self, request: Callable[[], None]) -> None:
        """Drop a request that waits for a connection, if it still does."""
        self._waiting.pop(request, None)

    def trouble(self, doing: str) -> TxcoreError:
        """Return the error of a request without an answer in time."""
        if self.connection is None:
            reason = "no connection yet" if self.error is None else str(self.error)
            return BackendUnavailableError(f"{doing}: {reason}")
        return BackendTimeoutError(f"{doing}: no answer from RabbitMQ in time")

    def link_up(self, connection: Any) -> None:
        """Run the waiting requests on a new connection."""
        self.connection = connection
        self.error = None
        waiting, self._waiting = self._waiting, {}
        for request in waiting:
            request()

    def link_down(self, error: TxcoreError) -> None:
        """Forget the lost connection; the channels notify the consumers."""
        self.connection = None
        self.error = error
        if is_login_refused(error):
            for request, refused in list(self._waiting.items()):
                if refused is not None:
                    del self._waiting[request]
                    refused(error)

    def link_blocked(self, reason: str) -> None:
        """Ignore alarms, as these stop publishers only."""

    def _next_fetch(self) -> None:
        if self._fetches and self._fetch_count < FETCH_COUNT_MAX:
            fetch = self._fetches.popleft()
            if fetch.future.done():
                self._next_fetch()
                return
            self._fetch_count += 1
            fetch.future.add_done_callback(lambda _future: self.loop.call(self._fetch_ended))
            self.when_up(fetch.open)

    def _fetch_ended(self) -> None:
        self._fetch_count -= 1
        self._next_fetch()


class Fetch:
    """A request for single records, which jumps from one to the next."""

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
        self._consumers: list[Consumer] = []

    def open(self) -> None:
        """Jump to the next wanted record."""
        self._stop()
        if self.future.done():
            return
        if not self._wanted:
            self.future.set_result(self._found)
            return
        self._consume(self._wanted[0], self._deliver)
        wanted = self._wanted[0]
        self._link.loop.later(SILENCE_S, lambda: self._look_for_end(wanted))

    def expire(self) -> None:
        """Fail the fetch, if it has not ended."""
        if not self.future.done():
            self._stop()
            self.future.set_exception(self._link.trouble(f"reading {self._stream!r}"))

    def _consume(self, start: Position | str, deliver: Deliver) -> None:
        self._consumers.append(Consumer(self._link, self._stream, start, deliver, self._ended))

    def _stop(self) -> None:
        while self._consumers:
            self._consumers.pop().stop()

    def _deliver(self, offset: Position, body: bytes, tag: int, _message_id: str | None) -> None:
        wanted = self._wanted
        while wanted and wanted[0] < offset:
            wanted.popleft()
        if wanted and wanted[0] == offset:
            wanted.popleft()
            self._found[offset] = LogRecord(offset, body)
        if not wanted or wanted[0] - offset > FETCH_SPAN:
            self.open()
        elif tag % self._link.ack_every == 0:
            self._consumers[0].ack(tag)

    def _look_for_end(self, wanted: Position) -> None:
        """Ask for the stream's last records, as none has arrived: if they do, *wanted* is after the stream's end."""
        if not self._is_awaited(wanted) or self._link.connection is None or len(self._consumers) > 1:
            return

        def deliver(offset: Position, _body: bytes, _tag: int, _message_id: str | None) -> None:
            if offset < wanted:
                self._link.loop.later(SILENCE_S / 2, nothing)

        def nothing() -> None:
            if self._is_awaited(wanted):
                self._wanted.clear()  # ascending, so the others are after the end, too
                self.open()

        self._consume("last", deliver)

    def _is_awaited(self, wanted: Position) -> bool:
        return not self.future.done() and bool(self._wanted) and self._wanted[0] == wanted

    def _ended(self, error: BaseException) -> None:
        self._stop()
        if not self.future.done():
            self.future.set_exception(translate(error, f"reading {self._stream!r}"))


class Scan:
    """A request that reads a short stream from its beginning until *take* returns True."""

    def __init__(self, link: ReadingLink, stream: str, take: Callable[[bytes], bool], future: Future[Any]) -> None:
        self._link = link
        self._stream = stream
        self._take = take
        self._future = future
        self._consumer: Consumer | None = None

    def open(self) -> None:
        """Start to read."""
        if not self._future.done():
            self._consumer = Consumer(self._link, self._stream, "first", self._deliver, self._ended)

    def expire(self) -> None:
        """Fail the scan, if it has not ended."""
        if not self._future.done():
            if self._consumer is not None:
                self._consumer.stop()
            self._future.set_exception(self._link.trouble(f"reading {self._stream!r}"))

    def refuse(self, error: TxcoreError) -> None:
        """Fail the scan, as the broker refuses the login."""
        if not self._future.done():
            self._future.set_exception(error)

    def _deliver(self, _offset: Position, body: bytes, tag: int, _message_id: str | None) -> None:
        assert self._consumer is not None
        if self._take(body):
            self._consumer.stop()
        elif tag % self._link.ack_every == 0:
            self._consumer.ack(tag)

    def _ended(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(translate(error, f"reading {self._stream!r}"))
