"""The clock's helpers."""

from __future__ import annotations

import pytest

from txcore.clock import until_beat


def test_idle_threads_wake_together(clock):
    """Threads that begin to wait at different times wake together; a longer period that is a multiple joins them."""
    wakes_s = set()
    for asleep_s in (0.0, 0.01, 0.1, 0.2):
        clock.advance(asleep_s)
        wakes_s.add(round(clock.now_s + until_beat(clock, 0.5), 6))
    assert wakes_s == {1000.5}
    assert clock.now_s + until_beat(clock, 1.0) == pytest.approx(1001.0)


def test_beat_that_is_too_near_is_skipped(clock):
    """A beat that is too near is skipped: its pause would not move the clock, and the thread would spin."""
    for now_s in (8248.64, 0.3, 1000.0, 0.1 * 3):
        clock.now_s = now_s
        for period_s in (0.1, 0.2, 0.25, 1.0):
            assert 0.01 * period_s < until_beat(clock, period_s) <= 1.01 * period_s
