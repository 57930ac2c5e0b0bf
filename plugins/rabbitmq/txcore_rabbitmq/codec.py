"""Conversions between txcore and pika: errors, topics, headers, announcements and checkpoints."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
import pika  # type: ignore[import-untyped]
from pika import exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout  # type: ignore[import-untyped]

from txcore.backends.checkpoint_record import decode_checkpoint
from txcore.errors import (
    BackendUnavailableError,
    ConfigError,
    MessageRejectedError,
    TxcoreError,
    WireFormatError,
)
from txcore.records import Checkpoint, Position, TargetMessage
from txcore_rabbitmq.names import HEADERS_BYTES_MAX, SHORT_STRING_BYTES_MAX

TRANSIENT: Final = 1
PERSISTENT: Final = 2
OFFSET_HEADER: Final = "x-stream-offset"
_PRECONDITION_FAILED: Final = 406
_ACCESS_REFUSED: Final = 403
_REFUSALS: Final = frozenset({_ACCESS_REFUSED, 404, 405, _PRECONDITION_FAILED})
_OTHER_SETTINGS: Final = "inequivalent arg"
_DOWN: Final = "down or inaccessible"
_SETTING: Final = re.compile(r"inequivalent arg '([^']+)'")
_LOGIN_ERRORS: Final = (
    exceptions.ProbableAuthenticationError,
    exceptions.AuthenticationError,
    exceptions.ProbableAccessDeniedError,
)


class Target(NamedTuple):
    """The destination of a topic: an exchange and a key; the exchange "" leads to the queue with the key's name."""

    exchange: str
    routing_key: str


class Announcement(msgspec.Struct, array_like=True, tag="txca"):
    """A member's message to its group: the partitions it keeps, and those it is giving up.

    Attributes:
        asks: Whether the member has just joined and needs the others' announcements now.
        leaves: Whether the member leaves the group.
    """

    member: str
    kept: list[int]
    revoking: list[int]
    asks: bool = False
    leaves: bool = False


class _Marker(msgspec.Struct, array_like=True, tag="txcm"):
    nonce: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_announcement_decoder: Final = msgspec.msgpack.Decoder(Announcement)
_marker_decoder: Final = msgspec.msgpack.Decoder(_Marker)


def parse_topic(topic: str) -> Target:
    """Return the target of *topic*: `queue`, `exchange/routing.key`, or `/queue` for a queue with a slash in its name.

    Raises:
        MessageRejectedError: AMQP cannot carry the name.
    """
    exchange, slash, routing_key = topic.partition("/")
    if not slash:
        exchange, routing_key = "", topic
    if not exchange and not routing_key:
        raise MessageRejectedError(f"topic {topic!r} names neither queue nor exchange", topic=topic, reason="topic")
    for name in (exchange, routing_key):
        if len(name.encode()) > SHORT_STRING_BYTES_MAX:
            raise MessageRejectedError(
                f"a name in topic {topic[:60]!r}... is longer than {SHORT_STRING_BYTES_MAX} bytes",
                topic=topic,
                reason="topic",
            )
    return Target(exchange, routing_key)


def check_headers(message: TargetMessage) -> None:
    """Refuse a message whose headers would be too large.

    Raises:
        MessageRejectedError: a name or the sum is too long, for which the broker would close the connection.
    """
    size = len(message.key or b"")
    for name, value in message.headers.items():
        name_size = len(name.encode())
        if name_size > SHORT_STRING_BYTES_MAX:
            raise MessageRejectedError(
                f"header {name[:60]!r}... for {message.topic!r} has a name of {name_size} bytes; "
                f"AMQP carries {SHORT_STRING_BYTES_MAX}",
                topic=message.topic,
                reason="headers",
            )
        size += name_size + len(value) + 6
    if size > HEADERS_BYTES_MAX:
        raise MessageRejectedError(
            f"key and headers of a message for {message.topic!r} have {size} bytes; at most {HEADERS_BYTES_MAX} fit",
            topic=message.topic,
            reason="headers",
        )


def stored_properties() -> Any:
    """Return the properties of a message that the broker must keep."""
    return pika.BasicProperties(delivery_mode=PERSISTENT)


def transient_properties() -> Any:
    """Return the properties of a message that the broker need not keep."""
    return pika.BasicProperties(delivery_mode=TRANSIENT)


def offset_of(properties: Any) -> Position:
    """Return a delivery's position in its stream."""
    return Position(int(properties.headers[OFFSET_HEADER]))  # pika's own integer class prints as "0L"


def encode_announcement(announcement: Announcement) -> bytes:
    """Return the bytes of an announcement."""
    return _encode(announcement)


def decode_announcement(body: bytes) -> Announcement:
    """Return the announcement in *body*.

    Raises:
        WireFormatError: *body* is no announcement.
    """
    try:
        return _announcement_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WireFormatError(f"{len(body)} bytes are no announcement: {error}") from error


def encode_marker(nonce: bytes) -> bytes:
    """Return a record whose arrival shows that all records before it were read."""
    return _encode(_Marker(nonce))


def decode_checkpoint_or_marker(body: bytes) -> Checkpoint | bytes:
    """Return the checkpoint in *body*, or a marker's nonce.

    Raises:
        WireFormatError: *body* is neither, or of another version.
    """
    try:
        return _marker_decoder.decode(body).nonce
    except msgspec.DecodeError:
        return decode_checkpoint(body)


def translate(error: BaseException, doing: str) -> TxcoreError:
    """Return txcore's error for an error of pika: ConfigError if the broker refused, else BackendUnavailableError."""
    if isinstance(error, TxcoreError):
        return error
    translated: TxcoreError
    code = getattr(error, "reply_code", None)
    text = str(getattr(error, "reply_text", error))
    # The broker answers 404 and 406 also for queues that are still starting, just after its restart.
    if code in _REFUSALS and not _is_down(error) and (code != _PRECONDITION_FAILED or _OTHER_SETTINGS in text):
        translated = ConfigError(f"{doing}: the broker refuses: {text}", key=different_setting(error))
    elif _is_said_by_broker(error) and isinstance(
        error, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError
    ):
        refused = "user or password are refused"
        if "EXTERNAL" in str(error):
            refused = "the login by certificate is refused: its name is no user here, or EXTERNAL is not enabled"
        translated = BackendUnavailableError(f"{doing}: {refused}")
    elif _is_said_by_broker(error) and isinstance(error, exceptions.ProbableAccessDeniedError):
        translated = BackendUnavailableError(f"{doing}: the virtual host is missing or closed to this user")
    else:
        translated = BackendUnavailableError(f"{doing}: {_plain(error)}")
    translated.__cause__ = error
    return translated


def _plain(error: BaseException) -> str:
    """Return pika's innermost error, without the workflow errors around it."""
    while isinstance(error, exceptions.AMQPConnectionError) and error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    if isinstance(error, AMQPConnectorStackTimeout):
        return "no answer within connect_timeout_s"
    inner = getattr(error, "exceptions", ()) or ([error.exception] if hasattr(error, "exception") else [])
    return _plain(inner[-1]) if inner else repr(error)


def is_login_refused(error: BaseException) -> bool:
    """Return whether txcore's *error* comes from a broker that was reached and refuses user, vhost or certificate."""
    cause = error.__cause__
    if isinstance(cause, _LOGIN_ERRORS):
        return _is_said_by_broker(cause)
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _is_said_by_broker(error: BaseException) -> bool:
    """Return whether the broker itself gave the reason for closing; pika reports a lost connection the same way."""
    return "ConnectionClosedByBroker" in str(error)


def translate_refusal(error: BaseException, topic: str) -> TxcoreError:
    """Return txcore's error for a channel that the broker closed before any message was sent to *topic* on it."""
    if getattr(error, "reply_code", None) not in _REFUSALS or _is_down(error):
        return translate(error, f"publishing to {topic!r}")
    text = getattr(error, "reply_text", error)
    translated = MessageRejectedError(f"the broker refuses {topic!r}: {text}", topic=topic, reason="unknown")
    translated.__cause__ = error
    return translated


def is_missing(error: BaseException) -> bool:
    """Return whether the broker answered that queue or exchange does not exist."""
    return getattr(error, "reply_code", None) == 404 and not _is_down(error)


def different_setting(error: BaseException) -> str:
    """Return the argument in which an existing queue differs from its declaration; "" if the broker names none."""
    found = _SETTING.search(str(getattr(error, "reply_text", "")))
    return found[1] if found else ""


def is_locked(error: BaseException) -> bool:
    """Return whether the broker answered that another connection holds the queue."""
    return getattr(error, "reply_code", None) == 405


def is_forbidden(error: BaseException) -> bool:
    """Return whether the broker answered that this user has no permission."""
    return getattr(error, "reply_code", None) == _ACCESS_REFUSED


def is_too_large(error: BaseException | None) -> bool:
    """Return whether txcore's *error* comes from a message above the broker's limit."""
    cause = None if error is None else error.__cause__
    return getattr(cause, "reply_code", None) == _PRECONDITION_FAILED


def _is_down(error: BaseException) -> bool:
    return _DOWN in str(getattr(error, "reply_text", ""))
