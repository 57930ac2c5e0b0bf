"""Messages, a listener's answers (local transaction states), and check policies."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, NoReturn

import msgspec

from txcore import delay, ranges, serializers
from txcore.enums import direct
from txcore.errors import MessageRejectedError
from txcore.records import CHECK_MAX_MAX, ORDER_KEY_SIZE_MAX, WAIT_S_MAX, TargetMessage

HeaderValue = str | bytes

RESERVED_PREFIXES: Final = ("txcore-", "nats-")
DELAY_HEADERS: Final = frozenset(
    {"x-delay", "x-delay-ms", "x-schedule"}
    | {"delay", "__startdelivertime", "timer_delay_ms", "timer_delay_sec", "timer_deliver_ms"}  # RocketMQ's properties
)
IMMUNITY_HEADER: Final = "check_immunity_time_in_seconds"
"""RocketMQ's property for the immunity of one message, which would do nothing here."""
TRACEPARENT: Final = "traceparent"
"""The header of W3C trace context."""
MESSAGE_COUNT_MAX: Final = 1_000
HEADER_COUNT_MAX: Final = 256
_KEY_TYPES: Final = frozenset({bytes, type(None)})
_fields_of: Final = attrgetter("topic", "key", "body", "headers", "check_policy", "deliver_at", "delay_s", "order_key")


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
        headers: Carried unchanged; None counts as none. `txcore-*`, `Nats-*`, headers that ask for delay, and
            RocketMQ's `CHECK_IMMUNITY_TIME_IN_SECONDS` are refused by name.
        check_policy: Overrides the group's policy for the transaction; the longest immunity of its messages applies.
        deliver_at: Time, with a time zone, before which the message is not sent; at most 400 days from now. A time that
            has passed is due at once.
        delay_s: Instead of `deliver_at`: seconds from now, up to 400 days. Either needs a producer with a fence.
        order_key: Messages of one group with the same order key are published in the order in which their halves were
            stored; 1 to 1,000 bytes. A transaction has one order key. It is also the record key of the message, unless
            that has a `key`. Needs a producer with release="owner". See docs/order.md for the promise.

    Raises:
        MessageRejectedError: body or key is a text, or the body of another type. The other rules above are looked at
            when the message is published. Nothing was sent.
    """

    topic: str
    body: bytes
    key: bytes | None = None
    headers: Mapping[str, HeaderValue] | None = msgspec.field(default_factory=dict)
    check_policy: CheckPolicy | None = None
    deliver_at: datetime | None = None
    delay_s: float | None = None
    order_key: bytes | None = None

    def __post_init__(self) -> None:
        if type(self.body) is not bytes or type(self.key) is str:  # type: ignore[comparison-overlap] # a common mistake
            _require_types(self)

    @classmethod
    def of(
        cls,
        topic: str,
        obj: Any,
        *,
        serializer: serializers.Serializer,
        key: bytes | str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        check_policy: CheckPolicy | None = None,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        order_key: bytes | str | None = None,
    ) -> Message:
        """Return a message whose body *serializer* makes of *obj*, now and once.

        Args:
            topic, check_policy, deliver_at, delay_s: As of any message.
            obj: The object, in a form that the serializer takes.
            serializer: A callable `(topic, obj) -> (body, headers)`; `txcore.integrations` has some.
            key, order_key: Bytes, or a text that becomes UTF-8.
            headers: Your own; one of them replaces the serializer's of the same name, in any case of letters.

        Raises:
            MessageRejectedError: the object cannot be encoded, or a field is invalid; nothing was sent.
            NotSentError: the serializer failed for another reason, such as a schema registry that is down.
        """
        if not isinstance(topic, str) or not topic:
            raise _without_topic(topic)
        own = {} if headers is None else _named(topic, headers)
        body, made = serializers.serialize(serializer, topic, obj)
        taken = {name.lower() for name in own if isinstance(name, str)}
        merged = {name: value for name, value in made.items() if name.lower() not in taken}
        key = key.encode() if isinstance(key, str) else key
        order_key = order_key.encode() if isinstance(order_key, str) else order_key
        message = cls(topic, body, key, {**merged, **own}, check_policy, deliver_at, delay_s, order_key)
        validate_message(message)
        if order_key is not None:
            require_valid_order_key(message)
        return message

    @classmethod
    def json(
        cls,
        topic: str,
        obj: Any,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        check_policy: CheckPolicy | None = None,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        order_key: bytes | str | None = None,
    ) -> Message:
        """Return a message whose body is *obj* as JSON, with `content-type: application/json` unless you give one.

        Takes dicts, lists, dataclasses, msgspec Structs and pydantic models. A datetime becomes a text by RFC 3339,
        a UUID, Decimal, date or transaction id a text, an enum its value, bytes a text in base64. NaN and
        infinity become null. The arguments are those of `of`.

        Raises:
            MessageRejectedError: a value cannot be encoded (the text names its field and type), or a field is invalid;
                nothing was sent.
        """
        return cls.of(
            topic,
            obj,
            serializer=serializers.to_json,
            key=key,
            headers=headers,
            check_policy=check_policy,
            deliver_at=deliver_at,
            delay_s=delay_s,
            order_key=order_key,
        )


def validate_message(message: Message) -> bool:
    """Refuse a message that must never reach a broker; returns whether it is delayed.

    Raises:
        MessageRejectedError: no Message, wrong types, empty topic, a reserved header, or a header that asks for delay;
            `reason` is the field: `topic`, `body`, `key`, `headers`, `headers["name"]`, `check_policy`, `deliver_at`
            or `delay_s`.
    """
    try:
        topic = message.topic
    except AttributeError:
        text = f"message must be a txcore.Message, not {type(message).__name__}; nothing was sent"
        raise MessageRejectedError(text, reason="message") from None
    if not topic:
        raise _without_topic(topic)
    _require_types(message)
    if message.headers:
        _validate_headers(topic, message.headers)
    if message.check_policy is not None and not isinstance(message.check_policy, CheckPolicy):
        raise _of_wrong_type(topic, "check_policy", "a txcore.CheckPolicy or None", message.check_policy)
    if message.deliver_at is None and message.delay_s is None:
        return False
    require_valid_delay(message)
    return True


def plain_targets(messages: Sequence[Message]) -> list[TargetMessage] | None:
    """Return *messages* as targets, or None if one of them may be invalid, or has headers, a policy or a delay.

    Looks at a field of all messages at once, which takes a tenth of the time of `validate_message` for each.
    """
    if set(map(type, messages)) != {Message}:
        return None
    topics, keys, bodies, headers, *others = zip(*map(_fields_of, messages), strict=True)
    if set(map(type, topics)) != {str} or set(map(type, bodies)) != {bytes} or set(map(type, keys)) - _KEY_TYPES:
        return None
    if not all(topics) or not all(map(str.isascii, topics)) or any(headers):
        return None
    if any(other.count(None) != len(other) for other in others):
        return None
    return [*map(TargetMessage, topics, keys, bodies, repeat({}))]


def require_valid_delay(message: Message, now_ms: int | None = None) -> None:
    """Refuse a delay that is malformed or too long; *now_ms* as of `delay.fault_of`.

    Raises:
        MessageRejectedError: there is one; `reason` is the field.
    """
    fault = delay.fault_of(message.deliver_at, message.delay_s, now_ms)
    if fault is not None:
        field, why = fault
        text = f"Message.{field} {why} (for {message.topic!r}; nothing was sent)"
        raise MessageRejectedError(text, topic=message.topic, reason=field)


def refuse_delay(message: Message, why: str) -> NoReturn:
    """Refuse a delayed message where nothing can hold it until it is due.

    Raises:
        MessageRejectedError: always; `reason` is the field.
    """
    field = "deliver_at" if message.deliver_at is not None else "delay_s"
    text = f"Message.{field} for {message.topic!r} {why}; nothing was sent"
    raise MessageRejectedError(text, topic=message.topic, reason=field)


def _require_types(message: Message) -> None:
    topic = message.topic
    if not isinstance(topic, str) or not (topic.isascii() or _is_text(topic)):
        raise _without_topic(topic)
    if not isinstance(message.body, bytes):
        raise _of_wrong_type(topic, "body", "bytes", message.body, "; encode it first, as Message.json does")
    if message.key is not None and not isinstance(message.key, bytes):
        advice = "; encode it first; Message.json takes a text, too: key=str(…)"
        raise _of_wrong_type(topic, "key", "bytes or None", message.key, advice)


def require_valid_order_key(message: Message) -> None:
    """Refuse an order key of another type or size.

    Raises:
        MessageRejectedError: it is one; `reason` is the field.
    """
    topic, order_key = message.topic, message.order_key
    if not isinstance(order_key, bytes):
        advice = "; encode it first; Message.json takes a text, too: order_key=str(…)"
        raise _of_wrong_type(topic, "order_key", "bytes or None", order_key, advice)
    if not 1 <= len(order_key) <= ORDER_KEY_SIZE_MAX:
        text = f"has {len(order_key)} bytes; it has 1 to {ORDER_KEY_SIZE_MAX}"
        raise MessageRejectedError(
            f"Message.order_key for {topic!r} {text}; nothing was sent", topic=topic, reason="order_key"
        )


def _is_text(text: str) -> bool:
    """Return whether *text* has an encoding; one with half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_topic(topic: object) -> MessageRejectedError:
    return MessageRejectedError(f"Message.topic must be a name, not {topic!r}; nothing was sent", reason="topic")


def _of_wrong_type(topic: str, field: str, noun: str, value: object, advice: str = "") -> MessageRejectedError:
    text = f"Message.{field} must be {noun}, not {type(value).__name__} (for {topic!r}; nothing was sent){advice}"
    return MessageRejectedError(text, topic=topic, reason=field)


def _named(topic: str, headers: Mapping[str, HeaderValue]) -> Mapping[str, HeaderValue]:
    """Return *headers* if they are a mapping, and not pairs as some clients take them."""
    if not hasattr(headers, "items"):
        raise _of_wrong_type(topic, "headers", "a mapping or None", headers, "; use a dict")
    return headers


def _validate_headers(topic: str, headers: Mapping[str, HeaderValue]) -> None:
    _named(topic, headers)
    if len(headers) > HEADER_COUNT_MAX:
        text = f"Message.headers for {topic!r} are {len(headers)}; at most {HEADER_COUNT_MAX} are carried"
        raise MessageRejectedError(text, topic=topic, reason="headers")
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            raise _refused_header(topic, name, f"must have a name that is a text, not {name!r}")
        if not isinstance(value, str | bytes):
            raise _refused_header(topic, name, f"must be str or bytes, not {type(value).__name__}")
        if not _is_text(name) or not (isinstance(value, bytes) or _is_text(value)):
            raise _refused_header(topic, name, "is not valid Unicode")
        lowered = name.lower()
        if lowered.startswith(RESERVED_PREFIXES):
            raise _refused_header(topic, name, "is reserved; rename it")
        if lowered in DELAY_HEADERS:
            why = "asks the broker for a delay, which it would ignore; give the message deliver_at=… or delay_s=…"
            raise _refused_header(topic, name, why)
        if lowered == IMMUNITY_HEADER:
            raise _refused_header(topic, name, "has no effect here; give check_policy=CheckPolicy(immunity_s=…)")


def _refused_header(topic: str, name: object, why: str) -> MessageRejectedError:
    field = f'headers["{name}"]' if isinstance(name, str) and _is_text(name) else f"headers[{name!r}]"
    return MessageRejectedError(f"Message.{field} for {topic!r} {why}; nothing was sent", topic=topic, reason=field)
