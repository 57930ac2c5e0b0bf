"""The wire format as the version before 0.1 wrote it, and the rule of its check: a frozen copy (commit aed14bf).

Never to be changed.

`test_versions.py` has it read what this txcore writes, and the other way round.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

ID_BYTES: Final = 16


class WireFormatError(Exception):
    """Bytes in a txcore log are not a record this version can read."""


class OpKind(enum.IntEnum):
    """What an op record says; the numbers are the wire format."""

    COMMIT = 1  #: final: targets are out. The first final op in log order wins, whoever wrote it.
    ROLLBACK = 2  #: final: no target, ever.
    DISCARD = 3  #: closes copies of the half up to its generation; a resume opens the next one.
    CHECKED = 4  #: one check was answered UNKNOWN; `count` is the number of answers so far.
    DECIDED = 5  #: an unfenced or forced answer, journaled before it is acted upon; never asked again.
    NUDGE = 6  #: a producer gave way and asks for an early check.
    FORCE = 7  #: an operator's request; with a token it is the owner's reply to one.
    CLAIM = 8  #: a checker owns the partition from here on; the id is the claim's nonce.
    TICK = 9  #: nothing but a place in the log, to be read back; the id is the tick's nonce.


class TargetMessage(msgspec.Struct, array_like=True, gc=False):
    """A message inside a half, as it will be published: topic, key, body, headers (str or bytes) as given."""

    topic: str
    key: bytes | None
    body: bytes
    headers: dict[str, Any]


class Half(msgspec.Struct, array_like=True, tag="txh", gc=False):
    """The half record: one transaction with all its messages.

    Durations are milliseconds; 0 in `interval_ms` and `check_max` means the checker's own policy. The fields from
    `first_appended_ms` on are empty in a producer's half and filled in a carried or resumed copy, which folds the
    journal up to op position `folded_to`; `token` is the claim in force there, `missing` the targets still to publish
    (empty for all).
    """

    version: int
    transaction_id: bytes
    group: str
    partition: int
    generation: int
    born_ms: int
    immunity_ms: int
    interval_ms: int
    check_max: int
    fenced: bool
    by: str
    messages: list[TargetMessage]
    first_appended_ms: int = 0
    age_ms: int = 0
    count: int = 0
    folded_to: int = -1
    decided: int = 0
    token: bytes = b""
    reason: str = ""
    missing: list[int] = msgspec.field(default_factory=list)


class Op(msgspec.Struct, array_like=True, gc=False):
    """One entry of an op record; `transaction_id` is the nonce in a CLAIM or TICK.

    Attributes:
        decision: COMMIT or ROLLBACK in DECIDED and FORCE, 0 elsewhere.
        token: The writing checker's claim; empty for producers and operators.
        by: The attempt that wrote it (producer or checker instance), or the operator's name.
        at_ms: The writer's wall clock; for people and latencies, never for decisions.
    """

    kind: int
    transaction_id: bytes
    generation: int = 0
    by: str = ""
    at_ms: int = 0
    token: bytes = b""
    count: int = 0
    decision: int = 0
    forced: int = 0
    reason: str = ""


class Parked(msgspec.Struct, array_like=True, tag="txp"):
    """A discarded half with everything an operator needs: its own bytes, why, and what is missing.

    `code` is one of CHECKS_EXHAUSTED, UNDELIVERABLE, PRUNED, COVERAGE_GAP, POISON; `missing` holds the indices of
    the targets that were not confirmed (UNDELIVERABLE only).
    """

    version: int
    transaction_id: bytes
    generation: int
    code: str
    reason: str
    count: int
    by: str
    at_ms: int
    token: bytes
    half: bytes
    missing: list[int] = msgspec.field(default_factory=list)


VERSION: Final = 1


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


def check(half: Half, read_fence: Any, ask_listener: Any) -> str:
    """Return what that version's checker did about a half that was due.

    This is the rule of its `judging.Judge.judge`, `_check_fence` and `_ask`. A fenced half is the fence's business
    alone; of any other one only the listener is asked.
    """
    return str(read_fence(half.transaction_id) if half.fenced else ask_listener(half))
