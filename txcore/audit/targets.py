"""The digest of one target as an audit reads it: that of its message, without what txcore added to it."""

from __future__ import annotations

from collections.abc import Mapping

from txcore import wire
from txcore.digest import message_digest


def target_digest(topic: str, key: str | bytes | None, body: bytes, headers: Mapping[str, str | bytes]) -> bytes:
    """Return the digest of the message in a target, 32 bytes.

    Args:
        topic: Its topic, as the producer names it.
        key: Its key; None where the broker's records have none, then the header for it counts.
        body: Its body.
        headers: All its headers.
    """
    own_key = key if key is not None else headers.get(wire.HEADER_KEY)
    return message_digest(
        topic, own_key, body, {each: headers[each] for each in headers if each not in wire.OWN_HEADERS}
    )
