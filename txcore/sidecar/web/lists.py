"""The pending and parked transactions of a group, read from its logs; one read at a time, kept for a moment.

Ten open pages, or one that is reloaded, cost the broker no more than one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from txcore.clock import Clock
from txcore.history.journey import Journey
from txcore.history.log_survey import OwnerSeen, Survey
from txcore.operator import timeline, to_json
from txcore.operator.operator import Operator
from txcore.operator.selection import ALL, Filter, oldest_first
from txcore.port import Backend
from txcore.records import OpKind

KEPT_S: Final = 2.0
KEPT_MAX: Final = 32
"""Most lists that are kept, of all groups and filters."""
ROWS_MAX: Final = 1_000
HISTORY_MAX: Final = 20
BY: Final = "console"


@dataclass(frozen=True, slots=True)
class Listing:
    """The rows that were found, oldest first; at most `ROWS_MAX` of `count`.

    Attributes:
        owners: The checker that wrote last into each partition's log, as far as it was read.
    """

    count: int = 0
    rows: Sequence[dict[str, Any]] = ()
    owners: Mapping[int, OwnerSeen] = field(default_factory=dict)
    partition_count: int = 0


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock
    read_at_s: float = -1.0
    backend: Backend | None = None
    listing: Listing = field(default_factory=Listing)


class Lists:
    """Reads the lists and keeps them for a moment. Thread safe; calls block while they read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str, Filter], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def pending(self, backend: Backend, group: str, chosen: Filter = ALL) -> Listing:
        """Return the *chosen* undecided halves of all partitions, oldest first. Raises: as `Operator.pending`."""
        return self._read("pending", backend, group, chosen, self._pending)

    def parked(self, backend: Backend, group: str, chosen: Filter = ALL) -> Listing:
        """Return the *chosen* parked halves, oldest first. Raises: as `Operator.parked`."""
        return self._read("parked", backend, group, chosen, self._parked)

    def forget(self, group: str) -> None:
        """Read the lists of *group* again when they are asked for next."""
        with self._lock:
            for key in [key for key in self._kept if key[1] == group]:
                del self._kept[key]

    def _read(
        self, kind: str, backend: Backend, group: str, chosen: Filter, read: Callable[[Operator, Filter], Listing]
    ) -> Listing:
        with self._lock:
            kept = self._kept.setdefault((kind, group, chosen), _Kept(threading.Lock()))
            self._kept.move_to_end((kind, group, chosen))
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        with kept.lock:
            is_fresh = 0 <= self._clock.elapsed_s() - kept.read_at_s < KEPT_S
            if not is_fresh or kept.backend is not backend:
                kept.listing = read(Operator(backend, group, by=BY, clock=self._clock), chosen)
                kept.backend, kept.read_at_s = backend, self._clock.elapsed_s()
            return kept.listing

    def _pending(self, operator: Operator, chosen: Filter) -> Listing:
        with closing(operator.look()) as survey:
            found = [each for each in survey.journeys() if each.is_pending]
            return self._listing(survey, found, chosen, to_json.pending)

    def _parked(self, operator: Operator, chosen: Filter) -> Listing:
        with closing(operator.look()) as survey:
            entries = survey.open_entries()
        return self._listing(survey, operator.still_parked(entries), chosen, to_json.parked)

    def _listing(
        self,
        survey: Survey,
        all_found: Sequence[Journey],
        chosen: Filter,
        row_of: Callable[[Journey, int], dict[str, Any]],
    ) -> Listing:
        now_ms = self._clock.wall_ms()
        found = [each for each in all_found if chosen.accepts(each, now_ms)]
        rows = [row_of(each, now_ms) | _more(each) for each in oldest_first(found)[:ROWS_MAX]]
        return Listing(len(found), rows, dict(survey.owners), survey.partition_count)


def _more(journey: Journey) -> dict[str, Any]:
    """Return the checks and requests so far, newest last; the page computes the age when it shows the row."""
    half, ops = journey.any_half, [op for _, op in journey.ops]
    steps = [
        {"at_ms": op.at_ms, "what": (to_json.kind_name(op.kind) or "").lower(), "text": timeline.op_text(op)}
        for op in ops
        if op.kind in {OpKind.CHECKED, OpKind.DECIDED, OpKind.FORCE, OpKind.NUDGE}
    ]
    return {
        "born_ms": half.born_ms if half is not None else journey.born_ms or None,
        "parked_ms": journey.parked[-1].at_ms if journey.parked else None,
        "check_times": journey.parked[-1].count if journey.is_parked and journey.parked else journey.count,
        "history": steps[-HISTORY_MAX:],
    }
