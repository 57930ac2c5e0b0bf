"""The digest of a transaction's messages and their order, which its fence row holds; `docs/wire.md` specifies it.

It is written in the database transaction of these messages, so that the database vouches for what a broker stores: a
message that was altered, moved, exchanged or removed in half and target alike differs from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from txcore.records import TargetMessage

DIGEST_BYTES: Final = 32
_HEAD: Final = struct.Struct(">iiii").pack
_HEADER: Final = struct.Struct(">ii").pack
_NO_KEY: Final = -1


def digest_of(messages: Iterable[TargetMessage]) -> bytes:
    """Return the digest of a transaction, 32 bytes; *messages* are in the order in which they were published."""
    return joined([message_digest(each.topic, each.key, each.body, each.headers) for each in messages])


def joined(digests: Iterable[bytes]) -> bytes:
    """Return the digest of a transaction from the digests of its messages, in the order of their publishing."""
    return sha256(b"".join(digests)).digest()


def message_digest(
    topic: str, key: str | bytes | None, body: bytes, headers: Mapping[str, str | bytes] | None
) -> bytes:
    """Return the digest of one message, 32 bytes; *headers* are its own, without those that txcore adds to a target."""
    name = topic.encode("utf-8", "surrogatepass")
    raw_key = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    parts = [
        _HEAD(len(name), _NO_KEY if raw_key is None else len(raw_key), len(body), len(headers) if headers else 0),
        name,
        raw_key or b"",
        body,
    ]
    if headers:
        for raw_name, value in sorted((each.encode("utf-8", "surrogatepass"), headers[each]) for each in headers):
            raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            parts += (_HEADER(len(raw_name), len(raw)), raw_name, raw)
    return sha256(b"".join(parts)).digest()
