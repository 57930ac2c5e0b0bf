"""Records of groups that sign, around and inside those of `wire`: encoded and decoded, not verified.

`txcore.signing` makes and verifies the signatures; `docs/wire.md` is the specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from txcore.records import Op

SIGNED_VERSION: Final = 2
"""Version of the records that hold a signed one: readers of version 1 stop there."""
_SIGNED: Final = b"\xa3txs"  # after the array's first byte
_REFUSED: Final = b"\xc1txu"  # no MessagePack begins with this byte


class SignedOp(Op, array_like=True, gc=False):
    """An op of a group that signs. `targets` and `position` are reserved: signed, written empty, and not looked at.

    Attributes:
        key: The name of the key.
        mac: The signature of the elements before it; see `txcore.signing`.
    """

    targets: Any = msgspec.field(default_factory=list)
    position: Any = -1
    key: str = ""
    mac: bytes = b""


class SignedRecord(msgspec.Struct, array_like=True, tag="txs"):
    """A half or parked record, or a checkpoint's note, with its signature.

    Attributes:
        key: The name of the key.
        mac: The signature of `record`; see `txcore.signing`.
    """

    version: int
    key: str
    mac: bytes
    record: bytes


class _SignedOpRecord(msgspec.Struct, array_like=True, tag="txo"):
    version: int
    ops: list[SignedOp]


class Refused(msgspec.Struct, array_like=True):
    """A record that is not believed, and why."""

    reason: str
    body: bytes


_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode
_signed_decoder: Final = msgspec.msgpack.Decoder(SignedRecord)
_signed_op_decoder: Final = msgspec.msgpack.Decoder(_SignedOpRecord)
_refused_decoder: Final = msgspec.msgpack.Decoder(Refused)


def encode_signed(key: str, mac: bytes, record: bytes) -> bytes:
    """Return a record that holds *record* and its signature."""
    return _encode(SignedRecord(SIGNED_VERSION, key, mac, record))


def decode_signed(body: bytes) -> SignedRecord | None:
    """Return the signed record in *body*, or None when it is none, or one of a newer txcore."""
    if body[1:5] != _SIGNED:
        return None
    try:
        signed = _signed_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return signed if signed.version == SIGNED_VERSION else None


def unsigned(body: bytes) -> bytes:
    """Return the record inside a signed one, whose signature is not looked at; every other body as it is."""
    signed = decode_signed(body)
    return body if signed is None else signed.record


def decode_signed_ops(body: bytes) -> Sequence[SignedOp] | None:
    """Return the ops in one op record of any version, with their signatures; None where they have another form.

    Each version keeps the first 14 elements of a signed op, so that a reader of an older one can verify it.
    """
    try:
        ops: Sequence[SignedOp] = _signed_op_decoder.decode(body).ops
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return ops


def content_of(op: SignedOp) -> bytes:
    """Return the bytes of an op that its signature covers: the op with an empty signature."""
    return _encode(msgspec.structs.replace(op, mac=b""))


def encode_refused(reason: str, body: bytes) -> bytes:
    """Return what a reader gives instead of *body*, which is not signed rightly: every decoder here refuses it.

    It is never stored. `UnsignedRecordError` has both parts.
    """
    return _REFUSED + _encode(Refused(reason, body))


def decode_refused(body: bytes) -> Refused | None:
    """Return the parts of what `encode_refused` gave, or None where *body* is anything else."""
    if not body.startswith(_REFUSED):
        return None
    try:
        return _refused_decoder.decode(body[len(_REFUSED) :])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
