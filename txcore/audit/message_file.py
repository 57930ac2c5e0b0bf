"""One message in a file, as an auditor has it: JSON with its topic, key, body and headers."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct, field

from txcore import wire
from txcore.audit.targets import target_digest
from txcore.errors import UsageError
from txcore.ids import parse_id

INDEX_DIGITS_MAX: Final = 10


class _Base64(Struct, forbid_unknown_fields=True):
    base64: str


class _File(Struct, forbid_unknown_fields=True):
    topic: str
    body: str | _Base64
    headers: dict[str, str | _Base64]
    key: str | _Base64 | None = field(default=None)


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that was read from a topic.

    Attributes:
        transaction_id, index: Its place, from its header `txcore-id`.
        group: Its producer group, from its header.
        digest: Its digest.
    """

    transaction_id: bytes
    index: int
    group: str
    digest: bytes


def read_message(content: bytes, name: str) -> SentMessage:
    """Return the message in a file.

        {"topic": "orders", "key": "k1", "body": "…", "headers": {"txcore-id": "…:0", "txcore-group": "orders"}}

    A key, body or header that is no text in UTF-8 is `{"base64": "…"}` instead.

    Raises:
        UsageError: the file has another form, or the message is not txcore's.
    """
    try:
        found = msgspec.json.decode(content, type=_File)
        headers = {each: _value(value) for each, value in found.headers.items()}
        key = None if found.key is None else _value(found.key)
        digest = target_digest(found.topic, key, _value(found.body), headers)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, RecursionError) as error:
        raise UsageError(f"{name} is no message: {error}") from None
    text = headers.get(wire.HEADER_ID, b"").decode("utf-8", "replace")
    identity, _, number = text.rpartition(":")
    if not number.isascii() or not number.isdigit() or len(number) > INDEX_DIGITS_MAX:
        raise UsageError(f"{name} has no header {wire.HEADER_ID} such as UUID:0, so it is no message of txcore's")
    group = headers.get(wire.HEADER_GROUP, b"").decode("utf-8", "replace")
    return SentMessage(parse_id(identity), int(number), group, digest)


def _value(value: str | _Base64) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else base64.b64decode(value.base64, validate=True)
