"""Handles: a prepared transaction as a text, with which another process of its group can end it."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress

import msgspec

from txcore import wire
from txcore.errors import TransactionStateError, UsageError, WireFormatError
from txcore.ids import TransactionId, id_text, parse_id
from txcore.producer.transaction import LocalTransaction, Phase, ProducerContext
from txcore.records import HalfRecord


class _Handle(msgspec.Struct, array_like=True):
    """The content of a handle: the half, and the clock reading after which its producer gives way."""

    version: int
    half: bytes
    give_way_s: float | None
    boot_id: str
    is_via_table: bool = False


def handle_of(core: LocalTransaction) -> str:
    """Return the portable form of a prepared transaction.

    Raises:
        TransactionStateError: the transaction is not prepared.
    """
    if core.phase is not Phase.PREPARED or core.half is None:
        raise TransactionStateError(
            f"transaction {id_text(core.identity)} is {core.phase.value}; only a prepared one has a handle"
        )
    packed = msgspec.msgpack.encode(
        _Handle(wire.VERSION, core.half.body, core.give_way_s, core.context.clock.boot_id(), core.is_via_table)
    )
    check = binascii.crc32(packed).to_bytes(4, "big")
    return base64.urlsafe_b64encode(check + packed).decode("ascii")


def id_of(context: ProducerContext, target: TransactionId | bytes | str) -> bytes:
    """Return the id that *target* names: an id, its text, or a handle of the group.

    Raises:
        UsageError: it is none of them.
    """
    if isinstance(target, bytes):
        return bytes(TransactionId(target))
    with suppress(UsageError):
        return parse_id(target)
    return attach(context, target).identity


def attach(context: ProducerContext, handle: str) -> LocalTransaction:
    """Return the transaction that *handle* names.

    Raises:
        UsageError: the handle is damaged, or of another group.
    """
    try:
        if not isinstance(handle, str):
            raise UsageError(f"a handle is the text that `handle()` returned, not {type(handle).__name__}")
        raw = base64.urlsafe_b64decode(handle.encode("ascii"))
        if binascii.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise UsageError("this is no transaction handle: it is damaged")
        unpacked = msgspec.msgpack.decode(raw[4:], type=_Handle)
        half = wire.decode_half(unpacked.half)
    except (ValueError, msgspec.MsgspecError, WireFormatError) as error:
        raise UsageError("this is no transaction handle") from error
    if half.group != context.group:
        raise UsageError(f"this handle is of group {half.group!r}, not {context.group!r}")
    boot_id = context.clock.boot_id()
    is_comparable = bool(boot_id) and boot_id == unpacked.boot_id
    record = HalfRecord(half.group, half.partition, half.transaction_id, half.generation, unpacked.half, half.messages)
    return LocalTransaction(
        context,
        half.transaction_id,
        half.messages,
        phase=Phase.PREPARED,
        fenced=half.fence_decides,
        half=record,
        give_way_s=unpacked.give_way_s if is_comparable else None,
        is_via_table=unpacked.is_via_table,
        database=half.database,
        must_look=half.fence_decides,
        is_by_owner=half.is_by_owner,
    )
