"""The last hour of each group in figures: sampled every few seconds, kept in memory, lost with the process.

Prometheus keeps more; this is for an operator with only the console at hand.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txcore.clock import Clock
from txcore.sidecar.figures import ANSWERS, LATENCY_BOUNDS_S, NO_ANSWER, VISIBLE_BOUNDS_S

if TYPE_CHECKING:
    from txcore.sidecar.group import GroupRunner
    from txcore.sidecar.process import Sidecar

LOG: Final = logging.getLogger("txcore.sidecar.web")
SAMPLE_S: Final = 5.0
KEPT_S: Final = 3600.0
SAMPLES_MAX: Final = round(KEPT_S / SAMPLE_S) + 1
STOP_S: Final = 2.0
COUNTED: Final = ("halves", "COMMIT", "ROLLBACK", "parked", *(f"checks {each}" for each in (*ANSWERS, NO_ANSWER)))


@dataclass(frozen=True, slots=True)
class Sample:
    """One group at one moment: its counters and histograms."""

    elapsed_s: float
    wall_ms: int
    pending: int
    oldest_s: float
    counts: tuple[int, ...]
    asked: tuple[int, ...]
    visible: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """The changes between two samples: rates per second, and quantiles where anything was counted."""

    wall_ms: int
    pending: int
    oldest_s: float
    rates: Mapping[str, float]
    asked_s: Mapping[float, float | None]
    visible_s: Mapping[float, float | None]


QUANTILES: Final = (0.5, 0.95)


class History:
    """Takes and keeps samples. `start` and `stop` belong to one thread; everything else to any."""

    def __init__(self, sidecar: Sidecar, clock: Clock) -> None:
        self._sidecar = sidecar
        self._clock = clock
        self._kept: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txcore-history", daemon=True)

    def start(self) -> None:
        """Begin to sample, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def sample(self) -> None:
        """Take a sample of every group; forget removed groups."""
        runners = dict(self._sidecar.runners)
        taken = {name: _sample(runner, self._clock) for name, runner in runners.items()}
        with self._lock:
            for name in self._kept.keys() - runners.keys():
                del self._kept[name]
            for name, sample in taken.items():
                self._kept.setdefault(name, deque(maxlen=SAMPLES_MAX)).append(sample)

    def steps(self, group: str, range_s: float, count: int) -> Sequence[Step | None]:
        """Return the last *range_s* seconds in *count* equal steps, oldest first; None where nothing was sampled."""
        with self._lock:
            samples = list(self._kept.get(group, ()))
        times = [each.elapsed_s for each in samples]
        end_s, width_s = self._clock.elapsed_s(), range_s / count
        found: list[Step | None] = []
        for number in range(count):
            # From the last sample before the step to the last one inside it: no count is lost between two steps.
            first = bisect.bisect_right(times, end_s - range_s + number * width_s) - 1
            last = bisect.bisect_right(times, end_s - range_s + (number + 1) * width_s) - 1
            found.append(_step(samples[max(first, 0)], samples[last]) if last > max(first, 0) else None)
        return found

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.sample()
            except Exception:  # an error of the charts must not stop the endpoint
                LOG.exception("history.failed")
            self._stop.wait(SAMPLE_S)


def _sample(runner: GroupRunner, clock: Clock) -> Sample:
    figures, partitions = runner.figures, runner.status().checker.partitions
    checks = (figures.answers[each] for each in (*ANSWERS, NO_ANSWER))
    parked = sum(list(figures.parked.values()))
    counts = (runner.halves_read, figures.ends["COMMIT"], figures.ends["ROLLBACK"], parked, *checks)
    return Sample(
        clock.elapsed_s(),
        clock.wall_ms(),
        sum(each.pending for each in partitions),
        max((each.oldest_age_s for each in partitions), default=0.0),
        counts,
        tuple(figures.asked_s.read()[0]),
        tuple(figures.visible_s.read()[0]),
    )


def _step(before: Sample, after: Sample) -> Step:
    passed_s = max(after.elapsed_s - before.elapsed_s, 1e-9)
    counted = (max(b - a, 0) / passed_s for a, b in zip(before.counts, after.counts, strict=True))
    return Step(
        after.wall_ms,
        after.pending,
        after.oldest_s,
        dict(zip(COUNTED, counted, strict=True)),
        {each: quantile(LATENCY_BOUNDS_S, before.asked, after.asked, each) for each in QUANTILES},
        {each: quantile(VISIBLE_BOUNDS_S, before.visible, after.visible, each) for each in QUANTILES},
    )


def quantile(bounds: Sequence[float], before: Sequence[int], after: Sequence[int], part: float) -> float | None:
    """Return the value below which *part* of the counts in between lies, within the width of a bucket.

    Args:
        before, after: Counts up to each bound, and beyond the last.
    """
    counts = [b - a for a, b in zip(before, after, strict=True)]
    if counts[-1] <= 0:
        return None
    wanted = part * counts[-1]
    index = bisect.bisect_left(counts, wanted)
    if index >= len(bounds):
        return bounds[-1]
    low, below = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0)
    inside = counts[index] - below
    return low + (bounds[index] - low) * ((wanted - below) / inside if inside > 0 else 1.0)
