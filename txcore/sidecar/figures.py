"""The counters of one group: plain numbers, updated by the checker's hooks and by the sources of answers.

`metrics` makes a page for Prometheus of them; without an HTTP endpoint the counters cost almost nothing.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from txcore.clock import Clock
from txcore.hookspecs import Event, hookimpl
from txcore.ids import born_ms, id_text
from txcore.runtime import instrumentation as names

LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
VISIBLE_BOUNDS_S: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 86_400.0)
ALERTS_KEPT: Final = 100
NO_ANSWER: Final = "none"
ANSWERS: Final = ("COMMIT", "ROLLBACK", "UNKNOWN", "PRUNED")
"""Answers that are counted by name; VIA_TABLE, FORCED and the like count as no answer."""
BROKER_EVENTS: Final = frozenset({names.CHECKER_ERROR, names.RELEASE_UNKNOWN})


class Histogram:
    """Counts of values up to each bound. Thread safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one value."""
        index = bisect.bisect_left(self.bounds, value)
        with self._lock:
            self._counts[index] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """Return the cumulative count up to each bound and beyond the last one, and the sum of all values."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        running, cumulated = 0, []
        for count in counts:
            running += count
            cumulated.append(running)
        return cumulated, total


@dataclass(frozen=True, slots=True)
class Alert:
    """One event that may need an operator."""

    at_ms: int
    event: str
    facts: dict[str, str]


class Figures:
    """One group's counters; they survive restarts of its checker. A plugin of `txcore.Checker`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.events: Counter[str] = Counter()
        self.answers: Counter[str] = Counter(dict.fromkeys((*ANSWERS, NO_ANSWER), 0))
        self.ends: Counter[str] = Counter({"COMMIT": 0, "ROLLBACK": 0})
        self.parked: Counter[str] = Counter()
        self.halves = 0
        self.starts_failed = 0
        self.asked_s = Histogram(LATENCY_BOUNDS_S)
        self.visible_s = Histogram(VISIBLE_BOUNDS_S)
        self.callbacks: Counter[str] = Counter()
        self.alerts: deque[Alert] = deque(maxlen=ALERTS_KEPT)

    @property
    def broker_errors(self) -> int:
        """The number of failed or uncertain calls to the broker."""
        return sum(self.events[name] for name in BROKER_EVENTS)

    @hookimpl
    def txcore_on_event(self, event: Event) -> None:
        """Count *event*; called on the checker's own thread."""
        name, fields = event.name, event.fields
        self.events[name] += 1
        if name == names.CHECK_ANSWERED:
            if fields["answer"] in ANSWERS:
                self.answers[fields["answer"]] += 1
        elif name in {names.CHECK_NO_ANSWER, names.CHECK_WRONG_DATABASE}:
            self.answers[NO_ANSWER] += 1
        elif name == names.HALF_FINISHED:
            self._finished(fields["transaction_id"], fields["end"])
        elif name == names.HALF_PARKED:
            self.parked[str(fields["code"])] += 1
        if name in names.ALERTS:
            self.alerts.append(
                Alert(self._clock.wall_ms(), name, {key: text_of(value) for key, value in fields.items()})
            )

    def _finished(self, transaction_id: bytes, end: str) -> None:
        self.ends[end] += 1
        if end == "COMMIT":
            self.visible_s.observe(max(self._clock.wall_ms() - born_ms(transaction_id), 0) / 1000)


def text_of(value: Any) -> str:
    """Return a fact of an event as text: ids in their canonical form."""
    if isinstance(value, bytes):
        return id_text(value) if len(value) == 16 else value.hex()
    return str(value)
