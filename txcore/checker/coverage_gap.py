"""Gaps in coverage: retention has eaten ops that no checkpoint covers, so the end of a half may be lost (R12)."""

from __future__ import annotations

import math

from txcore.checker.decide import Pending
from txcore.checker.tenure import Tenure
from txcore.records import Half, ParkCode


class CoverageGap:
    """What one owner knows of a gap in the op log that it reads."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._before_ms: float | None = None
        self._is_open = False
        self._found_s = 0.0
        self._kept_from = math.inf

    def begin(self, kept_from: int | None) -> None:
        """Note that the op log begins at *kept_from*, later than it was to be read from; None where it is empty."""
        self._is_open, self._found_s = True, self._tenure.context.clock.elapsed_s()
        self._kept_from = math.inf if kept_from is None else kept_from

    def end(self, appended_ms: int | None) -> None:
        """Note when the first record with ops was stored; only that of the first one after a gap counts."""
        if self._is_open:
            self._is_open = False
            self._before_ms = float(appended_ms or 0)

    def mark(self, pending: Pending) -> None:
        """Have a half parked whose ops retention may have eaten: its end may be among the lost ones.

        A fenced half needs no mark: its fence knows how it ended. Nor does a copy that holds all that was eaten of its
        journal, nor a half that is younger than the retention of ops: only older ops were eaten.
        """
        if pending.extras.park is None and self.may_hide_ops_of(pending):
            reason = "the op log begins after this half was born, and no checkpoint covers it"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))

    @staticmethod
    def mark_copy(pending: Pending, half: Half) -> None:
        """Have a copy parked that names no place of its journal: its writer had found such a gap."""
        is_decided = half.decided or pending.is_committed or pending.terms.fenced
        if half.is_carried and half.folded_to < 0 and not is_decided:
            pending.note(park=(ParkCode.COVERAGE_GAP, "the op log had lost its beginning when this copy was made"))

    def holds_checkpoint(self) -> bool:
        """Return whether a checkpoint would hide the gap from the next owner."""
        if self._is_open or self._before_ms is None:
            return self._is_open
        tenure = self._tenure
        return tenure.is_replaying or any(self.may_hide_ops_of(pending) for pending in tenure.state.pending.values())

    def may_hide_ops_of(self, pending: Pending) -> bool:
        """Return whether the end of a half that has no fence may be among the lost ops."""
        if self._before_ms is None or pending.terms.fenced:
            return False
        # A COMMITTED after the gap need not be the first final op.
        if pending.decision and pending.extras.final_at < self._kept_from:
            return False
        begins = pending.extras.copied_from
        if pending.generation if begins is None else begins[0] >= self._kept_from:
            return False  # an operator resumed what was parked, or a copy holds what is gone
        tenure = self._tenure
        if not (pending.was_replayed and tenure.has_server_time):
            # Wall clocks of different machines cannot be compared, so every replayed half counts.
            return pending.was_replayed
        capabilities = tenure.context.backend.capabilities
        kept_s = capabilities.op_retention_s
        # Counted from the discovery of the gap: this owner has read all later records.
        found_ms = tenure.now_ms() + (self._found_s - tenure.context.clock.elapsed_s()) * 1000
        kept_since_ms = math.inf if kept_s is None else found_ms - kept_s * 1000
        lost_before_ms = min(self._before_ms, kept_since_ms) + capabilities.clock_skew_max_s * 1000
        return min(pending.start_ms, pending.copied_ms) < lost_before_ms
