"""One message in a file, as an auditor has it: JSON with its topic, key, body and headers."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import msgspec
from msgspec import Struct, field

from txcore import wire
from txcore.audit.exact_json import exact_value
from txcore.audit.targets import target_digest, target_place
from txcore.errors import UsageError
from txcore.ids import ID_BYTES, id_text


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
        found = msgspec.convert(exact_value(content), _File)
        headers = {each: _value(value) for each, value in found.headers.items()}
        key = None if found.key is None else _value(found.key)
        digest = target_digest(found.topic, key, _value(found.body), headers)
    except ValueError as error:  # msgspec's and that of base64 among them
        raise UsageError(f"{name} is no message: {error}") from None
    text = headers.get(wire.HEADER_ID, b"").decode("utf-8", "replace")
    place = target_place(text)
    if place is None:
        raise UsageError(
            f"{name} has no header {wire.HEADER_ID} such as {id_text(bytes(ID_BYTES))}:0 with an id in small letters, "
            "so it is no message of txcore's"
        )
    group = headers.get(wire.HEADER_GROUP, b"").decode("utf-8", "replace")
    return SentMessage(*place, group, digest)


def _value(value: str | _Base64) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else base64.b64decode(value.base64, validate=True)
