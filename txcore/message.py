"""Messages, a listener's answers (local transaction states), and check policies."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from txcore import ranges
from txcore.enums import direct
from txcore.errors import MessageRejectedError
from txcore.records import CHECK_MAX_MAX, WAIT_S_MAX

HeaderValue = str | bytes

RESERVED_PREFIXES: Final = ("txcore-", "nats-")
DELAY_HEADERS: Final = frozenset({"x-delay", "x-delay-ms", "delay", "__startdelivertime", "x-schedule"})
TRACEPARENT: Final = "traceparent"
"""The header of W3C trace context."""
MESSAGE_COUNT_MAX: Final = 1_000
HEADER_COUNT_MAX: Final = 256


@direct
class LocalTransactionState(enum.Enum):
    """A listener's answer (RocketMQ: LocalTransactionState)."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicy:
    """When a silent transaction is checked, and how often.

    Attributes:
        immunity_s: Seconds after the half during which no check is made; the producer's own end must come within.
        interval_s: Seconds between two checks that were answered UNKNOWN.
        check_max: Answered checks after which a transaction that stays UNKNOWN is discarded; at least 1.

    Raises:
        ConfigError: a value is out of range; `key` names it.

    Source: RocketMQ BrokerConfig, transactionTimeOut 6 s, transactionCheckInterval 30 s, transactionCheckMax 15.
    """

    immunity_s: float = 6.0
    interval_s: float = 30.0
    check_max: int = 15

    def __post_init__(self) -> None:
        ranges.require("immunity_s", self.immunity_s, float, 0.001, WAIT_S_MAX)
        ranges.require("interval_s", self.interval_s, float, 0.001, WAIT_S_MAX)
        ranges.require("check_max", self.check_max, int, 1, CHECK_MAX_MAX)


class Message(msgspec.Struct, gc=False):
    """One message for one target topic.

    Attributes:
        topic: The target, in the backend's own form (Kafka: topic; RabbitMQ: queue or exchange/routing.key;
            NATS: subject); not empty.
        body: The payload; carried unchanged, byte for byte.
        key: The record key (Kafka) or the `txcore-key` header elsewhere; None for none.
        headers: Carried unchanged; None counts as none. `txcore-*`, `Nats-*` and headers that ask for delay are refused
            by name.
        check_policy: Overrides the group's policy for the transaction; the longest immunity of its messages applies.

    Raises (when published, not when built):
        MessageRejectedError: a rule above is broken; nothing was sent.
    """

    topic: str
    body: bytes
    key: bytes | None = None
    headers: Mapping[str, HeaderValue] = msgspec.field(default_factory=dict)
    check_policy: CheckPolicy | None = None


def validate_message(message: Message) -> None:
    """Refuse a message that must never reach a broker.

    Raises:
        MessageRejectedError: wrong types, empty topic, a reserved header, or a header that asks for delay.
    """
    topic = message.topic
    if not isinstance(topic, str) or not topic:
        raise MessageRejectedError(f"a message needs a topic, not {topic!r}", reason="topic")
    if not isinstance(message.body, bytes):
        text = f"the body of a message for {topic!r} is bytes, not {type(message.body).__name__}; encode it first"
        raise MessageRejectedError(text, topic=topic, reason="body")
    if message.key is not None and not isinstance(message.key, bytes):
        text = f"the key of a message for {topic!r} is bytes or None, not {type(message.key).__name__}"
        raise MessageRejectedError(text, topic=topic, reason="key")
    if message.headers:
        _validate_headers(topic, message.headers)


def _validate_headers(topic: str, headers: Mapping[str, HeaderValue]) -> None:
    if len(headers) > HEADER_COUNT_MAX:
        text = f"a message for {topic!r} has {len(headers)} headers; at most {HEADER_COUNT_MAX} are carried"
        raise MessageRejectedError(text, topic=topic, reason="headers")
    for name, value in headers.items():
        if not isinstance(name, str) or not name or not isinstance(value, str | bytes):
            text = f"header {name!r} of a message for {topic!r} must be str -> str or bytes"
            raise MessageRejectedError(text, topic=topic, reason="headers")
        lowered = name.lower()
        if lowered.startswith(RESERVED_PREFIXES):
            text = f"header {name!r} of a message for {topic!r} is reserved; rename it"
            raise MessageRejectedError(text, topic=topic, reason=name)
        if lowered in DELAY_HEADERS:
            text = (
                f"header {name!r} of a message for {topic!r} asks for delayed delivery, which a transactional "
                "message cannot have; schedule it at the consumer"
            )
            raise MessageRejectedError(text, topic=topic, reason=name)
