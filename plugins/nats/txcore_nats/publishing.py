"""Publishing with asynchronous answers: every message handed over ends exactly once, within its deadline.

It knows subjects, a window, answers and deadlines, not halves or ops. Nothing is ever sent twice, and nothing waits in
a buffer for the next connection: what was handed to a connection that is lost is unknown, what was not goes out on the
next one, or ends as not sent. Everything runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from nats import errors
from nats.aio.client import Client

from txcore.clock import Clock
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BusyError,
    MessageRejectedError,
    TxcoreError,
)
from txcore.records import Status
from txcore_nats.codec import NO_RESPONDERS, STATUS, read_ack, read_direct, read_found, translate
from txcore_nats.connection import LoopThread
from txcore_nats.options import EXPIRY_TICK_S

_log = logging.getLogger("txcore.nats")

WINDOW_COUNT: Final = 4_000
"""Messages that may wait for their answers."""
WAITING_COUNT_MAX: Final = 50_000
"""Messages that may wait for the connection or the window."""
WAITING_BYTES_MAX: Final = 256 << 20


class NoStreamError(BackendUnavailableError):
    """No stream took the message: certainly not stored. There is none for the subject, or it has no leader now."""


End = Callable[[Status, TxcoreError | None, Any], None]
"""Takes what became of a message: DURABLE with the `Ack`, or for a look-up with what was `Found`, or None; REFUSED and
UNKNOWN with the error, and the `Ack` that brought it, if any."""


class Sending:
    """One message on its way; a look-up, whose answer is a message; or a part of what is answered as a whole."""

    __slots__ = ("body", "deadline_s", "end", "headers", "is_answered", "is_lookup", "is_sent", "subject", "token")

    def __init__(
        self,
        subject: str,
        body: bytes,
        headers: dict[str, str] | None,
        deadline_s: float,
        end: End,
        *,
        is_lookup: bool = False,
        is_answered: bool = True,
    ) -> None:
        self.subject = subject
        self.body = body
        self.headers = headers
        self.deadline_s = deadline_s
        self.end: End | None = end
        self.is_lookup = is_lookup
        self.is_answered = is_answered
        self.is_sent = False
        self.token = ""

    def take_back(self) -> bool:
        """Say whether it has not ended yet; it ends no more."""
        end, self.end = self.end, None
        return end is not None

    def settle(self, status: Status, error: TxcoreError | None = None, answer: Any = None) -> None:
        """End it, once; later answers are dropped."""
        end, self.end = self.end, None
        if end is not None:
            self.body, self.headers = b"", None  # the expiry list still holds this object for a while
            end(status, error, answer)


class Publisher:
    """All publishes of one backend, with a window, a bound on what waits, and deadlines."""

    def __init__(self, loop: LoopThread, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._client: Client | None = None
        self._inbox = ""
        self._count = 0
        self._in_flight: dict[str, Sending] = {}
        self._waiting: deque[Sending] = deque()
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._expiring: dict[int, list[Sending]] = {}
        self._end_error: TxcoreError | None = None
        self.payload_max = 0

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing is unanswered, and nothing is held back."""
        return not any(sending.end is not None for slot in self._expiring.values() for sending in slot)

    def send(self, sending: Sending) -> None:
        """Publish *sending* as soon as connection and window allow."""
        if self._end_error is not None:
            sending.settle(Status.REFUSED, self._end_error)
            return
        if len(self._waiting) >= WAITING_COUNT_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            sending.settle(Status.REFUSED, BusyError(f"{len(self._waiting)} messages wait for NATS already"))
            return
        self.watch(sending)
        self._waiting.append(sending)
        self._waiting_bytes += len(sending.body)
        self._room.set()

    def hold(self, deadline_s: float, end: End) -> Sending:
        """Return something that ends as not sent at its deadline, unless `take_back` comes first."""
        held = Sending("", b"", None, deadline_s, end)
        self.watch(held)
        return held

    async def up(self, client: Client) -> None:
        """A new connection is open."""
        self._inbox = f"{client.new_inbox()}."
        await client.subscribe(f"{self._inbox}*", cb=self._answered, pending_msgs_limit=-1, pending_bytes_limit=-1)
        self._client = client
        self.payload_max = client.max_payload
        self._pump = self._loop.spawn(self._pump_out(client))

    def down(self, error: TxcoreError) -> None:
        """The connection is gone: what was sent may be stored; what waits, waits on until its deadline."""
        self._client = None
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        self._room.set()
        sent, self._in_flight = self._in_flight, {}
        for sending in sent.values():
            sending.settle(Status.UNKNOWN, error)

    def refused(self, text: str) -> None:
        """The server does not permit a subject; its messages stay without an answer. *text* has it in lower case."""
        for token, sending in list(self._in_flight.items()):
            if f'publish to "{sending.subject.lower()}"' in text:
                del self._in_flight[token]
                problem = f"NATS does not permit this user to publish to {sending.subject!r}"
                error = MessageRejectedError(problem, topic=sending.subject, reason="permission")
                sending.settle(Status.REFUSED, error)

    def fail_all(self, error: TxcoreError) -> None:
        """Settle everything now, and whatever is still handed over, too."""
        self._end_error = error
        self.down(error)
        while self._waiting:
            self._waiting.popleft().settle(Status.REFUSED, error)
        self._waiting_bytes = 0
        for slot in list(self._expiring.values()):
            for sending in list(slot):
                sending.settle(Status.REFUSED, error)

    async def _pump_out(self, client: Client) -> None:
        while self._client is client:
            if not self._waiting or len(self._in_flight) >= WINDOW_COUNT:
                self._room.clear()
                await self._room.wait()
                continue
            sending = self._waiting.popleft()
            self._waiting_bytes -= len(sending.body)
            if sending.end is not None:
                await self._publish(client, sending)

    async def _publish(self, client: Client, sending: Sending) -> None:
        self._count += 1
        token = sending.token = str(self._count)
        if sending.is_answered:
            self._in_flight[token] = sending
        sending.is_sent = True
        reply = self._inbox + token if sending.is_answered else ""
        try:
            await client.publish(sending.subject, sending.body, reply, sending.headers)
            if not sending.is_answered:
                sending.settle(Status.DURABLE)
        except (errors.ConnectionClosedError, errors.ConnectionDrainingError, errors.OutboundBufferLimitError):
            # Raised before anything was written: it goes out with the next connection.
            self._in_flight.pop(token, None)
            if sending.end is not None:
                sending.is_sent = False
                self._waiting.appendleft(sending)
                self._waiting_bytes += len(sending.body)
            self._client = None
        except (errors.MaxPayloadError, errors.BadHeaderError, errors.BadSubjectError, UnicodeError) as error:
            self._in_flight.pop(token, None)
            text = f"NATS cannot carry this message for {sending.subject!r}: {error}"
            sending.settle(Status.REFUSED, MessageRejectedError(text, topic=sending.subject, reason="size"))
        except Exception as error:  # noqa: BLE001 - whatever the driver does, the next message must go out
            _log.exception("nats.publish_error")
            self._in_flight.pop(token, None)
            sending.settle(Status.UNKNOWN, translate(error, f"publishing to {sending.subject!r}"))

    async def _answered(self, message: Any) -> None:
        sending = self._in_flight.pop(message.subject[len(self._inbox) :], None)
        if sending is None:
            return  # settled already
        if self._waiting:
            self._room.set()
        try:
            sending.settle(*self._read(sending, message))
        except Exception:  # noqa: BLE001 - one failing taker must not take the others along
            _log.exception("nats.answer_error")

    def _read(self, sending: Sending, message: Any) -> tuple[Status, TxcoreError | None, Any]:
        status = message.headers.get(STATUS) if message.headers else None
        if status == NO_RESPONDERS:
            return Status.REFUSED, NoStreamError(f"no stream takes messages for {sending.subject!r}"), None
        if not sending.is_lookup:
            return read_ack(message.data, sending.subject)
        if sending.body:
            return read_found(message.data, sending.subject)
        return read_direct(message, sending.subject)

    def watch(self, sending: Sending) -> None:
        """Hold *sending* to its deadline, though it is not to be sent yet."""
        slot = int(sending.deadline_s / EXPIRY_TICK_S)
        waiting = self._expiring.get(slot)
        if waiting is None:
            waiting = self._expiring[slot] = []
            delay_s = (slot + 1) * EXPIRY_TICK_S - self._clock.elapsed_s()
            self._loop.loop.call_later(max(delay_s, 0.0), self._expire_slot, slot)
        waiting.append(sending)

    def _expire_slot(self, slot: int) -> None:
        """End what is still under way of a slot's sendings: one timer serves all whose deadlines are that close."""
        for sending in self._expiring.pop(slot):
            if sending.end is not None:
                self._expire(sending)

    def _expire(self, sending: Sending) -> None:
        # What has expired counts no more: a server that does not answer must not use up the window.
        self._in_flight.pop(sending.token, None)
        self._room.set()
        if sending.is_sent:
            error: TxcoreError = BackendTimeoutError("NATS has not answered in time; the message may be stored")
            sending.settle(Status.UNKNOWN, error)
        else:
            error = BackendUnavailableError("NATS cannot be reached or is too slow; the message was not sent")
            sending.settle(Status.REFUSED, error)
