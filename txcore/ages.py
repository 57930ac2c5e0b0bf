"""What a checkpoint's note says: how old the oldest undecided halves are, where the broker's clock does not tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

import msgspec

from txcore.decide import Pending

ENTRY_BYTES: Final = 48


class NoteEntry(msgspec.Struct, array_like=True):
    """What a note says of one undecided half."""

    transaction_id: bytes
    generation: int
    count: int
    age_ms: int


def encode_ages(oldest: Iterable[Pending], now_ms: float, size_max: int) -> bytes:
    """Return the note on as many of the *oldest* as find room in *size_max* bytes."""
    entries = [
        NoteEntry(each.transaction_id, each.generation, each.count, max(round(now_ms - each.start_ms), 0))
        for each in itertools.islice(oldest, max(size_max - 16, 0) // ENTRY_BYTES)
    ]
    return msgspec.msgpack.encode(entries) if entries else b""


def decode_ages(note: bytes) -> dict[bytes, int]:
    """Return the ages by id in milliseconds; they are only hints, so that there are none where the note is damaged."""
    if not note:
        return {}
    try:
        entries = msgspec.msgpack.decode(note, type=list[NoteEntry])
    except msgspec.DecodeError:
        return {}  # Without them ages count from when a half is seen.
    return {entry.transaction_id: entry.age_ms for entry in entries}
