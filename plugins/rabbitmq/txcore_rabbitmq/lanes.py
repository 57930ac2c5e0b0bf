"""Lanes: channels in confirm mode, on which every published message ends once, by ack, nack or return.

A lane handles tags and returns, not deadlines. All of it runs on the loop's thread.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from txcore.errors import FULL, BackendUnavailableError, MessageRejectedError, TxcoreError
from txcore.records import LogKind, Status
from txcore_rabbitmq.coalescing import CoalescingConnection, log_properties
from txcore_rabbitmq.codec import is_missing, translate, translate_refusal
from txcore_rabbitmq.names import log_exchange

_log = logging.getLogger("txcore.rabbitmq")

KEYS_CACHED: Final = 1_000
CURE: Final = "`txcore topics create` makes it again, under a user that may create"


class StreamAbsentError(BackendUnavailableError):
    """A group's stream or exchange is absent. A stream of a known group may come back; `CURE` makes a deleted one."""


End = Callable[[Status, TxcoreError | None], None]


class LaneKey(NamedTuple):
    """The purpose of a lane.

    Attributes:
        exchange: The exchange of its messages; "" for the default exchange.
        is_log: Whether they are records for a group's streams, whose errors are no refusals of a target.
    """

    exchange: str
    is_log: bool = False


@functools.lru_cache(KEYS_CACHED)
def log_lane(group: str, kind: LogKind) -> LaneKey:
    """Return the lane of the records of one log; thread safe."""
    return LaneKey(log_exchange(group, kind), is_log=True)


@functools.lru_cache(KEYS_CACHED)
def target_lane(exchange: str) -> LaneKey:
    """Return the lane of the targets that go through *exchange*; thread safe."""
    return LaneKey(exchange)


class Sending:
    """One message under way on the lane *lane*.

    Attributes:
        is_urgent: Whether the message completes an item under way, so that it is not refused if there is no room.
        freed: Called once, when the message ends.
        older: The message before it on its lane with the same message id.
    """

    __slots__ = (
        "body",
        "deadline_s",
        "end",
        "freed",
        "is_confirmed",
        "is_doubtful",
        "is_returned",
        "is_sent",
        "is_urgent",
        "lane",
        "message_id",
        "older",
        "properties",
        "routing_key",
        "size",
    )

    def __init__(
        self,
        lane: LaneKey,
        routing_key: str,
        body: bytes,
        deadline_s: float,
        end: End,
        *,
        properties: bytes = b"",
        message_id: str = "",
        is_urgent: bool = False,
    ) -> None:
        self.lane = lane
        self.routing_key = routing_key
        self.body = body
        self.size = len(body)
        self.deadline_s = deadline_s
        self.end: End | None = end
        self.properties = properties
        self.message_id = message_id
        self.is_urgent = is_urgent
        self.freed: Callable[[int], None] | None = None
        self.older: Sending | None = None
        self.is_sent = False
        self.is_confirmed = False
        self.is_returned = False
        self.is_doubtful = False

    def settle(self, status: Status, error: TxcoreError | None = None) -> None:
        """End this message, once; later answers are dropped."""
        end, self.end = self.end, None
        if end is None:
            return
        self.body = b""  # the expiry list still holds this object for a while
        self.properties = b""
        if self.freed is not None:
            self.freed(self.size)
        try:
            end(status, error)
        except Exception:  # noqa: BLE001 - inside a callback of pika it would end the connection
            _log.exception("rabbitmq.settle_error", extra={"txcore": {"routing_key": self.routing_key}})


class Lane:
    """One channel in confirm mode, for one exchange, so that an error that closes it affects no other exchange."""

    def __init__(self, key: LaneKey, connection: CoalescingConnection, freed: Callable[[], None]) -> None:
        self._is_log = key.is_log
        self.unconfirmed: dict[int, Sending] = {}
        self._freed = freed
        self._waiting: deque[Sending] = deque()
        self._by_id: dict[str, Sending] = {}
        self._tag = 0
        self._is_ready = False
        self.is_dead = False
        self._exchange = key.exchange
        self._connection = connection
        self._channel = connection.channel(on_open_callback=self._opened)
        self._channel.add_on_close_callback(self._closed)

    @property
    def is_idle(self) -> bool:
        """Whether no message is under way."""
        return not self.unconfirmed and not self._waiting

    def send(self, sending: Sending) -> None:
        """Publish the message, or keep it until the channel is open."""
        if not self._is_ready:
            self._waiting.append(sending)
            return
        if sending.end is None or not self._channel.is_open:
            return
        message_id = sending.message_id
        if message_id:
            sending.older = self._by_id.get(message_id)
            properties = sending.properties
        else:
            message_id = sending.message_id = str(self._tag + 1)
            properties = log_properties(message_id)
        number = self._channel.channel_number
        self._connection.publish(number, self._exchange, sending.routing_key, properties, sending.body)
        self._tag += 1
        sending.is_sent = True
        self._by_id[message_id] = sending
        self.unconfirmed[self._tag] = sending

    def retire(self) -> None:
        """Close the channel; messages without an answer on it get none any more."""
        self.is_dead = True
        if self._channel.is_open:
            self._channel.close()

    def fail(self, error: TxcoreError) -> None:
        """End all messages after the channel or connection was lost: sent ones are UNKNOWN, the others REFUSED."""
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
            # A missing exchange is found here, while no message is under way yet.
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
        # A return names only the message id. If several messages with one id are under way, it may be any of them.
        candidates = []
        sending = self._by_id.get(properties.message_id)
        while sending is not None:
            if not sending.is_confirmed:
                candidates.append(sending)
            sending = sending.older
        for candidate in candidates:
            candidate.is_returned = len(candidates) == 1
            candidate.is_doubtful = len(candidates) > 1
        _log.debug("rabbitmq.returned", extra={"txcore": {"exchange": method.exchange, "reply": method.reply_text}})

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
            # The return came first; the ack after it means only that the broker is done with the message.
            sending.settle(Status.REFUSED, self._no_route(sending.routing_key))
        elif sending.is_doubtful:
            sending.settle(Status.UNKNOWN, BackendUnavailableError("one of several messages with this id came back"))
        elif is_ack:
            sending.settle(Status.DURABLE)
        elif self._is_log:
            sending.settle(
                Status.UNKNOWN, BackendUnavailableError(f"stream {sending.routing_key!r} did not take a record")
            )
        else:
            # One of several queues bound to an exchange may have taken it.
            topic = self._topic(sending.routing_key)
            sending.settle(
                Status.REFUSED,
                MessageRejectedError(f"a queue bound to {topic!r} refuses messages (full?)", topic=topic, reason=FULL),
            )

    def _no_route(self, routing_key: str) -> TxcoreError:
        if self._is_log:
            return StreamAbsentError(
                f"exchange {self._exchange!r} leads to no stream {routing_key!r}: its node is down or starting, or it "
                f"was deleted ({CURE})"
            )
        topic = self._topic(routing_key)
        return MessageRejectedError(
            f"no queue takes messages for {topic!r}; bind one", topic=topic, reason="unroutable"
        )

    def _topic(self, routing_key: str) -> str:
        return f"{self._exchange}/{routing_key}" if self._exchange else routing_key

    def _closed(self, _channel: Any, error: BaseException) -> None:
        if not self.is_dead:
            self.fail(self._reason(error))
            self._freed()

    def _reason(self, error: BaseException) -> TxcoreError:
        topic = self._exchange or "the default exchange"
        if self._is_log and is_missing(error):
            return StreamAbsentError(f"there is no exchange {topic!r} ({CURE})")
        if self._is_log or self._is_ready:
            return translate(error, f"publishing to {topic!r}")
        return translate_refusal(error, topic)
