"""The wire format, versions 1 and 2: MessagePack arrays, payload bytes raw. `docs/wire.md` is its specification.

Decoding ignores elements after those it knows, so a later txcore may add some. It reads every version up to its own.
A record of a higher version, or with an op of an unknown kind, is a `NewerRecordError`: not damage, but the work of a
newer txcore.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from txcore import signed_records
from txcore.errors import NewerRecordError, UnsignedRecordError, WireFormatError
from txcore.ids import ID_BYTES, id_text, id_texts, known_id
from txcore.records import Count, Half, IdBytes, LogKind, Op, OpKind, Parked, TargetMessage

VERSION: Final = 1
"""Version of the records that use nothing newer."""
OWNER_VERSION: Final = 2
"""Version of the records of an owner's release: a half that its owner releases, a COMMITTED, a RELEASED."""
VERSION_READ_MAX: Final = 2
"""Highest version that this txcore reads."""
VERSION_MAX: Final = 255
"""Highest possible version; a higher number is damage."""
HEADER_ID: Final = "txcore-id"
HEADER_GROUP: Final = "txcore-group"
HEADER_BY: Final = "txcore-by"
HEADER_KEY: Final = "txcore-key"
HEADER_DUE: Final = "txcore-due"
"""Header of a message that was delayed: when it was due, in milliseconds since 1970 by its database's clock."""
OWN_HEADERS: Final = frozenset({HEADER_ID, HEADER_GROUP, HEADER_BY, HEADER_KEY, HEADER_DUE})
"""Headers of a target that are txcore's, not the message's."""


class _OpRecord(msgspec.Struct, array_like=True, tag="txo"):
    version: int
    ops: list[Op]


class _EncodedOps(msgspec.Struct, array_like=True, tag="txo"):
    version: int
    ops: list[msgspec.Raw]


class _MessageRecord(msgspec.Struct, array_like=True, tag="txm"):
    version: int
    message: TargetMessage


class _EndMarker(msgspec.Struct, array_like=True, tag="txe"):
    nonce: bytes


class HalfHead(msgspec.Struct, array_like=True, tag="txh", gc=False):
    """The beginning of a half record, the same in every version: enough to know its transaction and group."""

    version: int
    transaction_id: IdBytes
    group: str
    partition: Count
    generation: Count


class _OpHead(msgspec.Struct, array_like=True, tag="txo"):
    version: int


class _ParkedHead(msgspec.Struct, array_like=True, tag="txp"):
    version: int
    transaction_id: IdBytes
    generation: Count


class _MessageHead(msgspec.Struct, array_like=True, tag="txm"):
    version: int


_ONE: Final = b"\x91"
"""The beginning of an array with one element."""
_PROBE: Final = b"\xc1" * ID_BYTES  # no record has this byte before its id
_AFTER_MESSAGES: Final = Half.__struct_fields__[Half.__struct_fields__.index("messages") + 1 :]
_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode  # msgspec takes no subclass of bytes: a TransactionId
_half_decoder: Final = msgspec.msgpack.Decoder(Half)
_head_decoder: Final = msgspec.msgpack.Decoder(HalfHead)
_op_decoder: Final = msgspec.msgpack.Decoder(_OpRecord)
_parked_decoder: Final = msgspec.msgpack.Decoder(Parked)
_message_decoder: Final = msgspec.msgpack.Decoder(_MessageRecord)
_newer_decoders: Final[dict[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]] = {
    _half_decoder: _head_decoder,
    _head_decoder: _head_decoder,
    _op_decoder: msgspec.msgpack.Decoder(_OpHead),
    _parked_decoder: msgspec.msgpack.Decoder(_ParkedHead),
    _message_decoder: msgspec.msgpack.Decoder(_MessageHead),
}
_ELEMENTS: Final[dict[tuple[type, str], type]] = {(Half, "messages"): TargetMessage, (_OpRecord, "ops"): Op}
_INDEX: Final = re.compile(r"\[(\d+)\]")
_kind_of: Final = attrgetter("kind")
_second_byte: Final = itemgetter(1)
_KIND_KNOWN_MAX: Final = max(int(kind) for kind in OpKind)
_Header: TypeAlias = tuple[str, str | bytes]
_R = TypeVar("_R", Half, HalfHead, _OpRecord, Parked, _MessageRecord)


def encode_half(half: Half) -> bytes:
    """Return the envelope of a half."""
    return _encode(half)


class HalfTemplate:
    """Encodes halves that differ only in transaction, partition and their one message, as `encode_half` would.

    Args:
        half: One of them.
    """

    def __init__(self, half: Half) -> None:
        self._half = msgspec.structs.replace(half, transaction_id=_PROBE, messages=[])
        self._tail = b"".join([_encode(getattr(half, name)) for name in _AFTER_MESSAGES])
        body = _encode(self._half)
        self._head = body[: body.index(_PROBE)]

    def encode_each(
        self, transaction_ids: Sequence[bytes], partitions: Sequence[int], messages: Sequence[TargetMessage]
    ) -> list[bytes]:
        """Return the envelopes of halves with one message each."""
        known = {partition: self._middle(partition) for partition in set(partitions)}
        middles = map(known.__getitem__, partitions)
        parts = zip(
            repeat(self._head), transaction_ids, middles, repeat(_ONE), map(_encode, messages), repeat(self._tail)
        )
        return [*map(b"".join, parts)]

    def _middle(self, partition: int) -> bytes:
        body = _encode(msgspec.structs.replace(self._half, partition=partition))
        return body[len(self._head) + ID_BYTES : -len(self._tail) - 1]  # no message is one byte


class OpTemplate:
    """Encodes many ops that differ only in their transaction, each as `encode_op` would.

    Args:
        op: One of them.
    """

    def __init__(self, op: Op) -> None:
        self._head, _, self._tail = encode_op(msgspec.structs.replace(op, transaction_id=_PROBE)).partition(_PROBE)

    def encode_each(self, transaction_ids: Sequence[bytes]) -> list[bytes]:
        """Return the ops."""
        return [*map(b"".join, zip(repeat(self._head), transaction_ids, repeat(self._tail)))]


def decode_half(body: bytes) -> Half:
    """Return the half in *body*.

    Raises:
        NewerRecordError: *body* is a half of a newer txcore.
        WireFormatError: *body* is not a half.
    """
    half = _decode(_half_decoder, body, "a half record")
    if half.database and len(half.database) != ID_BYTES:
        raise WireFormatError(f"the identity of a database has {ID_BYTES} bytes, not {len(half.database)}")
    for message in half.messages:
        _check_headers(message)
    if half.missing:
        _check_missing(half)
    return half


def proof_of(copy: Half) -> bytes:
    """Return the id of the TICK that proves a carried or resumed copy, at the op position that the copy names.

    It is a digest of the whole copy but that position, so that only a process that may write ops makes copies.
    """
    return hashlib.sha256(_encode(msgspec.structs.replace(copy, proved_at=-1))).digest()[:ID_BYTES]


def half_or_none(body: bytes) -> Half | None:
    """Return the half in *body*, or None when this version cannot read one there."""
    try:
        return decode_half(body)
    except WireFormatError:
        return None


def decode_head(body: bytes) -> HalfHead:
    """Return the beginning of the half in *body*, at a fifth of the cost; the remaining bytes are not read.

    Raises:
        NewerRecordError: *body* is a half of a newer txcore.
        WireFormatError: *body* does not begin like a half.
    """
    return _decode(_head_decoder, body, "a half record")


def encode_ops(ops: Sequence[Op]) -> bytes:
    """Return one op record that holds *ops*, one or many (a merged record)."""
    return _encode(_OpRecord(_op_version(max(map(_kind_of, ops), default=0)), list(ops)))


def encode_op(op: Op) -> bytes:
    """Return an op for `op_record`."""
    return _encode(op)


def op_record(ops: Sequence[bytes]) -> bytes:
    """Return one op record of encoded *ops*, as `encode_ops` would."""
    newest = max(map(_second_byte, ops), default=0)  # the kind: of an array, as msgspec writes it, the first element
    return _encode(_EncodedOps(_op_version(newest), list(map(msgspec.Raw, ops))))


def _op_version(newest: int) -> int:
    return VERSION if newest < OpKind.COMMITTED else OWNER_VERSION


def decode_ops(body: bytes) -> list[Op]:
    """Return the ops in one op record, in order.

    Raises:
        NewerRecordError: *body* is an op record of a newer txcore, or holds an op of an unknown kind.
        WireFormatError: *body* is not an op record.
    """
    ops = _decode(_op_decoder, body, "an op record").ops
    for op in ops:
        if op.kind > _KIND_KNOWN_MAX:
            text = f"op kind {op.kind} is unknown to this txcore; a newer txcore reads it"
            raise NewerRecordError(text, version=VERSION_READ_MAX)
    return ops


def encode_parked(parked: Parked) -> bytes:
    """Return a parked record."""
    return _encode(parked)


def decode_parked(body: bytes) -> Parked:
    """Return the parked record in *body*, also out of a signed one whose signature was not looked at.

    Raises:
        NewerRecordError: *body* is a parked record of a newer txcore.
        WireFormatError: *body* is not a parked record.
    """
    return _decode(_parked_decoder, signed_records.unsigned(body), "a parked record")


def encode_end_marker(group: str, kind: LogKind, partition: int, nonce: bytes, by: str) -> bytes:
    """Return the body of a record that a backend appends to find a log's end; no reader of that backend returns it.

    A reader that reads it as a record of the log can ignore it: it is a TICK, a half without messages that is rolled
    back already, or not a parked record. *nonce* has the bytes of a transaction id.
    """
    if kind is LogKind.OP:
        return encode_ops([Op(OpKind.TICK, nonce, 0, by)])
    if kind is LogKind.HALF:
        half = Half(VERSION, nonce, group, partition, 0, 0, 0, 0, 0, fenced=False, by=by, messages=[])
        half.decided = OpKind.ROLLBACK
        return encode_half(half)
    return _encode(_EndMarker(nonce))


def encode_message(message: TargetMessage) -> bytes:
    """Return the bytes of one message for a row of the message table."""
    return _encode(_MessageRecord(VERSION, message))


def decode_message(body: bytes) -> TargetMessage:
    """Return the message in *body*, from a row of the message table.

    Raises:
        NewerRecordError: *body* is a message of a newer txcore.
        WireFormatError: *body* is not a message.
    """
    message = _decode(_message_decoder, body, "a message of a table").message
    _check_headers(message)
    return message


def target_id(transaction_id: bytes, index: int) -> str:
    """Return a target's de-duplication id, `<transaction_id>:<index>`."""
    return f"{id_text(transaction_id)}:{index}"


def target_headers(
    group: str, transaction_id: bytes, index: int, message: TargetMessage, by: str, *, key_as_header: bool = False
) -> dict[str, str | bytes]:
    """Return the headers of a target: the user's, then txcore's.

    Args:
        key_as_header: True where the broker's records have no key of their own; the key travels as `txcore-key`.
    """
    own: dict[str, str | bytes] = {HEADER_ID: f"{id_text(transaction_id)}:{index}", HEADER_GROUP: group, HEADER_BY: by}
    if key_as_header and message.key is not None:
        return {**message.headers, **own, HEADER_KEY: message.key}
    return {**message.headers, **own} if message.headers else own


def commit_headers(group: str, transaction_ids: Sequence[bytes], by: str) -> Iterator[list[_Header]]:
    """Return the headers of targets that are the first of their transactions and have none of their own."""
    ids: Iterable[_Header] = zip(repeat(HEADER_ID), (text + b":0" for text in id_texts(transaction_ids)))
    of_group: _Header = (HEADER_GROUP, group)
    of_attempt: _Header = (HEADER_BY, by)
    return map(list[_Header], zip(ids, repeat(of_group), repeat(of_attempt)))


def _decode(decoder: msgspec.msgpack.Decoder[_R], body: bytes, what: str) -> _R:
    try:
        record = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_newer(decoder, body, what)
        raise WireFormatError(f"{len(body)} bytes are not {what}: {_by_name(str(error), decoder.type)}") from error
    if record.version > VERSION_READ_MAX:
        _refuse_newer(decoder, body, what)
    if not 1 <= record.version <= VERSION_READ_MAX:
        raise WireFormatError(f"{what} of version {record.version}; this txcore reads 1 to {VERSION_READ_MAX}")
    return record


def _refuse_newer(decoder: msgspec.msgpack.Decoder[_R], body: bytes, what: str) -> None:
    """Raise NewerRecordError if *body* begins like a record of a newer version; else leave it to the caller.

    Raises:
        NewerRecordError: also for a signed record, which a process with the group's keys judges.
        UnsignedRecordError: a process with keys has refused it.
    """
    try:
        if (refused := signed_records.decode_refused(body)) is not None:
            raise UnsignedRecordError(refused.reason, body=refused.body)
        signed = signed_records.decode_signed(body)
        head = _newer_decoders[decoder].decode(body if signed is None else signed.record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if signed is not None:
        text = f"{what} is signed with key {signed.key!r}; open the broker with the group's signing_keys to read it"
    elif VERSION_READ_MAX < head.version <= VERSION_MAX:
        text = f"{what} of version {head.version}; this txcore reads up to {VERSION_READ_MAX}, a newer txcore reads it"
    else:
        return
    known = msgspec.structs.asdict(head) | {"version": head.version if signed is None else signed.version}
    if "transaction_id" in known:
        known["transaction_id"] = known_id(known["transaction_id"])
    raise NewerRecordError(text, **known)


def _by_name(text: str, kind: Any) -> str:
    """Return the decoder's text on a record of this kind, with the field's name in place of its number."""
    text, at, place = text.partition(" - at `$")
    path, element = "", None
    for index in _INDEX.findall(place):
        if kind is None:
            path, kind = f"{path}[{index}]", element
            continue
        number = int(index) - bool(kind.__struct_config__.tag)
        name = kind.__struct_fields__[number] if number >= 0 else "tag"
        path = f"{path}.{name}" if path else name
        kind, element = None, _ELEMENTS.get((kind, name))
    return f"{text} - in `{path}`" if path else text + at + place


def _check_headers(message: TargetMessage) -> None:
    for value in message.headers.values():  # a generator would double the cost of decoding a half
        if not isinstance(value, str | bytes):
            raise WireFormatError(f"a header of a message for {message.topic!r} is neither str nor bytes")


def _check_missing(half: Half) -> None:
    count = len(half.messages)
    if len(set(half.missing)) != len(half.missing) or max(half.missing) >= count:
        raise WireFormatError(f"a half record: `missing` names targets {half.missing} of {count}")
