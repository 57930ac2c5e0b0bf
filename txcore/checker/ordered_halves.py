"""The halves with an order key: their order, and the parked ones that hold their keys up (R18).

A held half is closed, but its record is kept as that of an undecided one: it holds the checkpoint back, and is carried
forward. So neither a restart nor retention forgets it. It is over when its end is read, or it was resumed.
"""

from __future__ import annotations

from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.due_halves import DueHalves
from txcore.checker.key_order import KeyOrder
from txcore.checker.read_halves import ReadHalf
from txcore.records import OpKind


class OrderedHalves(DueHalves):
    """The half records that were read, when each is due, and the order of those that have order keys.

    Args:
        holds_parked: Whether a parked half holds its order key up; else it is over.
    """

    def __init__(self, *, holds_parked: bool) -> None:
        super().__init__()
        self.order = KeyOrder()
        self._holds_parked = holds_parked

    def _has_turn(self, pending: Pending) -> bool:
        """Return whether a committed half is looked at now: else when all earlier ones of its order key are over.

        One with a journal to be read, or whose ops retention may have removed, does not wait: it may have to be parked.
        """
        extras = pending.extras
        if not extras.order_key or pending.was_replayed or extras.look_back is not None or extras.park is not None:
            return True
        return self.order.is_first(pending.transaction_id)

    def released(self, pending: Pending) -> Pending | None:
        """Note that the targets of a half are published, before its RELEASED was read back.

        Returns the next half of its order key, if that waits for its release.
        """
        return self._pass(pending.transaction_id) if pending.extras.order_key else None

    def lose_held(self, pending: Pending) -> bool:
        """Note that the record of a half is gone, if it is a held one; returns whether it is.

        It holds its key up only as long as this owner lives.
        """
        seen = self._newest.get(pending.transaction_id)
        if seen is None or seen.held is not pending:
            return False
        self._drop_held(seen)
        return True

    def _enqueue(self, pending: Pending, copy: Pending | None = None) -> None:
        """Give a half its place; a *copy* of it may know an earlier one."""
        extras, place = pending.extras, (copy or pending).extras.first_position
        if extras.order_key and place >= 0:
            identity = pending.transaction_id
            pending.note(first_position=self.order.add(identity, extras.order_key, place))
            if copy is not None and pending.is_committed and not pending.is_held and self.order.is_first(identity):
                self.schedule(pending, AT_ONCE_MS)

    def _leave(self, seen: ReadHalf, pending: Pending) -> None:
        """Let a half that was closed hold its key up if it is parked, or else be over."""
        is_held = seen.closed_by == OpKind.DISCARD and self._holds_parked and bool(pending.extras.order_key)
        if is_held and not pending.is_unreadable:
            seen.held = pending.held()
            self.held_count += 1
        else:
            self._pass(pending.transaction_id)

    def _commit_parked(self, seen: ReadHalf, position: int) -> None:
        """Note the first COMMITTED of a parked half; it stays parked."""
        seen.final_at = position if seen.final_at < 0 else min(seen.final_at, position)
        if seen.held is not None:
            seen.held.commit(seen.final_at)

    def _end_held(self, seen: ReadHalf) -> None:
        """Note that the end of a parked half was read."""
        self._drop_held(seen)
        self._pass(seen.transaction_id)

    def _drop_held(self, seen: ReadHalf) -> None:
        """Let the record of a held half be forgotten; the half keeps its place."""
        if seen.held is not None:
            seen.held.is_closed = True
            seen.held = None
            self.held_count -= 1

    def _move_held(self, known: ReadHalf, seen: ReadHalf, copy: Pending) -> None:
        """Let *seen*, the copy of a held half, represent it; the older record may be forgotten."""
        if known.held is None or not copy.is_held or copy.generation < known.generation:
            return
        seen.held, known.held = known.held, None
        seen.generation, seen.final_at = known.generation, known.final_at
        self._newest[seen.transaction_id] = seen
        seen.held.position = seen.position
        seen.held.note(carry_again_ms=0.0, copied_ms=copy.copied_ms)
        self._enqueue(seen.held, copy)

    def _pass(self, identity: bytes) -> Pending | None:
        """Note that a half is over: the next one of its order key is due, and returned, if it waits for its release."""
        first = self.order.end(identity)
        seen = None if first is None else self._newest.get(first)
        pending = None if seen is None else seen.pending
        if pending is None or not pending.is_committed:
            return None
        self.schedule(pending, AT_ONCE_MS)
        return pending
