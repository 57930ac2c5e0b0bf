"""The undecided halves by the time at which each is looked at next."""

from __future__ import annotations

from typing import Final

from txcore.checker.decide import NEVER_MS, Pending
from txcore.checker.due_queue import DueQueue
from txcore.checker.read_halves import ReadHalves

STALE_MAX: Final = 10_000
"""Most times kept of halves that are no longer due, beyond as many as there are undecided halves."""


class DueHalves(ReadHalves):
    """The half records that were read, and when each undecided one is due."""

    def __init__(self) -> None:
        super().__init__()
        self._due = DueQueue()

    def schedule(self, pending: Pending, due_ms: float) -> None:
        """Set when *pending* is looked at next."""
        pending.due_ms = due_ms
        if due_ms == NEVER_MS:
            return
        self._due.push(due_ms, pending.transaction_id)
        if len(self._due) > STALE_MAX + 2 * self.pending_count:
            self._due.keep(lambda due_ms, identity: self._waiting(due_ms, identity) is not None)

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
        """Remove and return at most *count_max* halves due at *now_ms*, earliest first."""
        due: dict[bytes, Pending] = {}  # It may be in the queue twice for one time (a NUDGE): it is taken once.
        while len(due) < count_max and (first := self._due.first()) is not None and first[0] <= now_ms:
            self._due.pop()
            if (pending := self._waiting(*first)) is not None:
                due[pending.transaction_id] = pending
        return list(due.values())
