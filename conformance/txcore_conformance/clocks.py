"""Clocks for tests: one that stands until it is advanced, and one that also runs."""

from __future__ import annotations

import time
from typing import Final

EPOCH_MS: Final = 1_700_000_000_000


class HandClock:
    """A clock that stands until it is advanced."""

    def __init__(self, boot: str = "boot-1") -> None:
        self.now_s = 1_000.0
        self.boot = boot
        self.wall_offset_ms = 0

    def wall_ms(self) -> int:
        """Return the wall's time in milliseconds, from `EPOCH_MS` on."""
        return EPOCH_MS + round(self.now_s * 1000) + self.wall_offset_ms

    def elapsed_s(self) -> float:
        """Return the seconds of this clock."""
        return self.now_s

    def boot_id(self) -> str:
        """Return the boot that the test names."""
        return self.boot

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds."""
        self.now_s += seconds


class RunningClock(HandClock):
    """A clock that runs as a real one does, a little more whenever it is read, and as far as it is told.

    It runs in real time because other threads do: a clock that only moves by being read reaches any deadline while a
    busy machine has not yet let the listener's thread run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Return the seconds of this clock, 0.2 ms and the real time since the last call later."""
        before_s, self._read_s = self._read_s, time.monotonic()
        self.advance(0.0002 + self._read_s - before_s)
        return self.now_s
