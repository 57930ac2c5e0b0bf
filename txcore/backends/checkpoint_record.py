"""A checkpoint as one record, for a backend whose broker stores bytes; the two positions are the backend's numbers."""

from __future__ import annotations

from typing import Final

import msgspec

from txcore.errors import WireFormatError
from txcore.records import Checkpoint, Position

CHECKPOINT_VERSION: Final = 1


class _CheckpointRecord(msgspec.Struct, array_like=True, tag="txcp"):
    version: int
    half: int | None
    op: int | None
    token: bytes
    note: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_CheckpointRecord).decode


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return *checkpoint* as a record."""
    return _encode(
        _CheckpointRecord(CHECKPOINT_VERSION, checkpoint.half, checkpoint.op, checkpoint.token, checkpoint.note)
    )


def decode_checkpoint(body: bytes) -> Checkpoint:
    """Return the checkpoint in *body*.

    Raises:
        WireFormatError: *body* is no checkpoint, or one of another version.
    """
    try:
        record = _decode(body)
    except msgspec.DecodeError as error:
        raise WireFormatError(f"{len(body)} bytes are no checkpoint: {error}") from error
    if record.version != CHECKPOINT_VERSION:
        raise WireFormatError(f"a checkpoint of version {record.version}; this txcore reads {CHECKPOINT_VERSION}")
    half = None if record.half is None else Position(record.half)
    op = None if record.op is None else Position(record.op)
    return Checkpoint(half, op, record.token, record.note)
