"""What a checkpoint's note says: which halves were undecided, and how old, where the broker's clock does not tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

import msgspec

from txcore.checker.decide import Pending
from txcore.records import Count, Time, TransactionId

ENTRY_BYTES: Final = 48


class NoteEntry(msgspec.Struct, array_like=True):
    """What a note says of one undecided half."""

    transaction_id: TransactionId
    generation: Count
    count: Count
    age_ms: Time


def encode_ages(oldest: Iterable[Pending], now_ms: float, size_max: int) -> bytes:
    """Return the note on as many of the *oldest* as find room in *size_max* bytes."""
    entries = [
        NoteEntry(each.transaction_id, each.generation, each.count, max(round(now_ms - each.start_ms), 0))
        for each in itertools.islice(oldest, max(size_max - 16, 0) // ENTRY_BYTES)
    ]
    return msgspec.msgpack.encode(entries) if entries else b""


def decode_note(note: bytes) -> list[NoteEntry]:
    """Return what a note says, oldest first; nothing where it is damaged, as it is only a hint."""
    if not note:
        return []
    try:
        return msgspec.msgpack.decode(note, type=list[NoteEntry])
    except msgspec.DecodeError:
        return []


def decode_ages(note: bytes) -> dict[bytes, int]:
    """Return the ages by id in milliseconds. Without a note ages count from when a half is seen."""
    return {entry.transaction_id: entry.age_ms for entry in decode_note(note)}
