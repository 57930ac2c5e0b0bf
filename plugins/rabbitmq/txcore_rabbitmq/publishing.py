"""Publishing with asynchronous confirms: every message handed over ends exactly once, within its deadline.

It knows lanes, tags, returns and deadlines, not halves or ops. Everything runs on the loop's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
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
from txcore_rabbitmq.codec import log_properties, translate, translate_refusal
from txcore_rabbitmq.connection import LoopThread

_log = logging.getLogger("txcore.rabbitmq")

WINDOW_COUNT: Final = 4_000
"""Messages that may wait for their confirms."""
WAITING_COUNT_MAX: Final = 100_000
"""Messages that may wait for the connection or the window."""
UNANSWERED_COUNT_MAX: Final = 50_000
"""Messages of one lane without an answer, expired ones included; then it gets a new channel."""
LANE_COUNT_MAX: Final = 256
EXPIRY_TICK_S: Final = 0.05
LOG_LANE: Final = "<log>"
"""The lane of our own records; no exchange can have this name, as the characters are not AMQP's."""
PROBE_LANE: Final = "<probe>"
"""A lane that may be killed without harm; leads to the default exchange too."""

End = Callable[[Status, TxcoreError | None], None]


class Sending:
    """One message on its way. *lane* is LOG_LANE or the name of an exchange."""

    __slots__ = (
        "body",
        "deadline_s",
        "end",
        "freed",
        "is_confirmed",
        "is_doubtful",
        "is_returned",
        "is_sent",
        "lane",
        "message_id",
        "older",
        "properties",
        "routing_key",
    )

    def __init__(
        self,
        lane: str,
        routing_key: str,
        body: bytes,
        deadline_s: float,
        end: End,
        *,
        properties: Any = None,
        message_id: str = "",
    ) -> None:
        self.lane = lane
        self.routing_key = routing_key
        self.body = body
        self.deadline_s = deadline_s
        self.end: End | None = end
        self.properties = properties
        self.message_id = message_id
        self.freed: Callable[[], None] | None = None
        self.older: Sending | None = None
        self.is_sent = False
        self.is_confirmed = False
        self.is_returned = False
        self.is_doubtful = False

    def settle(self, status: Status, error: TxcoreError | None = None) -> None:
        """End it, once; later answers are dropped."""
        end, self.end = self.end, None
        if end is not None:
            self.body = b""  # the expiry list still holds this object for a while
            self.properties = None
            if self.freed is not None:
                self.freed()
            end(status, error)


class Lane:
    """One channel in confirm mode: for our logs, or for one target exchange, so that an error that closes it
    hurts nobody else.
    """

    def __init__(self, name: str, connection: Any, freed: Callable[[], None]) -> None:
        self.name = name
        self.unconfirmed: dict[int, Sending] = {}
        self._freed = freed
        self._waiting: deque[Sending] = deque()
        self._by_id: dict[str, Sending] = {}
        self._tag = 0
        self._is_ready = False
        self.is_dead = False
        self._exchange = "" if name in (LOG_LANE, PROBE_LANE) else name
        self._channel = connection.channel(on_open_callback=self._opened)
        self._channel.add_on_close_callback(self._closed)

    def send(self, sending: Sending) -> None:
        """Publish, or keep until the channel is open."""
        if not self._is_ready:
            self._waiting.append(sending)
            return
        if sending.end is None:
            return
        message_id = sending.message_id
        if message_id:
            sending.older = self._by_id.get(message_id)
            properties = sending.properties
        else:
            message_id = sending.message_id = str(self._tag + 1)
            properties = log_properties(message_id)
        self._channel.basic_publish(self._exchange, sending.routing_key, sending.body, properties, mandatory=True)
        self._tag += 1
        sending.is_sent = True
        self._by_id[message_id] = sending
        self.unconfirmed[self._tag] = sending

    def retire(self) -> None:
        """Close the channel of an idle lane."""
        self.is_dead = True
        if self._channel.is_open:
            self._channel.close()

    def fail(self, error: TxcoreError) -> None:
        """The connection is gone: what was sent may be stored; what was not stays certain."""
        self.is_dead = True
        self._is_ready = False
        sent, self.unconfirmed = self.unconfirmed, {}
        self._by_id.clear()
        for sending in sent.values():
            sending.settle(Status.UNKNOWN, error)
        while self._waiting:
            self._waiting.popleft().settle(Status.REFUSED, error)

    def _opened(self, channel: Any) -> None:
        if self._exchange:
            # A missing exchange shows here, where nothing is under way yet.
            channel.exchange_declare(self._exchange, passive=True, callback=self._checked)
        else:
            self._checked(None)

    def _checked(self, _frame: Any) -> None:
        self._channel.add_on_return_callback(self._returned)
        self._channel.confirm_delivery(self._confirmed, callback=self._ready)

    def _ready(self, _frame: Any) -> None:
        self._is_ready = True
        while self._waiting and self._is_ready:
            self.send(self._waiting.popleft())

    def _returned(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        # A return names nothing but the message id. Of several under way with one id, any may be meant.
        candidates = []
        sending = self._by_id.get(properties.message_id)
        while sending is not None:
            if not sending.is_confirmed:
                candidates.append(sending)
            sending = sending.older
        for candidate in candidates:
            candidate.is_returned = len(candidates) == 1
            candidate.is_doubtful = len(candidates) > 1
        _log.info("rabbitmq.returned", extra={"exchange": method.exchange, "reply": method.reply_text})

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        tag, is_ack, unconfirmed = method.delivery_tag, method.NAME == "Basic.Ack", self.unconfirmed
        if method.multiple:
            tags = []
            for sent in unconfirmed:
                if tag and sent > tag:
                    break
                tags.append(sent)
        else:
            tags = [tag]
        for sent in tags:
            sending = unconfirmed.pop(sent, None)
            if sending is not None:
                sending.is_confirmed = True
                sending.older = None
                if self._by_id.get(sending.message_id) is sending:
                    del self._by_id[sending.message_id]
                self._conclude(sending, is_ack=is_ack)
        self._freed()

    def _conclude(self, sending: Sending, *, is_ack: bool) -> None:
        if sending.is_returned:
            # The return came first; the ack behind it says only that the broker is done with the message.
            sending.settle(Status.REFUSED, _no_route(self._exchange, sending.routing_key))
        elif sending.is_doubtful:
            sending.settle(Status.UNKNOWN, BackendUnavailableError("one of several messages with this id came back"))
        elif is_ack:
            sending.settle(Status.DURABLE)
        elif self.name == LOG_LANE:
            sending.settle(
                Status.UNKNOWN, BackendUnavailableError(f"stream {sending.routing_key!r} did not take a record")
            )
        else:
            # One of several queues behind an exchange may have taken it.
            sending.settle(
                Status.REFUSED,
                MessageRejectedError(
                    f"a queue behind {self._exchange!r}/{sending.routing_key!r} refuses messages (full?)",
                    topic=sending.routing_key,
                    reason="rejected",
                ),
            )

    def _closed(self, _channel: Any, error: BaseException) -> None:
        if not self.is_dead:
            topic = self._exchange or "the default exchange"
            if self._is_ready:
                self.fail(translate(error, f"publishing to {topic!r}"))
            else:
                self.fail(translate_refusal(error, topic))
            self._freed()


class Publisher:
    """All lanes of one connection, with a window, a bound on what waits, and deadlines."""

    def __init__(self, loop: LoopThread, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._connection: Any = None
        self._is_blocked = False
        self._lanes: dict[str, Lane] = {}
        self._waiting: deque[Sending] = deque()
        self._expiring: dict[int, list[Sending]] = {}
        self._is_ticking = False
        self._live_count = 0

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is unconfirmed."""
        return not self._waiting and not self._live_count

    def send(self, sending: Sending) -> None:
        """Publish *sending* as soon as connection, lane and window allow."""
        self.watch(sending)
        self.start(sending)

    def watch(self, sending: Sending) -> None:
        """Hold *sending* to its deadline, though it is not to be sent yet."""
        slot = int(sending.deadline_s / EXPIRY_TICK_S)
        self._expiring.setdefault(slot, []).append(sending)
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.later(EXPIRY_TICK_S, self._tick)

    def start(self, sending: Sending) -> None:
        """Publish a watched message, unless its deadline is over."""
        if sending.end is None:
            return
        if self._is_open() and not self._waiting:
            self._submit(sending)
        elif len(self._waiting) < WAITING_COUNT_MAX:
            self._waiting.append(sending)
        else:
            sending.settle(Status.REFUSED, BusyError(f"{WAITING_COUNT_MAX} messages wait for RabbitMQ already"))

    def up(self, connection: Any) -> None:
        """A new connection is open."""
        self._connection = connection
        self._is_blocked = False
        self._resume()

    def down(self, error: BaseException) -> None:
        """The connection is gone; what waits, waits on until its deadline."""
        self._connection = None
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.fail(translate(error, "publishing"))

    def blocked(self, *, is_blocked: bool) -> None:
        """The broker has an alarm, or none any more. What is not sent meanwhile is certain not to be stored."""
        self._is_blocked = is_blocked
        self._resume()

    def fail_all(self, error: TxcoreError) -> None:
        """Settle everything now."""
        for lane in self._lanes.values():
            lane.fail(error)
        while self._waiting:
            self._waiting.popleft().settle(Status.REFUSED, error)

    def _is_open(self) -> bool:
        if self._connection is None or self._is_blocked:
            return False
        # What has expired counts no more: a queue that never answers must not use up the window.
        return self._live_count < WINDOW_COUNT

    def _submit(self, sending: Sending) -> None:
        lane = self._lanes.get(sending.lane)
        if lane is None or lane.is_dead:
            self._make_room()
            lane = Lane(sending.lane, self._connection, self._resume)
            self._lanes[sending.lane] = lane
        elif len(lane.unconfirmed) >= UNANSWERED_COUNT_MAX:
            lane.retire()
            lane = self._lanes[sending.lane] = Lane(sending.lane, self._connection, self._resume)
        self._live_count += 1
        sending.freed = self._landed
        lane.send(sending)

    def _landed(self) -> None:
        self._live_count -= 1

    def _make_room(self) -> None:
        if len(self._lanes) >= LANE_COUNT_MAX:
            for name, lane in self._lanes.items():
                if name != LOG_LANE and not lane.unconfirmed and not lane.is_dead:
                    lane.retire()
                    del self._lanes[name]
                    return

    def _resume(self) -> None:
        while self._waiting and self._is_open():
            sending = self._waiting.popleft()
            if sending.end is not None:
                self._submit(sending)

    def _tick(self) -> None:
        now_s = self._clock.elapsed_s()
        past = int(now_s / EXPIRY_TICK_S)
        for slot in [slot for slot in self._expiring if slot < past]:
            for sending in self._expiring.pop(slot):
                if sending.end is not None:
                    self._expire(sending)
        self._is_ticking = bool(self._expiring)
        if self._is_ticking:
            self._loop.later(EXPIRY_TICK_S, self._tick)

    def _expire(self, sending: Sending) -> None:
        if sending.is_sent:
            error: TxcoreError = BackendTimeoutError("RabbitMQ has not confirmed a message in time; it may be stored")
            sending.settle(Status.UNKNOWN, error)
        else:
            why = "blocks publishers (memory or disk alarm)" if self._is_blocked else "cannot be reached or is too slow"
            sending.settle(Status.REFUSED, BackendUnavailableError(f"RabbitMQ {why}; the message was not sent"))


def _no_route(exchange: str, routing_key: str) -> MessageRejectedError:
    topic = f"{exchange}/{routing_key}" if exchange else routing_key
    return MessageRejectedError(f"no queue takes messages for {topic!r}; bind one", topic=topic, reason="unroutable")
