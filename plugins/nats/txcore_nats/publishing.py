"""Publishing with asynchronous answers: every message handed over ends exactly once, within its deadline.

The publisher handles subjects, a window, answers and deadlines, not halves or ops. No message is ever sent twice. A
message handed to a connection that is then lost is unknown; it does not wait in a buffer for the next connection. A
message not yet handed to a connection is sent on the next one, or ends as not sent. All of it runs on the loop's
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BusyError,
    MessageRejectedError,
    TxcoreError,
)
from txcore.records import Status
from txcore_nats.client import LinkClient
from txcore_nats.codec import NO_RESPONDERS, STATUS, parse_headers, publish_command, read_ack, translate
from txcore_nats.connection import LoopThread
from txcore_nats.options import EXPIRY_TICK_S

_log = logging.getLogger("txcore.nats")

WINDOW_COUNT: Final = 4_000
"""Most messages that may wait for their answers."""
WRITE_BYTES: Final = 64 << 10
"""Bytes written at once; the server reads them while the next ones are prepared."""
WAITING_COUNT_MAX: Final = 50_000
"""Most messages that may wait for the connection or the window."""
WAITING_BYTES_MAX: Final = 256 << 20


class NoStreamError(BackendUnavailableError):
    """No stream took the message: certainly not stored. The subject has no stream, or the stream has no leader now."""


End = Callable[[Status, TxcoreError | None, Any], None]
"""A function that takes the end of a message: DURABLE with its answer; REFUSED or UNKNOWN with the error, and with the
`Ack` that brought it, if any. The answer is the `Ack` of a publish, or the `Found` of a look-up (None: no message)."""


Read = Callable[[str, Mapping[str, str] | None, bytes], tuple[Status, TxcoreError | None, Any] | None]
"""A function that turns an answer (the subject it answers, its headers, its body) into the arguments of `End`; it
returns None if more answers follow."""


class Sending:
    """One message under way; or a look-up, whose answer is a message; or a part of a batch with one answer."""

    __slots__ = ("body", "deadline_s", "end", "headers", "is_answered", "is_sent", "read", "subject", "token")

    def __init__(
        self,
        subject: str,
        body: bytes,
        headers: str,
        deadline_s: float,
        end: End,
        *,
        read: Read = read_ack,
        is_answered: bool = True,
    ) -> None:
        self.subject = subject
        self.body = body
        self.headers = headers
        self.deadline_s = deadline_s
        self.end: End | None = end
        self.read = read
        self.is_answered = is_answered
        self.is_sent = False
        self.token = b""

    def take_back(self) -> bool:
        """Cancel the end of this message; return False if it has ended already."""
        end, self.end = self.end, None
        return end is not None

    def settle(self, status: Status, error: TxcoreError | None = None, answer: Any = None) -> None:
        """End this message, once; later answers are dropped."""
        end, self.end = self.end, None
        if end is not None:
            end(status, error, answer)


class Publisher:
    """All publishes of one backend, with a window, a bound on waiting messages, and deadlines."""

    def __init__(self, loop: LoopThread, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._client: LinkClient | None = None
        self._inbox = ""
        self._count = 0
        self._in_flight: dict[bytes, Sending] = {}
        self._waiting: deque[Sending] = deque()
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._held: set[Sending] = set()
        self._is_timed = False
        self._end_error: TxcoreError | None = None
        self.payload_max = 0

    @property
    def is_idle(self) -> bool:
        """Whether no message waits, is unanswered or is held back."""
        return not (self._in_flight or self._waiting or self._held)

    def send(self, sending: Sending) -> None:
        """Publish *sending* as soon as connection and window allow."""
        if self._end_error is not None:
            sending.settle(Status.REFUSED, self._end_error)
            return
        if len(self._waiting) >= WAITING_COUNT_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            sending.settle(Status.REFUSED, BusyError(f"{len(self._waiting)} messages wait for NATS already"))
            return
        self._waiting.append(sending)
        self._waiting_bytes += len(sending.body)
        if not self._is_timed:
            self._start_clock()
        if not self._room.is_set():
            self._room.set()

    def hold(self, deadline_s: float, end: End) -> Sending:
        """Return a placeholder that ends as not sent at its deadline, unless `take_back` is called before."""
        held = Sending("", b"", "", deadline_s, end)
        self.watch(held)
        return held

    async def up(self, client: LinkClient) -> None:
        """Begin to send on a new connection."""
        self._inbox = client.new_inbox()
        await client.take(self._inbox, self._answered)
        self._client = client
        self.payload_max = client.max_payload
        self._pump = self._loop.spawn(self._pump_out(client))

    def down(self, error: TxcoreError) -> None:
        """End all sent messages as UNKNOWN after the connection was lost; the others wait until their deadlines."""
        self._client = None
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        self._room.set()
        sent, self._in_flight = self._in_flight, {}
        for sending in sent.values():
            sending.settle(Status.UNKNOWN, error)

    def refused(self, text: str) -> None:
        """Refuse the messages for a subject that the server does not permit, and *text* names in lower case."""
        for token, sending in list(self._in_flight.items()):
            if f'publish to "{sending.subject.lower()}"' in text:
                del self._in_flight[token]
                problem = f"NATS does not permit this user to publish to {sending.subject!r}"
                error = MessageRejectedError(problem, topic=sending.subject, reason="permission")
                sending.settle(Status.REFUSED, error)

    def fail_all(self, error: TxcoreError) -> None:
        """Settle all messages now, and all that are handed over later at once."""
        self._end_error = error
        self.down(error)
        while self._waiting:
            self._waiting.popleft().settle(Status.REFUSED, error)
        self._waiting_bytes = 0
        for sending in list(self._held):
            sending.settle(Status.REFUSED, error)
        self._held.clear()

    async def _pump_out(self, client: LinkClient) -> None:
        while self._client is client:
            if not self._waiting or len(self._in_flight) >= WINDOW_COUNT:
                self._room.clear()
                await self._room.wait()
            elif client.is_connected:
                await self._write(client)
            else:
                self._client = None  # no waiting message was written: they are sent on the next connection

    async def _write(self, client: LinkClient) -> None:
        """Write waiting messages, up to `WRITE_BYTES` and the window."""
        commands: list[bytes] = []
        written: list[Sending] = []
        size = 0
        while self._waiting and size < WRITE_BYTES and len(self._in_flight) < WINDOW_COUNT:
            sending = self._waiting.popleft()
            self._waiting_bytes -= len(sending.body)
            command = self._encode(sending) if sending.end is not None else None
            if command is not None:
                size += len(command)
                commands.append(command)
                written.append(sending)
        try:
            await client.write(b"".join(commands))
        except Exception as error:  # noqa: BLE001 - after any error of the driver the next message must be sent
            _log.exception("nats.publish_error")
            for sending in written:
                self._in_flight.pop(sending.token, None)
                sending.settle(Status.UNKNOWN, translate(error, f"publishing to {sending.subject!r}"))
        else:
            for sending in written:
                if not sending.is_answered:
                    sending.settle(Status.DURABLE)

    def _encode(self, sending: Sending) -> bytes | None:
        """Return the command of a message, and expect its answer; settle it and return None if it cannot be sent."""
        self._count += 1
        token = str(self._count)
        reply = f"{self._inbox}.{token}" if sending.is_answered else ""
        try:
            command = publish_command(sending.subject, reply, sending.headers, sending.body, self.payload_max)
        except (MessageRejectedError, UnicodeError) as error:
            text = f"NATS cannot carry this message for {sending.subject!r}: {error}"
            sending.settle(Status.REFUSED, MessageRejectedError(text, topic=sending.subject, reason="size"))
            return None
        if sending.is_answered:
            sending.token = token.encode()
            self._in_flight[sending.token] = sending
        sending.is_sent = True
        return command

    def _answered(self, token: bytes, raw_headers: bytes, data: bytes) -> None:
        sending = self._in_flight.get(token)
        if sending is None:
            return  # settled already
        try:
            headers = parse_headers(raw_headers) if raw_headers else None
            if headers is not None and headers.get(STATUS) == NO_RESPONDERS:
                text = f"no stream takes messages for {sending.subject!r}"
                answer: Any = (Status.REFUSED, NoStreamError(text), None)
            else:
                answer = sending.read(sending.subject, headers, data)
            if answer is not None:
                del self._in_flight[token]
                if self._waiting:
                    self._room.set()
                sending.settle(*answer)
        except Exception:  # noqa: BLE001 - a failing callback must not affect the others
            _log.exception("nats.answer_error")

    def watch(self, sending: Sending) -> None:
        """End *sending* at its deadline, although it is not handed to `send` yet."""
        self._held.add(sending)
        self._start_clock()

    def _start_clock(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._loop.loop.call_later(EXPIRY_TICK_S, self._look_at_clock)

    def _look_at_clock(self) -> None:
        """End the messages past their deadlines; one timer serves all, while there are any messages."""
        now_s = self._clock.elapsed_s()
        of_all = chain(self._in_flight.values(), self._waiting, self._held)
        try:
            for sending in [sending for sending in of_all if sending.deadline_s <= now_s]:
                self._expire(sending)
        finally:
            self._held = {sending for sending in self._held if sending.end is not None}
            if any(sending.end is None for sending in self._waiting):
                self._waiting = deque(sending for sending in self._waiting if sending.end is not None)
                self._waiting_bytes = sum(len(sending.body) for sending in self._waiting)
            self._is_timed = False
            if not self.is_idle:
                self._start_clock()

    def _expire(self, sending: Sending) -> None:
        # Expired messages do not count any more: a server that does not answer must not fill the window.
        self._in_flight.pop(sending.token, None)
        self._room.set()
        if sending.is_sent:
            error: TxcoreError = BackendTimeoutError("NATS has not answered in time; the message may be stored")
            sending.settle(Status.UNKNOWN, error)
        else:
            error = BackendUnavailableError("NATS cannot be reached or is too slow; the message was not sent")
            sending.settle(Status.REFUSED, error)
