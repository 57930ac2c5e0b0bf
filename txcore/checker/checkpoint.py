"""A checkpoint: two lower bounds (R12), and a note on the halves that were undecided.

The note has the ages of halves where the broker's clock does not give them. Where a log's records carry no time, an
owner must know how long the log has kept each half that it finds: else retention takes the half before it is carried
forward. A note has room for some halves only. But each record in the log at or before a half that the note names is at
least as old as that half.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Final, TypeVar

import msgspec

from txcore.checker.decide import Pending
from txcore.checker.partition_state import PartitionState
from txcore.checker.read_halves import first_of
from txcore.records import Checkpoint, Count, FoldedTo, IdBytes, Time

ENTRY_BYTES: Final = 57
"""Most bytes in an entry."""
ENTRY_BYTES_MIN: Final = 25
GRAIN_MS: Final = 1000.0
"""Time, in milliseconds, within which stored halves may count as equally old; a multiple of it if they are many."""
T = TypeVar("T")


class NoteEntry(msgspec.Struct, array_like=True):
    """The entry of a note about one undecided half.

    Attributes:
        age_ms: Time since its immunity began.
        position: The position of its newest record; -1 in older notes, and where nothing is known of it.
        copy_age_ms: Least time since that record was stored; records before it are no younger.
        is_held: It is parked, and holds its order key up.
    """

    transaction_id: IdBytes
    generation: Count
    count: Count
    age_ms: Time
    position: FoldedTo = -1
    copy_age_ms: Time = 0
    is_held: bool = False


def checkpoint_of(
    state: PartitionState, noted: Sequence[NoteEntry], now_ms: float, note_size_max: int, *, tells_ages: bool = False
) -> Checkpoint:
    """Return the two lower bounds: before them is no undecided half, and no op of a half at or after them.

    Args:
        noted: The entries of the note from which the state was begun.
        tells_ages: See `note_of`.
    """
    state.pass_closed()
    half = state.line[0].position if state.line else state.half_read
    firsts = chain.from_iterable((seen.first_op, seen.first_op_left_out) for seen in state.line)
    op = first_of(chain(firsts, (ops[0][0] for ops in state.early_ops.values()), (state.op_read,)))
    unread = [entry for entry in noted if entry.position > state.reread]
    note = note_of(state.kept(), unread, now_ms, note_size_max, tells_ages=tells_ages)
    return Checkpoint(half, op, state.pass_ops(op), note)


def note_of(
    kept: Sequence[Pending], unread: Sequence[NoteEntry], now_ms: float, size_max: int, *, tells_ages: bool
) -> bytes:
    """Return a note of at most *size_max* bytes: on the oldest halves, and on others whose ages count for many.

    Args:
        kept: The halves that are undecided or held, in log order.
        unread: The previous note's entries of halves after these, which were not read again yet.
        tells_ages: Only notes give ages, so half of the room is for entries from all over the log, those of held halves
            among them.
    """
    room = max(size_max - 16, 0)
    count_max = room // (ENTRY_BYTES if tells_ages else ENTRY_BYTES_MIN)
    oldest = list(islice((each for each in kept if not each.is_held), count_max // 2 if tells_ages else count_max))
    named = {each.transaction_id for each in oldest}
    aged = [each for each in kept if tells_ages and not each.is_unreadable and each.transaction_id not in named]
    spread = spread_of(aged, count_max - len(oldest), lambda each: each.copied_ms)
    entries = [_entry_of(each, now_ms) for each in [*oldest, *spread]] + list(unread)
    if tells_ages and len(entries) > count_max:
        first = count_max // 2
        entries = entries[:first] + spread_of(entries[first:], count_max - first, lambda each: -each.copy_age_ms)
    return _encoded(entries, room)


def _entry_of(each: Pending, now_ms: float) -> NoteEntry:
    age_ms = max(round(now_ms - each.start_ms), 0)
    if each.is_unreadable:
        return NoteEntry(each.transaction_id, each.generation, each.count, age_ms)
    copy_age_ms = max(round(now_ms - each.copied_ms), 0)
    return NoteEntry(each.transaction_id, each.generation, each.count, age_ms, each.position, copy_age_ms, each.is_held)


def _encoded(entries: Sequence[NoteEntry], room: int) -> bytes:
    kept = 0
    for entry in entries:
        room -= len(msgspec.msgpack.encode(entry))
        if room < 0:
            break
        kept += 1
    return msgspec.msgpack.encode(entries[:kept]) if kept else b""


def spread_of(items: Sequence[T], count_max: int, stored_ms: Callable[[T], float]) -> list[T]:
    """Return at most *count_max* of *items*, given in log order, so that each other one is little older than its next.

    The last item of equal age represents all of that age. After a restart they count as old as that item,
    so it must be chosen again, or their ages would fade from restart to restart. Therefore the choice begins at the
    oldest ones and keeps a distance: a chosen item stays chosen until all that it represents have ended.
    """
    grain_ms = 0.0
    while count_max >= 2:
        chosen = _chosen(items, count_max, stored_ms, grain_ms)
        if len(chosen) <= count_max:
            return [items[index] for index in chosen]
        grain_ms = max(grain_ms * 2, GRAIN_MS)
    return list(items[-count_max:]) if count_max > 0 else []


def _chosen(items: Sequence[T], count_max: int, stored_ms: Callable[[T], float], grain_ms: float) -> list[int]:
    """Return the indexes of a choice with that grain, or too many of them."""
    chosen: list[int] = []
    index = bisect_right(items, stored_ms(items[0]), key=stored_ms) - 1 if items else -1
    while index >= 0 and len(chosen) <= count_max:
        chosen.append(index)
        following = index + 1
        if following >= len(items):
            break
        # The last one that is near, else the last of those that are as old as the next one.
        index = bisect_left(items, stored_ms(items[index]) + grain_ms, following, key=stored_ms) - 1
        if index < following:
            index = bisect_right(items, stored_ms(items[following]), following, key=stored_ms) - 1
    return chosen


def noted_in(checkpoint: Checkpoint | None) -> list[NoteEntry]:
    """Return the entries of a checkpoint's note in log order; none where it is damaged, as it is only a hint."""
    try:
        entries = msgspec.msgpack.decode(checkpoint.note, type=list[NoteEntry]) if checkpoint else []
    except msgspec.DecodeError:
        return []
    return sorted(entries, key=lambda entry: entry.position)


def copy_age_of(entries: Sequence[NoteEntry], position: int) -> int | None:
    """Return how long a log has kept the record at *position* at least, where a note holds that; else None."""
    index = bisect_left(entries, position, key=lambda entry: entry.position)
    return entries[index].copy_age_ms if index < len(entries) else None
