"""The message that is meant by a row of another library's outbox table."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import TYPE_CHECKING, Any

from txcore.records import TargetMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txcore.outbox.foreign_layouts import Layout


def message_of(layout: Layout, row: Mapping[str, Any]) -> TargetMessage:
    """Return the message of a row, whose columns are those of the layout."""
    headers: dict[str, Any] = headers_from(row[layout.headers]) if layout.headers else {}
    headers |= {name: str(row[name]) for name in layout.names("copied") if row[name] is not None}
    key = row[layout.key] if layout.key else None
    return TargetMessage(
        layout.topic_of(row), None if key is None else bytes_of(key), bytes_of(row[layout.body]), headers
    )


def uuid_of(identity: Any) -> bytes:
    """Return the 16 bytes of a UUID in any form; from any other value, make those of one of version 8 (RFC 9562).

    That version says that its first bytes are no time.
    """
    if isinstance(identity, uuid.UUID):
        return identity.bytes
    if isinstance(identity, bytes | memoryview) and len(bytes(identity)) == 16:
        return bytes(identity)
    try:
        return uuid.UUID(str(identity)).bytes
    except ValueError:
        made = hashlib.blake2b(str(identity).encode(), digest_size=16).digest()
        return made[:6] + bytes([0x80 | made[6] & 0x0F, made[7], 0x80 | made[8] & 0x3F]) + made[9:]


def bytes_of(value: Any) -> bytes:
    """Return a column's value as the bytes of a message; NULL has none."""
    if value is None:
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict | list):  # a JSON column
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return str(value).encode()


def headers_from(value: Any) -> dict[str, str]:
    """Return the headers in a JSON object, which is text, bytes or already decoded; other text is one header."""
    try:
        found = value if isinstance(value, dict) else json.loads(value) if value else {}
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {"headers": str(value)}  # not a JSON object: carried whole, for the consumer
    return {str(name): each if isinstance(each, str) else json.dumps(each) for name, each in found.items()}
