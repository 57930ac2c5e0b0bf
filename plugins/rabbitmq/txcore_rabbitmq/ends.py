"""The end of a stream: AMQP does not report it, so txcore appends a marker and reads it back.

Readers recognize the marker by its message id, and txcore's readers never return it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from txcore.errors import BackendUnavailableError, TxcoreError
from txcore.records import Position, Status
from txcore_rabbitmq.codec import translate
from txcore_rabbitmq.streams import Consumer, ReadingLink

MARKER_PREFIX: Final = "txcore-end."
"""Prefix of the message ids of markers; the ids of txcore's other records are numbers."""
AGAIN_S: Final = 1.0
"""Wait, in seconds, before a marker is sent again: the broker reports a consumer as started before it is attached."""
AUTHOR: Final = "txcore_rabbitmq"

Ended = Callable[[Status, TxcoreError | None], None]
Append = Callable[[str, bytes, Ended], None]
"""A function that appends a record with a message id to the stream, and reports the outcome on any thread."""


def is_end_marker(message_id: str | None) -> bool:
    """Return whether a record with this message id is a marker."""
    return message_id is not None and message_id.startswith(MARKER_PREFIX)


class EndSearch:
    """The questions for the end of one stream, with one marker for all that wait; on the reading loop's thread.

    The consumer that waits for the marker gets only records appended from now on, so the answer does not depend on the
    reader's position in the log.
    """

    def __init__(
        self, link: ReadingLink, stream: str, append: Append, body: bytes, marker: str, timeout_s: float
    ) -> None:
        self._link = link
        self._stream = stream
        self._append = append
        self._body = body
        self._marker = marker
        self._timeout_s = timeout_s
        self._round = 0
        self._asking: list[Future[Position]] = []  #: questions that the current marker answers
        self._late: list[Future[Position]] = []  #: questions asked after that marker was sent
        self._is_sent = False
        self._consumer: Consumer | None = None
        self._closed: TxcoreError | None = None

    def ask(self, future: Future[Position]) -> None:
        """Resolve *future* with a position after every record that was stored before this call."""
        self._link.watch(future)
        if future.done():
            return
        if self._closed is not None:
            future.set_exception(self._closed)
            return
        self._link.loop.later(self._timeout_s, partial(self._expire, future))
        if self._is_sent:
            self._late.append(future)
            return
        self._asking.append(future)
        if len(self._asking) == 1:
            self._begin()

    def close(self) -> None:
        """Fail all open questions; idempotent."""
        self._closed = BackendUnavailableError(f"the reader of {self._stream!r} was closed before its end was known")
        late, self._late = self._late, []
        self._finish(error=self._closed)
        _end_all(late, error=self._closed)

    def _begin(self) -> None:
        self._round += 1
        self._link.when_up(partial(self._attach, self._round), partial(self._refused, self._round))

    def _attach(self, number: int) -> None:
        if number == self._round and self._asking:
            ended, started = partial(self._ended, number), partial(self._send, number)
            self._consumer = Consumer(self._link, self._stream, "next", self._deliver, ended, started)

    def _send(self, number: int) -> None:
        if number == self._round and self._asking:
            self._is_sent = True
            self._append(self._marker_id, self._body, partial(self._appended, number))
            self._link.loop.later(AGAIN_S, partial(self._send, number))

    @property
    def _marker_id(self) -> str:
        return f"{self._marker}.{self._round}"

    def _appended(self, number: int, status: Status, error: TxcoreError | None) -> None:
        if status is Status.REFUSED and error is not None:
            self._link.loop.call(partial(self._refused, number, error))

    def _deliver(self, offset: Position, _body: bytes, tag: int, message_id: str | None) -> None:
        if message_id == self._marker_id:
            self._finish(Position(offset + 1))
        elif tag % self._link.ack_every == 0 and self._consumer is not None:
            self._consumer.ack(tag)

    def _ended(self, number: int, error: BaseException) -> None:
        self._refused(number, translate(error, f"reading {self._stream!r}"))

    def _refused(self, number: int, error: TxcoreError) -> None:
        if number == self._round and self._asking:
            self._finish(error=error)

    def _expire(self, future: Future[Position]) -> None:
        if not future.done():
            future.set_exception(self._link.trouble(f"the end of {self._stream!r} could not be found"))
            if all(each.done() for each in self._asking):
                self._finish()

    def _finish(self, end: Position | None = None, error: TxcoreError | None = None) -> None:
        asking, self._asking = self._asking, [future for future in self._late if not future.done()]
        self._late = []
        self._is_sent = False
        self._round += 1
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.stop()
        _end_all(asking, end, error)
        if self._asking:
            self._begin()


def _end_all(futures: list[Future[Any]], end: Position | None = None, error: TxcoreError | None = None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(end)
