"""The state of one partition, folded from its two logs. No I/O, no clock; log order is the only truth.

`PartitionState` answers three questions: which halves are undecided, which of them is due next, and how far a
checkpoint may go. Ops written by checkers count only under the claim in force at their place in the op log; final
ops always count, and the first one wins.

The two logs may be read in any interleaving, and the result is the same. An op that is read before its half waits for
it (an orphan). The journal of a copy begins where its writer folded it: until that part was read again (`look_back`),
only final ops count for the copy, and looking back folds all the others in log order.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from txcore.checker.checkpoint_note import decode_note, note_of
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.due_queue import DueQueue
from txcore.records import (
    FINAL_KINDS,
    MARK_KINDS,
    Checkpoint,
    Op,
    OpKind,
    ParkCode,
    Position,
    is_discard_in_force,
    is_in_force,
    is_reply_to,
)

RECENT_MAX: Final = 10_000
LEFT_IN_MAX: Final = 20_000
"""Number of newest records of which the closed ones are kept; a long log's others are left out (`_leave_out`)."""
STALE_MAX: Final = 10_000
"""Most times kept of halves that are no longer due, beyond as many as there are undecided halves."""


class _Seen(msgspec.Struct, gc=False):
    """A half record that was read: its position, the first op that concerns it, and the kind of op that closed it.

    It also represents the closed records after it that were left out: their number, and their first op.
    """

    position: int
    transaction_id: bytes
    generation: int
    first_op: int | None
    closed_by: int = 0  #: a final kind, DISCARD, or -1 for a copy that a newer one replaced
    pending: Pending | None = None  #: None once it is closed
    left_out: int = 0
    first_op_left_out: int | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A final op that contradicts the one before it in the log."""

    transaction_id: bytes
    first: int
    second: Op


class PartitionState:
    """See the module. One thread at a time."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.pending_count = 0
        self.token = checkpoint.token if checkpoint else b""
        self.half_read: int | None = checkpoint.half if checkpoint else None
        self.op_read: int | None = checkpoint.op if checkpoint else None
        self.conflicts: list[Conflict] = []
        self.ended_parked: list[tuple[bytes, int]] = []  #: (id, generation) of entries whose halves ended after all
        self.closed_count = 0
        #: The entries of the checkpoint's note, in log order.
        self.noted = sorted(decode_note(checkpoint.note), key=lambda entry: entry.position) if checkpoint else []
        self.ages_ms = {entry.transaction_id: entry.age_ms for entry in self.noted}
        self.tells_ages = False  #: only the notes of checkpoints give the ages of halves
        self._reread = -1  #: the last half record that was read here
        self._entries: dict[bytes, int] = {}  #: of undecided halves: the generation of an entry that may be stored
        self._live_from: int | None = None  #: ops after it were written under the owner's claim
        self._claims: list[tuple[int, bytes]] = []
        self._first_token = self.token
        #: Of the newest checkpoint; the bounds of later ones do not lie before it.
        self._op_bound = -1 if self.op_read is None else self.op_read
        self._seen: deque[_Seen] = deque()
        self._left_out = 0
        self._room = 2 * LEFT_IN_MAX
        self._newest: dict[bytes, _Seen] = {}
        self._orphans: OrderedDict[bytes, list[tuple[int, Op]]] = OrderedDict()
        self._recent: OrderedDict[bytes, _Seen] = OrderedDict()  #: newest records that were closed and left
        self._due = DueQueue()

    # -- reading -----------------------------------------------------------------------------------------------

    def read_half(self, position: Position, pending: Pending, folded_to: int = -1, copied_under: bytes = b"") -> None:
        """Fold a half record, already decoded as if it were the only copy; copies merge by id.

        Args:
            folded_to: For a carried or resumed copy, the op position up to which its journal is folded into it.
            copied_under: The claim in force there.
        """
        self.half_read = self._reread = position
        identity = pending.transaction_id
        look_back = (folded_to, copied_under) if folded_to >= 0 else None
        self._make_room()
        known = self._known(identity)
        seen = _Seen(position, identity, pending.generation, None)
        self._seen.append(seen)
        if known is not None:
            # A copy names the position from which its journal is read, so earlier ops hold no checkpoint back for it.
            if known.first_op is not None and folded_to < 0:
                self._note_op(seen, known.first_op)
            self._merge(known, seen, pending, look_back)
        else:
            pending.note(look_back=look_back)
            self._open(seen, pending)
        self._take_orphans(identity)

    def _known(self, identity: bytes) -> _Seen | None:
        return self._newest.get(identity) or self._recent.get(identity)

    def _take_orphans(self, identity: bytes) -> None:
        """Fold the ops that were read before the newest half of *identity*; those of later halves still wait."""
        ops, seen = self._orphans.pop(identity, ()), self._known(identity)
        assert seen is not None
        for position, op in ops:
            if _is_early(op, seen.generation, seen.closed_by):
                self._orphans.setdefault(identity, []).append((position, op))
            else:
                self._take(seen, position, op)

    def read_ended(self, position: Position, identity: bytes, generation: int) -> bool:
        """Fold a half record whose end was read before it, as most are when a log is read again.

        Returns False for every other one, which is left to `read_half`.
        """
        ops = self._orphans.get(identity)
        if ops is None or ops[0][1].kind not in FINAL_KINDS:
            return False
        self.half_read = self._reread = position
        del self._orphans[identity]
        seen = _Seen(position, identity, generation, min(each[0] for each in ops), ops[0][1].kind)
        self._make_room()
        self._seen.append(seen)
        self._newest[identity] = seen
        self.closed_count += 1
        entry = max((op.generation for _, op in ops if op.kind == OpKind.DISCARD), default=-1)
        self._report_entry(identity, max(entry, _entry_left(ops[0][1], generation)))
        return True

    def _make_room(self) -> None:
        if len(self._seen) >= self._room:
            self._leave_out()

    def _leave_out(self) -> None:
        """Keep of closed records after an undecided one only as much as a checkpoint must know of them.

        So a checker that comes back to a log of millions holds the undecided halves, not all records written meanwhile.
        """
        self.pass_closed()
        kept: deque[_Seen] = deque()
        newest = len(self._seen) - LEFT_IN_MAX
        for index, seen in enumerate(self._seen):
            if not seen.closed_by or not index or index >= newest:
                kept.append(seen)
                continue
            before = kept[-1]
            before.left_out += 1 + seen.left_out
            before.first_op_left_out = _first((before.first_op_left_out, seen.first_op_left_out, seen.first_op))
            self._left_out += 1
            self._forget(seen)
        self._seen = kept
        self._room = 2 * max(len(kept), LEFT_IN_MAX)

    def _open(self, seen: _Seen, pending: Pending) -> None:
        self._newest[seen.transaction_id] = seen
        seen.pending = pending
        self.pending_count += 1
        self.schedule(pending, pending.due_ms)

    def _merge(self, known: _Seen, seen: _Seen, new: Pending, look_back: tuple[int, bytes] | None) -> None:
        """Highest generation and count, earliest start; a closed half stays closed up to its generation."""
        current = known.pending
        if current is None:
            if known.closed_by in FINAL_KINDS or seen.generation <= known.generation:
                seen.closed_by = known.closed_by
                return
            # A decision made while it was closed is not kept here, so the copy is judged by the log.
            new.note(look_back=look_back)
            self._open(seen, new)
            return
        if seen.generation < current.generation:
            seen.closed_by = -1
            return
        known.closed_by, known.pending = -1, None
        self._newest[seen.transaction_id] = seen
        is_found = current.extras.park is not None and current.extras.park[0] is ParkCode.LOST
        if is_found:
            new.note(look_back=look_back)
        if seen.generation > current.generation or is_found:
            if not is_found:  # of a half that was lost no start is known
                new.begin_by(current.start_ms)
            if current.is_journaled:
                new.decision, new.is_journaled = current.decision, True
                new.note(forced=current.extras.forced)
            if current.extras.look_back is not None:
                new.note(look_back=current.extras.look_back)
            current.is_closed = True
            self.pending_count -= 1
            self._open(seen, new)
            return
        copied_ms = new.copied_ms
        seen.pending = current
        current.position = seen.position
        current.count = max(current.count, new.count)
        current.begin_by(new.start_ms)
        current.note(carry_again_ms=0.0, copied_ms=copied_ms)
        if new.extras.poison is not None:  # a newer txcore's copy replaces the readable one
            current.note(poison=new.extras.poison, park=new.extras.park)
            self.schedule(current, AT_ONCE_MS)

    def read_op(self, position: Position, op: Op) -> bool:
        """Fold one op in log order; returns False for a record under an outdated claim, which changes nothing."""
        self.op_read = position
        if op.kind in MARK_KINDS:
            if op.kind == OpKind.CLAIM:
                self.token = op.token
                self._claims.append((position, op.token))
            return True
        seen = self._known(op.transaction_id)
        if not is_in_force(op, self.token):
            if seen is not None and op.kind == OpKind.DISCARD:
                self._note_discard(seen, op)
            return False
        if seen is None or _is_early(op, seen.generation, seen.closed_by):
            self._orphans.setdefault(op.transaction_id, []).append((position, op))
        else:
            self._take(seen, position, op)
        return True

    def _take(self, seen: _Seen, position: int, op: Op) -> None:
        """Fold an op into the half that it is about."""
        self._note_op(seen, position)
        pending = seen.pending
        if op.kind in FINAL_KINDS:
            if pending is not None:
                self._end(pending, op)
            elif seen.closed_by == OpKind.DISCARD:
                seen.closed_by = op.kind
                self.ended_parked.append((op.transaction_id, seen.generation))
            else:
                self._report_conflict(op.transaction_id, seen.closed_by, op)
        elif pending is not None and pending.extras.look_back is None:
            self._fold(pending, op, position)
        elif op.kind == OpKind.DISCARD:
            self._note_discard(seen, op)

    def look_back(self, pending: Pending, op: Op, position: int, token: bytes) -> None:
        """Fold an op from where a copy's journal begins, in log order, up to where this owner has read.

        Args:
            position: Its position.
            token: The claim in force there.
        """
        if not is_in_force(op, token):
            return
        if not pending.is_closed:
            self._fold(pending, op, position, token)
        elif op.kind in FINAL_KINDS and (seen := self._known(pending.transaction_id)) is not None:
            self._take(seen, position, op)

    def _note_op(self, seen: _Seen, position: int) -> None:
        """Let no checkpoint pass this op from here on, unless one has already: of a copy, or read again."""
        if position >= self._op_bound and (seen.first_op is None or position < seen.first_op):
            seen.first_op = position

    def _fold(self, pending: Pending, op: Op, position: int, token: bytes | None = None) -> None:
        kind = op.kind
        if kind in FINAL_KINDS:
            self._end(pending, op)
        elif kind == OpKind.DISCARD:
            if op.generation == pending.generation and is_discard_in_force(op, is_decided=pending.is_journaled):
                self.close(pending, kind)
            elif op.generation >= pending.generation:
                self.note_entry(pending.transaction_id, op.generation)
        elif kind == OpKind.CHECKED:
            if op.generation == pending.generation:
                pending.count = max(pending.count, op.count)
        elif kind == OpKind.DECIDED:
            if not pending.is_journaled:
                pending.decision, pending.is_journaled = op.decision, True
                pending.note(forced=op.forced)
                self.schedule(pending, AT_ONCE_MS)
        elif kind == OpKind.NUDGE:
            self.schedule(pending, min(pending.due_ms, pending.immune_until_ms))
        elif kind == OpKind.FORCE and op.generation == pending.generation:
            if not op.token:
                pending.note(force=op, force_at=(position, self._token_at(position) if token is None else token))
            elif pending.extras.force_at is None or not is_reply_to(op, pending.extras.force_at[0]):
                return
            else:
                pending.note(force=None, force_at=None)
            self.schedule(pending, min(pending.due_ms, pending.immune_until_ms))

    def _report_conflict(self, identity: bytes, first: int, op: Op) -> None:
        if first in FINAL_KINDS and first != op.kind:
            self.conflicts.append(Conflict(identity, first, op))

    def close(self, pending: Pending, kind: int) -> None:
        """Close a half: its final op or DISCARD was read back, or the store says that it exists."""
        pending.is_closed = True
        seen = self._newest.get(pending.transaction_id)
        if seen is not None and seen.pending is pending:
            seen.closed_by, seen.pending = kind, None
            self.pending_count -= 1
            self.closed_count += 1
        entry = self._entries.pop(pending.transaction_id, -1)
        if kind in FINAL_KINDS:
            self._report_entry(pending.transaction_id, entry)

    # -- entries of halves that end after all ------------------------------------------------------------------------

    def note_entry(self, identity: bytes, generation: int) -> None:
        """Note that a parked record of an undecided half may be stored without a DISCARD that counts."""
        self._entries[identity] = max(generation, self._entries.get(identity, -1))

    def begin_live(self) -> None:
        """Note that the owner's claim was read: ops from here on are new."""
        self._live_from = self.op_read

    def _note_discard(self, seen: _Seen, op: Op) -> None:
        """A DISCARD that closes nothing still shows that there is a parked record."""
        if seen.closed_by in FINAL_KINDS:
            self._report_entry(op.transaction_id, op.generation)
        elif seen.pending is not None and op.generation >= seen.generation:
            self.note_entry(op.transaction_id, op.generation)

    def _end(self, pending: Pending, op: Op) -> None:
        """Close a half with its final op; an earlier generation was parked, and its entry may still be open."""
        entry = _entry_left(op, pending.generation)
        if entry >= 0:
            self.note_entry(pending.transaction_id, entry)
        self.close(pending, op.kind)

    def _report_entry(self, identity: bytes, generation: int) -> None:
        if generation >= 0:
            self.ended_parked.append((identity, generation))

    # -- due halves ----------------------------------------------------------------------------------------------

    def schedule(self, pending: Pending, due_ms: float) -> None:
        """Set when *pending* is looked at next."""
        pending.due_ms = due_ms
        self._due.push(due_ms, pending.transaction_id)
        if len(self._due) > STALE_MAX + 2 * self.pending_count:
            self._due.keep(lambda due_ms, identity: self._waiting(due_ms, identity) is not None)

    def begin_by(self, start_ms: float) -> None:
        """Let no immunity have begun later than *start_ms*, a time at which all halves known were stored."""
        for pending in list(self.pending.values()):
            if pending.start_ms > start_ms:
                due_ms = min(pending.due_ms, start_ms + pending.terms.immunity_ms)
                pending.begin_by(start_ms)
                self.schedule(pending, due_ms)

    def next_due_ms(self) -> float | None:
        """Return when the next half is due, or None."""
        while (first := self._due.first()) is not None:
            if self._waiting(*first) is not None:
                return first[0]
            self._due.pop()
        return None

    def _waiting(self, due_ms: float, identity: bytes) -> Pending | None:
        """Return the half that is due at that time; None if that has changed since it was scheduled."""
        seen = self._newest.get(identity)
        pending = None if seen is None else seen.pending
        return None if pending is None or pending.due_ms != due_ms or pending.is_busy else pending

    def take_due(self, now_ms: float, count_max: int) -> list[Pending]:
        """Remove and return at most *count_max* halves due at *now_ms*, earliest first; they are busy from here on."""
        due: list[Pending] = []
        while len(due) < count_max and (first := self._due.first()) is not None and first[0] <= now_ms:
            self._due.pop()
            if (pending := self._waiting(*first)) is not None:
                pending.is_busy = True  # It may be in the queue twice for one time (a NUDGE): it is taken once.
                due.append(pending)
        return due

    def pass_closed(self) -> None:
        """Drop closed records before the oldest undecided half; the last record stays."""
        while len(self._seen) > 1 and self._seen[0].closed_by:
            seen = self._seen.popleft()
            self._left_out -= seen.left_out
            self._forget(seen)

    def oldest_open(self) -> Iterator[tuple[int, Pending]]:
        """Yield (number of records after it, half) for undecided halves in log order."""
        after_count = self.replay_count
        for seen in self._seen:
            after_count -= 1
            if seen.pending is not None:
                yield after_count, seen.pending
            after_count -= seen.left_out

    @property
    def pending(self) -> dict[bytes, Pending]:
        """The undecided halves by id; a copy, from any thread."""
        return {
            pending.transaction_id: pending
            for seen in list(self._newest.values())
            if (pending := seen.pending) is not None
        }

    # -- how far a checkpoint may go --------------------------------------------------------------------------------

    def checkpoint(self, now_ms: float, note_size_max: int) -> Checkpoint:
        """Return the two lower bounds: before them is no undecided half, and no op of a half at or after them."""
        self.pass_closed()
        half = self._seen[0].position if self._seen else self.half_read
        firsts = itertools.chain.from_iterable((seen.first_op, seen.first_op_left_out) for seen in self._seen)
        op = _first(itertools.chain(firsts, (ops[0][0] for ops in self._orphans.values()), (self.op_read,)))
        return Checkpoint(
            None if half is None else Position(half),
            None if op is None else Position(op),
            self._token_before(op),
            self._note(now_ms, note_size_max),
        )

    def _note(self, now_ms: float, size_max: int) -> bytes:
        undecided = [seen.pending for seen in self._seen if seen.pending is not None]
        unread = [entry for entry in self.noted if entry.position > self._reread]
        return note_of(undecided, unread, now_ms, size_max, tells_ages=self.tells_ages)

    def drop_orphans(self, op_read: int, kept: Container[bytes] = ()) -> int:
        """Forget ops up to *op_read* that still wait for their half, but for ids that are *kept*; returns of how many.

        To be called once every half that was stored when the op log was read up to there has been read: a half is
        stored before each of its ops, so these have none here.
        """
        dropped = 0
        for identity, ops in list(self._orphans.items()):
            if ops[0][0] <= op_read and identity not in kept:
                left = [each for each in ops if each[0] > op_read]
                dropped += 1
                self._drop(identity, ops[: len(ops) - len(left)])
                if left:
                    self._orphans[identity] = left
                else:
                    del self._orphans[identity]
        return dropped

    def _drop(self, identity: bytes, ops: Sequence[tuple[int, Op]]) -> None:
        """An end that comes now, of a half that no checkpoint names any more: it was parked, if it was not finished."""
        live_from = self._live_from
        for position, op in ops:
            if op.kind in FINAL_KINDS and live_from is not None and position > live_from:
                self._report_entry(identity, op.generation)

    def closings(self) -> Iterator[tuple[bytes, int]]:
        """Yield (id, kind) for the ends this state still remembers; for oracles."""
        for identity, seen in itertools.chain(self._recent.items(), self._newest.items()):
            yield identity, seen.closed_by

    def waiting_from(self, identity: bytes) -> tuple[int, bytes] | None:
        """Return the position of the first op that waits for a half of *identity*, and the claim in force there."""
        ops = self._orphans.get(identity)
        return (ops[0][0], self._token_at(ops[0][0])) if ops else None

    @property
    def orphan_count(self) -> int:
        """The number of unread halves of which ops were read."""
        return len(self._orphans)

    @property
    def replay_count(self) -> int:
        """The number of half records that a restart would read again."""
        return len(self._seen) + self._left_out

    def _forget(self, seen: _Seen) -> None:
        if self._newest.get(seen.transaction_id) is seen:
            del self._newest[seen.transaction_id]
            self._recent[seen.transaction_id] = seen
            if len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)

    def _token_at(self, position: int) -> bytes:
        """Return the claim in force at a place that no checkpoint has passed."""
        claims = (claimed for claimed_at, claimed in reversed(self._claims) if claimed_at < position)
        return next(claims, self._first_token)

    def _token_before(self, position: int | None) -> bytes:
        token = self._first_token
        if position is None:
            return token
        self._op_bound = position
        for index, (claimed_at, claimed) in enumerate(self._claims):
            if claimed_at >= position:
                del self._claims[:index]
                break
            token = claimed
        else:
            self._claims.clear()
        self._first_token = token
        return token


def _is_early(op: Op, generation: int, closed_by: int) -> bool:
    """Return whether *op* is about a later half than the newest that was read; a final op ends all of them."""
    return op.generation > generation and op.kind not in FINAL_KINDS and closed_by not in FINAL_KINDS


def _entry_left(op: Op, generation: int) -> int:
    """Return the generation of the entry that a half of this generation leaves when *op* ends it, or -1 for none.

    An owner's final op comes with the record that closes the entries of the generations before its own.
    """
    closed = op.generation - 1 if op.token else -1
    return generation - 1 if generation - 1 > closed else -1


def _first(positions: Iterable[int | None]) -> int | None:
    return min((position for position in positions if position is not None), default=None)
