"""Clocks for tests: one that only `advance` moves, and one that also runs."""

from __future__ import annotations

import time
from typing import Final

EPOCH_MS: Final = 1_700_000_000_000


class HandClock:
    """A clock that only `advance` moves."""

    def __init__(self, boot: str = "boot-1") -> None:
        self.now_s = 1_000.0
        self.boot = boot
        self.wall_offset_ms = 0

    def wall_ms(self) -> int:
        """Return the wall clock time in milliseconds, which begins at `EPOCH_MS`."""
        return EPOCH_MS + round(self.now_s * 1000) + self.wall_offset_ms

    def elapsed_s(self) -> float:
        """Return the time of this clock in seconds."""
        return self.now_s

    def boot_id(self) -> str:
        """Return the boot id that the test set."""
        return self.boot

    def advance(self, seconds: float) -> None:
        """Move the clock forward by *seconds*."""
        self.now_s += seconds


class RunningClock(HandClock):
    """A clock that moves with real time, by a little at each reading, and by `advance`.

    It runs in real time because other threads do: a clock that only readings move reaches any deadline before a busy
    machine lets the listener's thread run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Return the time of this clock in seconds, after moving it by 0.2 ms and the real time since the last call."""
        before_s, self._read_s = self._read_s, time.monotonic()
        self.advance(0.0002 + self._read_s - before_s)
        return self.now_s
