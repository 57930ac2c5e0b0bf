"""The state of one partition, folded from its two logs. No I/O, no clock; log order is the only truth.

`PartitionState` answers three questions: which halves are undecided, which of them is due next, and how far a
checkpoint may go. Ops written by checkers count only under the claim in force at their place in the op log; final
ops and COMMITTED always count, and the first one wins. A COMMITTED closes nothing: its half waits for its owner (R17).

The two logs may be read in any interleaving, and the result is the same. An op that is read before its half waits for
it (an orphan). The journal of a copy begins where its writer folded it: until that part was read again (`look_back`),
only final ops count for the copy, and looking back folds all the others in log order.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from txcore.checker.decide import AT_ONCE_MS, NEVER_MS, Pending
from txcore.checker.early_ops import ENDS_OF_UNKNOWN, committed_in, end_in, entry_left, is_early, needs_order
from txcore.checker.ordered_halves import OrderedHalves
from txcore.checker.read_claims import ReadClaims
from txcore.checker.read_halves import ReadHalf
from txcore.op_rules import is_reply_to, outcome_of
from txcore.records import DECIDING_KINDS, FINAL_KINDS, MARK_KINDS, Checkpoint, Op, OpKind, Position, is_in_force

NOWHERE: Final = (-1, b"")
"""Before every place of an op log."""


class PartitionState(OrderedHalves):
    """See the module. One thread at a time.

    Attributes:
        token: The claim in force where the op log was read to.
        op_ms: The time at which the op log took the record that is folded, or at which it was read.
        early_ops: Ops that wait for their half, with their positions, by transaction id.
        conflicts: (kind of the final op that holds, later one that contradicts it).
        ended_parked: (transaction id, generation) of entries whose halves ended after all.
        strays: (transaction id, generation, position) of each COMMITTED that was dropped without a half.
    """

    def __init__(self, checkpoint: Checkpoint | None = None, *, holds_parked: bool = True) -> None:
        super().__init__(holds_parked=holds_parked)
        begun = checkpoint or Checkpoint(None, None)
        self.token, self.half_read, self.op_read = begun.token, begun.half, begun.op
        self.op_ms = 0.0
        self.conflicts: list[tuple[int, Op]] = []
        self.ended_parked: list[tuple[bytes, int]] = []
        self.strays: list[tuple[bytes, int, Position]] = []
        self.reread = -1  #: the last half record that was read here
        self.early_ops: dict[bytes, list[tuple[Position, Op]]] = {}
        self._entries: dict[bytes, int] = {}  #: of undecided halves: the generation of an entry that may be stored
        self._begins_at_half = begun.half is not None  #: ops may follow whose halves lie before
        self._live_from: int | None = None  #: ops after it were written under the owner's claim
        self._lacks_ops = False
        self._claims = ReadClaims(self.token)
        #: Of the newest checkpoint; the bounds of later ones do not lie before it.
        self._op_bound = -1 if self.op_read is None else self.op_read

    # -- reading -----------------------------------------------------------------------------------------------

    def read_half(self, position: Position, pending: Pending, folded_to: int = -1, copied_under: bytes = b"") -> None:
        """Fold a half record, already decoded as if it were the only copy; copies merge by id.

        Args:
            folded_to: For a carried or resumed copy, the op position up to which its journal is folded into it.
            copied_under: The claim in force there.
        """
        self.half_read = self.reread = position
        identity = pending.transaction_id
        seen = ReadHalf(position, identity, pending.generation, None)
        self._add(seen)
        known = self._known(identity)
        # The checkpoint may have passed the end of an unproven copy's half, so all of the op log is its journal.
        begins = NOWHERE if pending.extras.is_unproven else (folded_to, copied_under) if folded_to >= 0 else None
        pending.note(copied_from=begins, look_back=begins)
        if known is not None:
            # A copy names the position from which its journal is read, so earlier ops hold no checkpoint back for it.
            if known.first_op is not None and folded_to < 0:
                self._note_op(seen, known.first_op)
            self._merge(known, seen, pending)
        else:
            self._open(seen, pending)
        self._take_orphans(identity)

    def pass_over(self, position: Position) -> None:
        """Note a half record that changes nothing: a copy without a proof of a half that is known without it."""
        self.half_read = self.reread = position

    def _take_orphans(self, identity: bytes) -> None:
        """Fold the ops that were read before the newest half of *identity*; those of later halves still wait."""
        ops, seen = self.early_ops.pop(identity, ()), self._known(identity)
        assert seen is not None
        for position, op in ops:
            if is_early(op, seen):
                self.early_ops.setdefault(identity, []).append((position, op))
            else:
                self._take(seen, position, op)

    def read_ended(
        self, position: Position, identity: bytes, generation: int, *, may_be_committed: bool = False
    ) -> bool:
        """Fold a half record whose end was read before it, as most are when a log is read again.

        Returns False for every other one, which is left to `read_half`; also for one with a ROLLBACK that may come
        after a COMMITTED.
        """
        ops = self.early_ops.get(identity)
        end = None if ops is None else end_in(ops)
        if ops is None or end is None or (may_be_committed and end.kind == OpKind.ROLLBACK):
            return False
        self.half_read = self.reread = position
        del self.early_ops[identity]
        seen = ReadHalf(position, identity, generation, min(each[0] for each in ops), outcome_of(end.kind))
        self._add(seen)
        self._newest[identity] = seen
        entry = max((op.generation for _, op in ops if op.kind == OpKind.DISCARD), default=-1)
        self._report_entry(identity, max(entry, entry_left(end, generation)))
        return True

    def _open(self, seen: ReadHalf, pending: Pending) -> None:
        self._newest[seen.transaction_id] = seen
        seen.pending = pending
        self.pending_count += 1
        self._enqueue(pending)
        self.schedule(pending, pending.due_ms)

    def _merge(self, known: ReadHalf, seen: ReadHalf, new: Pending) -> None:
        """Highest generation and count, earliest start; a closed half stays closed up to its generation."""
        current = known.pending
        if current is None:
            # A copy knows of a COMMITTED before that ROLLBACK, where retention has removed it.
            was_committed = known.closed_by == OpKind.ROLLBACK and new.is_committed
            has_ended = known.closed_by in FINAL_KINDS or seen.generation <= known.generation
            if has_ended and not was_committed:
                seen.closed_by = known.closed_by
                self._move_held(known, seen, new)
                return
            # A decision made while it was closed is not kept here, so the copy is judged by the log.
            if known.final_at >= 0 and new.extras.look_back is None:
                new.commit(known.final_at, self.op_ms)
            self._drop_held(known)
            self._open(seen, new)
            return
        # What is known of it rests on no record that counts: it was lost, or only a copy without a proof was read.
        is_found = current.is_lost or current.extras.is_unproven
        if seen.generation < current.generation and not is_found:
            seen.closed_by = -1
            return
        known.closed_by, known.pending = -1, None
        self._newest[seen.transaction_id] = seen
        if seen.generation > current.generation or is_found:
            if not is_found:
                new.begin_by(current.start_ms)
                if not (self._lacks_ops and new.extras.copied_from):
                    new.note(look_back=current.extras.look_back)
            if current.is_committed and new.extras.look_back is None:  # else its journal is folded in log order
                new.commit(current.extras.final_at, current.extras.committed_ms)
            if current.is_journaled and not new.is_journaled:
                new.decision, new.is_journaled = current.decision, True
                new.note(forced=current.extras.forced)
            current.is_closed = True
            self.pending_count -= 1
            self._open(seen, new)
            return
        copied_ms = new.copied_ms
        seen.pending = current
        if new.is_committed:
            self._commit(current, new.extras.final_at, new.extras.committed_ms)
        current.position = seen.position
        current.count = max(current.count, new.count)
        current.begin_by(new.start_ms)
        if current.terms != new.terms:  # of a forged record: the copy has a proof
            current.set_terms(new.terms)
            self.schedule(current, current.immune_until_ms)
        current.note(carry_again_ms=0.0, copied_ms=copied_ms)
        self._enqueue(current, new)
        if new.is_held:
            current.note(held_at=new.extras.held_at)
            self.schedule(current, AT_ONCE_MS)
        if new.is_journaled and (current.decision != new.decision or current.is_committed):
            current.note(forced=new.extras.forced)
            self._journal(current, new.decision)  # the copy holds the first one of all
        begins, asked_at = new.extras.copied_from or NOWHERE, current.extras.force_at
        if begins > (current.extras.copied_from or NOWHERE):
            current.note(copied_from=begins)
            if asked_at is not None and asked_at[0] < begins[0]:
                current.note(force=None, force_at=None)  # answered: a copy's journal begins at an open request
            if self._lacks_ops:
                current.note(look_back=begins)
        if new.is_unreadable:  # a newer txcore's copy replaces the readable one
            current.note(poison=new.extras.poison, park=new.extras.park)
            self.schedule(current, AT_ONCE_MS)
        elif new.extras.park is not None and not current.decision:  # its writer had found a gap in the op log
            current.note(park=new.extras.park)

    def read_op(self, position: Position, op: Op) -> bool:
        """Fold one op in log order; returns False for a record under an outdated claim, which changes nothing."""
        self.op_read = position
        if op.kind in MARK_KINDS:
            if op.kind == OpKind.CLAIM:
                self.token = op.token
                self._claims.add(position, op.token)
            return True
        seen = self._known(op.transaction_id)
        if not is_in_force(op, self.token):
            if seen is not None and op.kind == OpKind.DISCARD:
                self._note_discard(seen, op)
            return False
        if seen is None or is_early(op, seen):
            self.early_ops.setdefault(op.transaction_id, []).append((position, op))
        else:
            self._take(seen, position, op)
        return True

    def _take(self, seen: ReadHalf, position: Position, op: Op) -> None:
        """Fold an op into the half that it is about."""
        self._note_op(seen, position)
        pending = seen.pending
        if op.kind in DECIDING_KINDS:
            if pending is not None and needs_order(pending, op):
                self.schedule(pending, AT_ONCE_MS)  # looking back folds its whole journal in log order
            elif pending is not None:
                self._end(pending, op, position)
            elif seen.closed_by != OpKind.DISCARD:
                self._report_conflict(seen.closed_by, op)
            elif op.kind == OpKind.COMMITTED:
                self._commit_parked(seen, position)
            elif op.kind == OpKind.ROLLBACK and 0 <= seen.final_at <= position:
                self._report_conflict(OpKind.COMMIT, op)
            else:
                seen.closed_by = outcome_of(op.kind)
                self._end_held(seen)
                self.ended_parked.append((op.transaction_id, seen.generation))
        elif pending is not None and pending.extras.look_back is None:
            self._fold(pending, op, position)
        elif op.kind == OpKind.DISCARD:
            self._note_discard(seen, op)

    def lose_ops(self) -> None:
        """Note that retention has removed ops that were not read: what is known of a copy is what it holds.

        Its journal is read again from the place that it names, and under the claim that it names.
        """
        self._lacks_ops = True
        for pending in self.pending.values():
            pending.note(look_back=pending.extras.copied_from)

    def look_back(self, pending: Pending, op: Op, position: Position, token: bytes) -> None:
        """Fold an op from where a copy's journal begins, in log order, up to where this owner has read.

        Args:
            position: Its position.
            token: The claim in force there.
        """
        if not is_in_force(op, token):
            return
        if not pending.is_closed:
            self._fold(pending, op, position, token)
        elif op.kind in DECIDING_KINDS and (seen := self._known(pending.transaction_id)) is not None:
            self._take(seen, position, op)

    def _note_op(self, seen: ReadHalf, position: Position) -> None:
        """Let no checkpoint pass this op from here on, unless one has already: of a copy, or read again."""
        if position >= self._op_bound and (seen.first_op is None or position < seen.first_op):
            seen.first_op = position

    def _fold(self, pending: Pending, op: Op, position: int, token: bytes | None = None) -> None:
        kind = op.kind
        if kind in DECIDING_KINDS:
            self._end(pending, op, position)
        elif kind == OpKind.DISCARD:
            if pending.is_closed_by(op, position):
                pending.generation = op.generation
                self.close(pending, kind)
            elif op.generation >= pending.generation:
                self.note_entry(pending.transaction_id, op.generation)
        elif kind == OpKind.CHECKED:
            if op.generation == pending.generation:
                pending.count = max(pending.count, op.count)
                pending.note(checked_at_ms=op.at_ms)
        elif kind == OpKind.DECIDED:
            if not pending.is_journaled:
                pending.note(forced=op.forced)
                self._journal(pending, op.decision)
        elif kind == OpKind.NUDGE:
            pending.note(checked_at_ms=0)
            self.schedule(pending, min(pending.due_ms, pending.immune_until_ms))
        elif kind == OpKind.FORCE and op.generation == pending.generation and not pending.is_committed:
            if not op.token:
                pending.note(force=op, force_at=(position, self._claims.at(position) if token is None else token))
            elif pending.extras.force_at is None or not is_reply_to(op, pending.extras.force_at[0]):
                return
            else:
                pending.note(force=None, force_at=None)
            self.schedule(pending, min(pending.due_ms, pending.immune_until_ms))

    def _journal(self, pending: Pending, decision: int) -> None:
        pending.decision, pending.is_journaled = OpKind.COMMIT if pending.is_committed else decision, True
        self.schedule(pending, AT_ONCE_MS)

    def _report_conflict(self, first: int, op: Op) -> None:
        if first in FINAL_KINDS and first != outcome_of(op.kind):
            self.conflicts.append((first, op))

    def close(self, pending: Pending, kind: int) -> None:
        """Close a half: its final op or DISCARD was read back, or the store says that it exists."""
        pending.is_closed = True
        seen = self._newest.get(pending.transaction_id)
        if seen is not None and seen.pending is pending:
            seen.closed_by, seen.pending, seen.generation = outcome_of(kind), None, pending.generation
            seen.final_at = pending.extras.final_at
            self.pending_count -= 1
            if self.order:
                self._leave(seen, pending)
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

    def _note_discard(self, seen: ReadHalf, op: Op) -> None:
        """A DISCARD that closes nothing still shows that there is a parked record."""
        if seen.closed_by in FINAL_KINDS:
            self._report_entry(op.transaction_id, op.generation)
        elif seen.pending is not None and op.generation >= seen.generation:
            self.note_entry(op.transaction_id, op.generation)

    def _commit(self, pending: Pending, position: int, at_ms: float) -> None:
        """Note that a half is decided COMMIT by the COMMITTED at *position*, so that its owner publishes it (R17)."""
        if not pending.is_committed or position < pending.extras.final_at:
            pending.commit(position, at_ms)
            self.schedule(pending, AT_ONCE_MS if self._has_turn(pending) else NEVER_MS)

    def _end(self, pending: Pending, op: Op, position: int) -> None:
        """Close a half with its final op; an earlier generation was parked, and its entry may still be open.

        The first of these ops in log order holds. When a copy's journal is read again, earlier ones come later.
        """
        if op.kind == OpKind.COMMITTED:
            self._commit(pending, position, self.op_ms)
            return
        if op.kind == OpKind.ROLLBACK and 0 <= pending.extras.final_at <= position:
            self._report_conflict(OpKind.COMMIT, op)
            return
        entry = entry_left(op, pending.generation)
        if entry >= 0:
            self.note_entry(pending.transaction_id, entry)
        self.close(pending, op.kind)

    def _report_entry(self, identity: bytes, generation: int) -> None:
        if generation >= 0:
            self.ended_parked.append((identity, generation))

    # -- orphans -------------------------------------------------------------------------------------------------

    def drop_orphans(self, op_read: int, kept: Container[bytes] = ()) -> int:
        """Forget ops up to *op_read* that still wait for their half, but for ids that are *kept*.

        To be called once every half was read that was stored when the op log was read up to there: a half is stored
        before each of its ops, so these have none here. Returns the number of ids whose half is missing. Ops before the
        owner's claim count only without a checkpoint: it may have passed their halves.
        """
        strange, live_from = 0, self._live_from
        for identity, ops in list(self.early_ops.items()):
            if ops[0][0] > op_read or identity in kept:
                continue
            is_live = live_from is not None and any(live_from < position <= op_read for position, _ in ops)
            strange += is_live or not self._begins_at_half
            # An end that comes now, of a half that no checkpoint names any more: it was parked, if it was not finished.
            for position, op in ops:
                if live_from is not None and live_from < position <= op_read and op.kind in ENDS_OF_UNKNOWN:
                    self._report_entry(identity, op.generation)
            if (stray := committed_in(ops)) is not None:
                self.strays.append((identity, *stray))
            self.early_ops[identity] = [each for each in ops if each[0] > op_read]
            if not self.early_ops[identity]:
                del self.early_ops[identity]
        return strange

    def waiting_from(self, identity: bytes) -> tuple[int, bytes] | None:
        """Return the position of the first op that waits for a half of *identity*, and the claim in force there."""
        ops = self.early_ops.get(identity)
        return (ops[0][0], self._claims.at(ops[0][0])) if ops else None

    def pass_ops(self, position: int | None) -> bytes:
        """Let a checkpoint pass the ops before *position*; returns the claim in force there."""
        if position is not None:
            self._op_bound = position
            self._claims.pass_before(position)
        return self._claims.first
