"""The half records that were read of one partition, in log order; closed ones are left out after a while.

A checker that comes back to a log of millions holds the undecided halves, not all records that were written meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from txcore.checker.decide import Pending
from txcore.records import Position

RECENT_MAX: Final = 10_000
"""Number of closed halves that are remembered after a checkpoint may pass them."""
LEFT_IN_MAX: Final = 20_000
"""Number of newest records of which the closed ones are kept; a long log's others are left out (`_leave_out`)."""


class ReadHalf(msgspec.Struct, gc=False):
    """A half record that was read: its position, the first op that concerns it, and the kind of op that closed it.

    It also represents the closed records after it that were left out: their number, and their first op.
    """

    position: Position
    transaction_id: bytes
    generation: int
    first_op: Position | None
    closed_by: int = 0  #: a final kind, DISCARD, or -1 for a copy that a newer one replaced
    pending: Pending | None = None  #: None once it is closed
    left_out: int = 0
    first_op_left_out: Position | None = None
    final_at: int = -1  #: of a half that is parked: the place of its COMMITTED
    held: Pending | None = None  #: of a half that is parked, and holds its order key up


class ReadHalves:
    """The half records, and the newest one of each transaction.

    Attributes:
        line: The records from the oldest undecided one on.
        pending_count: Undecided halves.
        held_count: Parked halves that hold their order keys up.
    """

    def __init__(self) -> None:
        self.line: deque[ReadHalf] = deque()
        self.pending_count = self.held_count = 0
        self._left_out = 0
        self._room = 2 * LEFT_IN_MAX
        self._newest: dict[bytes, ReadHalf] = {}
        self._recent: OrderedDict[bytes, ReadHalf] = OrderedDict()  #: newest records that were closed and left

    def knows(self, identity: bytes) -> bool:
        """Return whether a record of that half was read, be it undecided or closed not long ago."""
        return self._known(identity) is not None

    def holds(self, identity: bytes) -> bool:
        """Return whether an undecided half is known by a record that counts and can be published."""
        seen = self._newest.get(identity)
        pending = None if seen is None else seen.pending
        return pending is not None and not (pending.extras.is_unproven or pending.is_unreadable)

    def _known(self, identity: bytes) -> ReadHalf | None:
        return self._newest.get(identity) or self._recent.get(identity)

    def _add(self, seen: ReadHalf) -> None:
        if len(self.line) >= self._room:
            self._leave_out()
        self.line.append(seen)

    def _leave_out(self) -> None:
        """Keep of closed records after an undecided one only as much as a checkpoint must know of them."""
        self.pass_closed()
        kept: deque[ReadHalf] = deque()
        newest = len(self.line) - LEFT_IN_MAX
        for index, seen in enumerate(self.line):
            if not seen.closed_by or seen.held or not index or index >= newest:
                kept.append(seen)
                continue
            before = kept[-1]
            before.left_out += 1 + seen.left_out
            before.first_op_left_out = first_of((before.first_op_left_out, seen.first_op_left_out, seen.first_op))
            self._left_out += 1
            self._forget(seen)
        self.line = kept
        self._room = 2 * max(len(kept), LEFT_IN_MAX)

    def pass_closed(self) -> None:
        """Drop closed records before the oldest half that is undecided or held; the last record stays."""
        while len(self.line) > 1 and self.line[0].closed_by and self.line[0].held is None:
            seen = self.line.popleft()
            self._left_out -= seen.left_out
            self._forget(seen)

    def oldest_open(self) -> Iterator[tuple[int, Pending]]:
        """Yield (number of records after it, half) for halves that are undecided or held, in log order."""
        after_count = self.replay_count
        for seen in self.line:
            after_count -= 1
            if (kept := seen.pending or seen.held) is not None:
                yield after_count, kept
            after_count -= seen.left_out

    def kept(self) -> list[Pending]:
        """Return the halves that are undecided or held, in log order."""
        return [kept for seen in self.line if (kept := seen.pending or seen.held) is not None]

    @property
    def pending(self) -> dict[bytes, Pending]:
        """The undecided halves by id; a copy, from any thread."""
        return {
            pending.transaction_id: pending
            for seen in list(self._newest.values())
            if (pending := seen.pending) is not None
        }

    def closings(self) -> Iterator[tuple[bytes, int]]:
        """Yield (id, kind) for the ends this state still remembers; for oracles."""
        for identity, seen in [*self._recent.items(), *self._newest.items()]:
            yield identity, seen.closed_by

    @property
    def replay_count(self) -> int:
        """The number of half records that a restart would read again."""
        return len(self.line) + self._left_out

    def _forget(self, seen: ReadHalf) -> None:
        if self._newest.get(seen.transaction_id) is seen:
            del self._newest[seen.transaction_id]
            self._recent[seen.transaction_id] = seen
            if len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)


def first_of(positions: Iterable[Position | None]) -> Position | None:
    """Return the first of the positions that are known, or None."""
    return min((position for position in positions if position is not None), default=None)
