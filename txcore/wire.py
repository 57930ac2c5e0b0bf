"""The wire format, version 1: MessagePack arrays, payload bytes raw. `docs/wire.md` is its specification.

Decoding ignores elements behind those it knows, so a later version may add some; it refuses another version number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from txcore.errors import WireFormatError
from txcore.ids import ID_BYTES, id_text
from txcore.records import Half, Op, OpKind, Parked, TargetMessage

VERSION: Final = 1
HEADER_ID: Final = "txcore-id"
HEADER_GROUP: Final = "txcore-group"
HEADER_BY: Final = "txcore-by"
HEADER_KEY: Final = "txcore-key"


class _OpRecord(msgspec.Struct, array_like=True, tag="txo"):
    version: int
    ops: list[Op]


class _MessageRecord(msgspec.Struct, array_like=True, tag="txm"):
    version: int
    message: TargetMessage


class HalfHead(msgspec.Struct, array_like=True, tag="txh", gc=False):
    """The beginning of a half record: enough to know whose it is."""

    version: int
    transaction_id: bytes
    group: str
    partition: int
    generation: int


_encode: Final = msgspec.msgpack.Encoder().encode
_half_decoder: Final = msgspec.msgpack.Decoder(Half)
_head_decoder: Final = msgspec.msgpack.Decoder(HalfHead)
_op_decoder: Final = msgspec.msgpack.Decoder(_OpRecord)
_parked_decoder: Final = msgspec.msgpack.Decoder(Parked)
_message_decoder: Final = msgspec.msgpack.Decoder(_MessageRecord)
_KINDS: Final = frozenset(int(kind) for kind in OpKind)
_R = TypeVar("_R", Half, HalfHead, _OpRecord, Parked, _MessageRecord)


def encode_half(half: Half) -> bytes:
    """Return the envelope of a half."""
    return _encode(half)


def decode_half(body: bytes) -> Half:
    """Return the half in *body*.

    Raises:
        WireFormatError: *body* is not a half of a known version.
    """
    half = _decode(_half_decoder, body, "half record")
    _check_id(half.transaction_id)
    for message in half.messages:
        _check_headers(message)
    return half


def decode_head(body: bytes) -> HalfHead:
    """Return the beginning of the half in *body*, at a fifth of the cost; what is behind is not looked at.

    Raises:
        WireFormatError: *body* does not begin as a half of a known version does.
    """
    return _decode(_head_decoder, body, "half record")


def encode_ops(ops: Sequence[Op]) -> bytes:
    """Return one op record that holds *ops*, one or many (a merged record)."""
    return _encode(_OpRecord(VERSION, list(ops)))


def decode_ops(body: bytes) -> list[Op]:
    """Return the ops in one op record, in order.

    Raises:
        WireFormatError: *body* is not an op record of a known version.
    """
    ops = _decode(_op_decoder, body, "op record").ops
    for op in ops:
        _check_id(op.transaction_id)
        if op.kind not in _KINDS:
            raise WireFormatError(f"op kind {op.kind} is unknown")
    return ops


def encode_parked(parked: Parked) -> bytes:
    """Return a parked record."""
    return _encode(parked)


def decode_parked(body: bytes) -> Parked:
    """Return the parked record in *body*.

    Raises:
        WireFormatError: *body* is not a parked record of a known version.
    """
    return _decode(_parked_decoder, body, "parked record")


def encode_message(message: TargetMessage) -> bytes:
    """Return one message as a row of the message table holds it."""
    return _encode(_MessageRecord(VERSION, message))


def decode_message(body: bytes) -> TargetMessage:
    """Return the message in *body*, from a row of the message table.

    Raises:
        WireFormatError: *body* is not a message of a known version.
    """
    message = _decode(_message_decoder, body, "message of a table").message
    _check_headers(message)
    return message


def target_id(transaction_id: bytes, index: int) -> str:
    """Return a target's de-duplication id, `<transaction_id>:<index>`."""
    return f"{id_text(transaction_id)}:{index}"


def target_headers(
    group: str, transaction_id: bytes, index: int, message: TargetMessage, by: str, *, key_as_header: bool
) -> dict[str, str | bytes]:
    """Return the headers a target carries: the user's, then ours.

    Args:
        key_as_header: True where the broker's records have no key of their own; the key travels as `txcore-key`.
    """
    own: dict[str, str | bytes] = {HEADER_ID: f"{id_text(transaction_id)}:{index}", HEADER_GROUP: group, HEADER_BY: by}
    if key_as_header and message.key is not None:
        return {**message.headers, **own, HEADER_KEY: message.key}
    return {**message.headers, **own} if message.headers else own


def _decode(decoder: msgspec.msgpack.Decoder[_R], body: bytes, what: str) -> _R:
    try:
        record = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireFormatError(f"{len(body)} bytes are no {what}: {error}") from error
    if record.version != VERSION:
        raise WireFormatError(f"a {what} of version {record.version}; this txcore reads version {VERSION}")
    return record


def _check_headers(message: TargetMessage) -> None:
    if not all(isinstance(value, str | bytes) for value in message.headers.values()):
        raise WireFormatError(f"a header of a message for {message.topic!r} is neither str nor bytes")


def _check_id(transaction_id: bytes) -> None:
    if len(transaction_id) != ID_BYTES:
        raise WireFormatError(f"a transaction id has {ID_BYTES} bytes, not {len(transaction_id)}")
