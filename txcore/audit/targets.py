"""One target as an audit reads it: its place, and the digest of its message, without what txcore added to it."""

from __future__ import annotations

from collections.abc import Mapping

from txcore import wire
from txcore.digest import message_digest
from txcore.errors import UsageError
from txcore.ids import id_text, parse_id


def target_place(name: str) -> tuple[bytes, int] | None:
    """Return transaction and index that a header `txcore-id` names; None unless it is as txcore writes it.

    Consumers may compare these texts. So another form of the same id is not the same id.
    """
    identity, _, number = name.rpartition(":")
    try:
        transaction_id, index = parse_id(identity), int(number)
    except (UsageError, ValueError):
        return None
    return (transaction_id, index) if index >= 0 and name == f"{id_text(transaction_id)}:{index}" else None


def target_digest(topic: str, key: str | bytes | None, body: bytes, headers: Mapping[str, str | bytes]) -> bytes:
    """Return the digest of the message in a target, 32 bytes.

    Args:
        topic: Its topic, as the producer names it.
        key: Its key; None where the broker's records have none, then the header for it counts. Beside a key, a header
            with another one is the message's own.
        body: Its body.
        headers: All its headers.
    """
    own = {each: headers[each] for each in headers if each not in wire.OWN_HEADERS}
    named = headers.get(wire.HEADER_KEY)
    if named is not None and key is not None and _raw(named) != _raw(key):
        own[wire.HEADER_KEY] = named
    return message_digest(topic, named if key is None else key, body, own)


def _raw(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
