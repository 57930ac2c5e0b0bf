"""The clock's helpers."""

from __future__ import annotations

import pytest

from txcore.clock import until_beat


def test_whoever_idles_wakes_together(clock):
    """However apart they fell asleep; a longer period wakes with a shorter one that divides it."""
    wakes_s = set()
    for asleep_s in (0.0, 0.01, 0.1, 0.2):
        clock.advance(asleep_s)
        wakes_s.add(round(clock.now_s + until_beat(clock, 0.5), 6))
    assert wakes_s == {1000.5}
    assert clock.now_s + until_beat(clock, 1.0) == pytest.approx(1001.0)
