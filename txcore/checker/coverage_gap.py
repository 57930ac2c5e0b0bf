"""Gaps in coverage: retention has eaten ops that no checkpoint covers, so the end of a half may be lost (R12)."""

from __future__ import annotations

import math

from txcore.checker.decide import Pending
from txcore.checker.tenure import Tenure
from txcore.records import ParkCode


class CoverageGap:
    """What one owner knows of a gap in the op log that it reads."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._before_ms: float | None = None
        self._is_open = False
        self._found_s = 0.0

    def begin(self) -> None:
        """Note that the op log begins later than it was to be read from."""
        self._is_open, self._found_s = True, self._tenure.context.clock.elapsed_s()

    def end(self, appended_ms: int | None) -> None:
        """Note when the first record with ops was stored; only that of the first one after a gap counts."""
        if self._is_open:
            self._is_open = False
            self._before_ms = float(appended_ms or 0)

    def mark(self, pending: Pending) -> None:
        """Have a half parked whose ops retention may have eaten: its end may be among the lost ones.

        A fenced half needs no mark: its fence knows how it ended. Nor does a half that is younger than the retention of
        ops: only older ops were eaten.
        """
        if pending.extras.park is None and self._may_lack_ops(pending):
            reason = "the op log begins after this half was born, and no checkpoint covers it"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))

    def holds_checkpoint(self) -> bool:
        """Return whether a checkpoint would hide the gap from the next owner."""
        if self._is_open or self._before_ms is None:
            return self._is_open
        tenure = self._tenure
        return tenure.is_replaying or any(self._may_lack_ops(pending) for pending in tenure.state.pending.values())

    def _may_lack_ops(self, pending: Pending) -> bool:
        if self._before_ms is None or pending.terms.fenced or pending.decision or pending.generation:
            return False
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
