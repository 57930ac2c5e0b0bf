"""Conversions between txcore and nats-py or JetStream: errors, answers and headers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from nats import errors

from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConfigError,
    HalfRefusedError,
    MessageRejectedError,
    TxcoreError,
)
from txcore.records import Op, OpKind, Status, TargetMessage
from txcore.wire import HEADER_ID

HEADER_BASE64: Final = "txcore-base64"
"""The header that names, separated by commas, the headers with base64 values; a NATS header holds one line of text."""
HEADER_GENERATION: Final = "txcore-generation"
HEADER_KIND: Final = "txcore-kind"
HEADER_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
HEADER_EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
HEADER_MESSAGE_ID: Final = "Nats-Msg-Id"
HEADERS_BYTES_MAX: Final = 60_000
"""Most bytes of all headers of a message; the server's limit is 65,535."""
OWN_HEADERS_BYTES_MAX: Final = 2_048  #: bytes kept for the headers that this plugin adds to a message
STATUS: Final = "Status"
SEQUENCE: Final = "Nats-Sequence"
SUBJECT: Final = "Nats-Subject"
NUM_PENDING: Final = "Nats-Num-Pending"
DESCRIPTION: Final = "Description"
NO_RESPONDERS: Final = "503"
NOT_FOUND: Final = "404"
END_OF_BATCH: Final = "204"

WRONG_SEQUENCE_CODES: Final = frozenset({10071, 10164})
STREAM_NOT_FOUND: Final = 10059
STREAM_EXISTS: Final = 10058
MESSAGE_NOT_FOUND: Final = 10037
INCOMPLETE_BATCH: Final = 10176
_NO_JETSTREAM_CODES: Final = frozenset({10039, 10076})
_TOO_LARGE: Final = 10054
_STORE_FAILED: Final = 10077
_REFUSAL_CODES: Final = frozenset({10023, 10028, 10047, 10052, 10054, 10060, 10097, 10109})
HEADER_NAMES_MAX: Final = 1_000
KIND_NAMES: Final = {int(kind): kind.name for kind in OpKind}
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class ApiError(TxcoreError):
    """JetStream answered a request with an error."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream answers {description!r} ({code}, {err_code})")
        self.code = code
        self.err_code = err_code


class AckError(msgspec.Struct):
    """The reason why JetStream did not store a message."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Ack(msgspec.Struct):
    """JetStream's answer to a publish."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: AckError | None = None


class Found(NamedTuple):
    """A message that was looked up: its body and its sequence."""

    body: bytes
    sequence: int


_ack_decoder: Final = msgspec.json.Decoder(Ack)


# -- headers ------------------------------------------------------------------------------------------------------


def encode_headers(headers: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return *headers* as NATS can carry them; a value that is no plain line of text becomes base64."""
    encoded: dict[str, str] = {}
    changed = []
    for name, value in headers.items():
        text = value if isinstance(value, str) else _as_text(value)
        if text is None or (text and not (text.isprintable() and text == text.strip())):
            changed.append(name)
            raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            text = base64.b64encode(raw).decode()
        encoded[name] = text
    if changed:
        encoded[HEADER_BASE64] = ",".join(changed)
    return encoded


def decode_headers(headers: Mapping[str, str] | None) -> dict[str, str | bytes]:
    """Return the headers that were given to `encode_headers`, and NATS's own; base64 values become bytes."""
    decoded: dict[str, str | bytes] = dict(headers or {})
    names = decoded.pop(HEADER_BASE64, "")
    for name in str(names).split(",") if names else ():
        try:
            decoded[name] = base64.b64decode(str(decoded[name]), validate=True)
        except (KeyError, binascii.Error):
            continue  # written by another application; not changed
    return decoded


def check_message(message: TargetMessage, size_max: int) -> None:
    """Refuse a message that NATS could not carry.

    Raises:
        MessageRejectedError: a header's name is not valid, or the headers or the whole message are too large.
    """
    size = OWN_HEADERS_BYTES_MAX + len(message.key or b"") * 4 // 3
    for name, value in message.headers.items():
        if not is_header_name(name):
            text = f"header {name!r} of a message for {message.topic!r} has a name that NATS cannot carry"
            raise MessageRejectedError(text, topic=message.topic, reason="headers")
        # The name may be once more in the list of base64 headers.
        raw = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
        size += 2 * len(name) + 5 + len(raw) * 4 // 3
    if size > HEADERS_BYTES_MAX:
        text = f"key and headers of a message for {message.topic!r} need {size} bytes; {HEADERS_BYTES_MAX} fit"
        raise MessageRejectedError(text, topic=message.topic, reason="headers")
    if size + len(message.body) > size_max:
        text = (
            f"a message for {message.topic!r} needs up to {size + len(message.body)} bytes with its headers; "
            f"the server or the stream takes {size_max}"
        )
        raise MessageRejectedError(text, topic=message.topic, reason="size")


def check_subject(subject: str, reserved: tuple[str, ...]) -> None:
    """Refuse a topic that is not a subject for publishing.

    Raises:
        MessageRejectedError: the topic has wildcards, spaces or empty tokens, or belongs to NATS or to txcore.
    """
    tokens = subject.split(".")
    if not all(tokens) or any(each.isspace() or each == "\x00" for each in subject):
        problem = "is no subject: its tokens, separated by dots, may not be empty or hold spaces"
    elif "*" in tokens or ">" in tokens:
        problem = "has wildcards"
    elif subject.startswith(reserved):
        problem = "is reserved"
    else:
        return
    raise MessageRejectedError(f"topic {subject!r} {problem}", topic=subject, reason="topic")


def header_lines(headers: Mapping[str, str]) -> str:
    """Return headers, with values as `encode_headers` returns them, in the form of a message.

    Raises:
        MessageRejectedError: NATS cannot carry a header's name.
    """
    for name in headers:
        if not is_header_name(name):
            raise MessageRejectedError(f"NATS cannot carry the header {name!r}", topic="", reason="headers")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@functools.lru_cache(HEADER_NAMES_MAX)
def is_header_name(name: str) -> bool:
    """Return whether NATS can carry a header of that name."""
    return _HEADER_NAME.fullmatch(name) is not None


def publish_command(subject: str, reply: str, headers: str, body: bytes, size_max: int) -> bytes:
    """Return the command that publishes one message; *headers* are those of `header_lines`.

    Raises:
        MessageRejectedError: the subject would change the command, or headers and body exceed *size_max*.
    """
    if not subject or not subject.isprintable() or " " in subject:
        raise MessageRejectedError("its subject is none", topic=subject, reason="topic")
    head = f"NATS/1.0\r\n{headers}\r\n".encode() if headers else b""
    size = len(head) + len(body)
    if size > size_max:
        raise MessageRejectedError(
            f"it has {size} bytes, and the server takes {size_max}", topic=subject, reason="size"
        )
    line = f"HPUB {subject} {reply} {len(head)} {size}\r\n" if head else f"PUB {subject} {reply} {size}\r\n"
    return b"%b%b%b\r\n" % (line.encode(), head, body)


def parse_headers(raw: bytes) -> dict[str, str]:
    """Return the headers of an answer, with `STATUS` and `DESCRIPTION` from its first line if the server sent some."""
    first, *lines = raw.decode("utf-8", "surrogateescape").split("\r\n")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    _, _, status = first.partition(" ")
    if status:
        headers[STATUS], _, headers[DESCRIPTION] = status.strip().partition(" ")
    return headers


def half_headers(transaction_id: str, generation: int) -> str:
    """Return the headers of a half, for readers that read headers only."""
    return f"{HEADER_ID}: {transaction_id}\r\n{HEADER_GENERATION}: {generation}\r\n"


def op_headers(op: Op, transaction_id: str) -> str:
    """Return the headers of an op, for readers that read headers only."""
    return f"{half_headers(transaction_id, op.generation)}{HEADER_KIND}: {KIND_NAMES[op.kind]}\r\n"


def expecting(sequence: int) -> str:
    """Return the header of a message that must follow the one at *sequence* on its subject; 0 if it must be first."""
    return f"{HEADER_EXPECTED}: {sequence}\r\n"


def _as_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


# -- answers ------------------------------------------------------------------------------------------------------


def read_ack(
    subject: str,
    headers: Mapping[str, str] | None,  # noqa: ARG001 - an answer to a publish has its news in the body
    data: bytes,
) -> tuple[Status, TxcoreError | None, Ack | None]:
    """Return a message's status, error and ack from JetStream's answer to its publish on *subject*."""
    try:
        ack = _ack_decoder.decode(data)
    except msgspec.DecodeError:
        ack = Ack()
    if ack.error is not None:
        return (*_refusal(ack.error, subject), ack)
    if not ack.seq or not ack.stream:
        text = f"something that is no stream answered a message for {subject!r}; it may be stored all the same"
        return Status.UNKNOWN, BackendUnavailableError(text), None
    return Status.DURABLE, None, ack


def _refusal(error: AckError, subject: str) -> tuple[Status, TxcoreError]:
    text = f"the stream of {subject!r} refuses: {error.description} ({error.err_code})"
    if error.err_code == _TOO_LARGE:
        return Status.REFUSED, MessageRejectedError(text, topic=subject, reason="size")
    is_full = error.err_code == _STORE_FAILED and "exceeded" in error.description
    if is_full or error.err_code in _REFUSAL_CODES or error.err_code in WRONG_SEQUENCE_CODES:
        return Status.REFUSED, HalfRefusedError(text, topic=subject)
    # After any other error (no leader, store failed) the message may be stored somewhere.
    return Status.UNKNOWN, BackendUnavailableError(text)


def read_direct(
    subject: str, headers: Mapping[str, str] | None, data: bytes
) -> tuple[Status, TxcoreError | None, Found | None]:
    """Return status, error and message, if there is one, from the answer to a direct get."""
    fields = headers or {}
    status = fields.get(STATUS)
    if status is None and SEQUENCE in fields:
        return Status.DURABLE, None, Found(data, int(fields[SEQUENCE]))
    if status == NOT_FOUND:
        return Status.DURABLE, None, None
    return Status.UNKNOWN, BackendUnavailableError(f"looking up {subject!r}: {status} {fields.get(DESCRIPTION)}"), None


def read_found(
    subject: str,
    headers: Mapping[str, str] | None,  # noqa: ARG001 - the leader's answers have none
    data: bytes,
) -> tuple[Status, TxcoreError | None, Found | None]:
    """Return status, error and message, if there is one, from the leader's answer to a request for a message."""
    answer = from_json(data)
    message, error = answer.get("message"), answer.get("error") or {}
    if message:
        return Status.DURABLE, None, Found(base64.b64decode(message.get("data") or ""), int(message["seq"]))
    if error.get("err_code") == MESSAGE_NOT_FOUND:
        return Status.DURABLE, None, None
    return Status.UNKNOWN, BackendUnavailableError(f"looking up {subject!r}: {error.get('description', data)}"), None


def is_conflict(ack: Ack | None) -> bool:
    """Return whether a message was refused because another one has the place that it expected."""
    return ack is not None and ack.error is not None and ack.error.err_code in WRONG_SEQUENCE_CODES


def translate(error: BaseException, doing: str) -> TxcoreError:
    """Return txcore's error for an error of nats-py or asyncio."""
    if isinstance(error, ApiError):
        return _translate_api(error, doing)
    if isinstance(error, TxcoreError):
        return error
    text = str(error).lower()
    translated: TxcoreError
    if isinstance(error, errors.AuthorizationError) or "authorization" in text or "authentication" in text:
        translated = BackendUnavailableError(f"{doing}: NATS refuses the credentials ({error})")
    elif isinstance(error, errors.NoRespondersError):
        translated = ConfigError(f"{doing}: no server answers; JetStream is not enabled for this account", key="url")
    elif isinstance(error, ssl.SSLError):
        translated = BackendUnavailableError(f"{doing}: no encrypted connection: {error}")
    elif isinstance(error, TimeoutError | asyncio.TimeoutError):
        translated = BackendTimeoutError(f"{doing}: no answer from NATS in time")
    elif isinstance(error, OSError) and error.errno:
        translated = BackendUnavailableError(f"{doing}: {os.strerror(error.errno)}")
    else:
        translated = BackendUnavailableError(f"{doing}: {error!r}")
    translated.__cause__ = error
    return translated


def _translate_api(error: ApiError, doing: str) -> TxcoreError:
    if error.err_code in _NO_JETSTREAM_CODES:
        return ConfigError(f"{doing}: JetStream is not enabled ({error})", key="url")
    if error.code == 503:
        return BackendUnavailableError(f"{doing}: {error}")
    return ConfigError(f"{doing}: {error}", key="stream")


# -- JSON ---------------------------------------------------------------------------------------------------------


def as_json(value: Any) -> bytes:
    """Return *value* as JSON."""
    return msgspec.json.encode(value)


def from_json(data: bytes) -> dict[str, Any]:
    """Return the JSON object in *data*, or an empty one."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
