"""Immunity: its length, and its beginning for each half that is read. `decide` checks no half before it has ended.

A checker may lengthen an immunity, never shorten it (R6). It begins when the half was stored, by the broker's time.
Where the broker gives none, it begins when a checker first saw the half. Copies and the notes of checkpoints keep that
beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from txcore.checker.checkpoint import NoteEntry, copy_age_of
from txcore.checker.context import CheckContext
from txcore.checker.decide import Pending, Terms, terms_of
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.fence import NO_DATABASE
from txcore.records import Half, LogRecord


def terms_for(context: CheckContext, half: Half) -> Terms:
    """Return the terms of *half*: its own, or the checker's where it has none; its immunity may be lengthened here."""
    policy = context.policy
    immunity_min_ms = 0.0 if half.generation else context.limits.immunity_min_s * 1000  # A resumed half has had it.
    interval_ms, check_max = half.interval_ms or policy.interval_s * 1000, half.check_max or policy.check_max
    database = half.database or (NO_DATABASE if half.may_lack_row else b"")
    immunity_ms = max(half.immunity_ms, immunity_min_ms)
    return terms_of(immunity_ms, interval_ms, check_max, half.fence_decides, database, half.is_by_owner)


class Beginnings:
    """When the immunity of each half began that one owner reads, in milliseconds on its timeline."""

    def __init__(self, tenure: Tenure, noted: Sequence[NoteEntry]) -> None:
        self._tenure = tenure
        self._noted = noted
        self._ages_ms = {entry.transaction_id: entry.age_ms for entry in noted}
        self._began_ms = tenure.now_ms()

    def of(self, half: Half, record: LogRecord) -> tuple[float, float]:
        """Return when immunity began, and when this copy of the half was stored."""
        now_ms = self._tenure.now_ms()
        if self._tenure.has_server_time:
            copied_ms = float(record.appended_ms or now_ms)
            return self._by_broker(half, copied_ms, now_ms), copied_ms
        start_ms = now_ms - max(half.age_ms, self._ages_ms.get(half.transaction_id, 0))
        copied_ms, copy_age_ms = start_ms + half.age_ms, copy_age_of(self._noted, record.position)
        return start_ms, copied_ms if copy_age_ms is None else min(copied_ms, self._began_ms - copy_age_ms)

    def _by_broker(self, half: Half, copied_ms: float, now_ms: float) -> float:
        """Return when immunity began, where both logs carry the broker's time, though perhaps of different nodes.

        A half that the claimed owner reads for the first time was stored before now, whatever any clock says. Only for
        halves that an owner finds when it begins, and for copies, the append time counts, less the allowance for clocks
        that differ. A fenced half needs no such allowance: checked too early, it is at worst delivered twice.
        """
        skew_ms = 0.0 if half.fence_decides else self._tenure.context.backend.capabilities.clock_skew_max_s * 1000
        first_ms = (float(half.first_appended_ms) or copied_ms) + skew_ms
        if not self._tenure.is_claimed:
            return first_ms
        return now_ms if skew_ms and not half.first_appended_ms else min(first_ms, now_ms)


def begin_by(state: PartitionState, start_ms: float) -> None:
    """Let no immunity have begun later than *start_ms*, a time at which all halves known were stored."""
    for pending in state.pending.values():
        if pending.start_ms > start_ms:
            due_ms = min(pending.due_ms, start_ms + pending.terms.immunity_ms)
            pending.begin_by(start_ms)
            state.schedule(pending, due_ms)


def kept_by_copy(tenure: Tenure, half: Half, pending: Pending) -> dict[str, int]:
    """Return the fields of a copy of *half* from which the next owner knows when immunity began."""
    started_ms, age_ms = tenure.broker_ms(pending.start_ms), tenure.now_ms() - pending.start_ms
    first_ms = max(round(started_ms), 0) if tenure.has_server_time else half.first_appended_ms
    return {"first_appended_ms": first_ms, "age_ms": max(round(age_ms), 1)}
