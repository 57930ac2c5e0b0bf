"""Conversions between confluent-kafka and txcore: errors, the sizes of records, and headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConfigError,
    HalfRefusedError,
    MessageRejectedError,
    OutcomeUnknownError,
    TxcoreError,
)
from txcore.records import Outcome, Status, TargetMessage
from txcore_kafka.options import is_own_topic

BATCH_HEADER_BYTES: Final = 61
HEADERS_ALLOWANCE: Final = 400
"""Bytes kept for our own headers, whose attempt names are not known when the half is stored."""
CURE: Final = "`txcore permissions` prints the commands that grant the rights"
_FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the driver's names for its own errors begin so
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_REFUSALS: Final = (
    _MISSING
    | _TOO_LARGE
    | {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Answers of a broker that mean "not stored", and that a retry would get again."""
_SETTINGS: Final = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
_LEADERLESS: Final = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION})
_TIMEOUTS: Final = _LEADERLESS | {
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT,
}


def kafka_error(error: BaseException | KafkaError | None) -> KafkaError | None:
    """Return the driver's error inside its exception, or None."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return error if isinstance(error, KafkaError) else None


def is_missing(error: BaseException | KafkaError | None) -> bool:
    """Return whether a topic or partition does not exist."""
    cause = kafka_error(error)
    return cause is not None and cause.code() in _MISSING


def is_leaderless(error: BaseException) -> bool:
    """Return whether a partition's leader is new, or has just moved: a later request gets the answer."""
    cause = kafka_error(error)
    return cause is not None and cause.code() in _LEADERLESS


def is_too_large(error: KafkaError) -> bool:
    """Return whether a record, or the batch that held it, was larger than the topic accepts."""
    return error.code() in _TOO_LARGE


def exists_already(error: BaseException) -> bool:
    """Return whether a topic could not be created because it exists already."""
    cause = kafka_error(error)
    return cause is not None and cause.code() == KafkaError.TOPIC_ALREADY_EXISTS


def is_membership_lost(error: KafkaError) -> bool:
    """Return whether the broker refused a member of a group because its membership or generation has ended."""
    return error.code() in {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
    }


def is_refused_connection(error: KafkaError) -> bool:
    """Return whether a connection could not be made because of certificates or credentials."""
    return error.code() in {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }


def is_forbidden(error: BaseException | KafkaError) -> bool:
    """Return whether this user lacks a right."""
    cause = kafka_error(error)
    return cause is not None and cause.code() in _FORBIDDEN


def translated(error: BaseException | KafkaError, what: str = "the request") -> TxcoreError:
    """Return txcore's error for an error that a control call raised."""
    if isinstance(error, TxcoreError):
        return error
    cause = kafka_error(error)
    if cause is None:
        return BackendUnavailableError(f"{what} failed: {error!r}")
    text = f"{what} failed: {cause.str()}"
    if is_forbidden(cause):
        return ConfigError(f"{text}; {CURE}", key="url")
    if cause.code() in _SETTINGS:
        return ConfigError(text, key="url")
    if cause.code() in _TIMEOUTS:
        return BackendTimeoutError(text)
    return BackendUnavailableError(text)


def delivery_outcome(error: KafkaError, topic: str) -> Outcome:
    """Return the outcome of a record that the broker did not acknowledge."""
    code, text = error.code(), f"a record for topic {topic!r} was not stored: {error.str()}"
    if code in _TOO_LARGE:
        return Outcome(Status.REFUSED, MessageRejectedError(text, topic=topic, reason="size"))
    if code in _MISSING:
        return Outcome(Status.REFUSED, MessageRejectedError(text, topic=topic, reason="topic"))
    if is_forbidden(error):
        text = f"{text}; {CURE}"
        is_ours = is_own_topic(topic)
        return Outcome(Status.REFUSED, ConfigError(text, key="url") if is_ours else HalfRefusedError(text, topic=topic))
    if code in _REFUSALS:
        return Outcome(Status.REFUSED, HalfRefusedError(text, topic=topic))
    unknown = f"a record for topic {topic!r} may be stored or not: {error.str()}"
    return Outcome(Status.UNKNOWN, OutcomeUnknownError(unknown))


def record_size(key: bytes | None, body: bytes, headers: Mapping[str, str | bytes]) -> int:
    """Return the bytes of a batch that holds this record alone, with room for our headers."""
    size = _sized(key or b"") + _sized(body) + HEADERS_ALLOWANCE
    for name, value in headers.items():
        size += _sized(name.encode()) + _sized(value.encode() if isinstance(value, str) else value)
    return BATCH_HEADER_BYTES + size + _varint_size(size) + 8


def check_headers(message: TargetMessage) -> None:
    """Refuse a message whose headers Kafka cannot carry.

    Raises:
        MessageRejectedError: a header's name or text is not valid Unicode, or a name holds a NUL, which ends it.
    """
    for name, value in message.headers.items():
        try:
            encoded = name.encode()
            if isinstance(value, str):
                value.encode()
        except UnicodeEncodeError as error:
            text = f"header {name!r} of a message for {message.topic!r} is no valid text"
            raise MessageRejectedError(text, topic=message.topic, reason="headers") from error
        if b"\0" in encoded:
            text = f"the name of header {name!r} of a message for {message.topic!r} holds a NUL"
            raise MessageRejectedError(text, topic=message.topic, reason="headers")


def as_sent(headers: dict[str, str | bytes]) -> dict[str, str | bytes]:
    """Return headers in a form that the driver sends whole: it cuts a text at the first NUL, but never bytes."""
    if not any(isinstance(value, str) and "\0" in value for value in headers.values()):
        return headers
    return {name: value.encode() if isinstance(value, str) else value for name, value in headers.items()}


def _sized(data: bytes) -> int:
    return len(data) + _varint_size(len(data))


def _varint_size(value: int) -> int:
    """Return the bytes of a zigzag variable-length number."""
    return max(1, ((value << 1).bit_length() + 6) // 7)
