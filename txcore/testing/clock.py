"""A clock for tests, which only the test moves."""

from __future__ import annotations

from typing import Final

EPOCH_MS: Final = 1_700_000_000_000


class ManualClock:
    """A clock that only `advance` moves; implements `txcore.clock.Clock`.

    Attributes:
        now_s: The reading of `elapsed_s`.
        boot: The name of the clock's origin; another one is that of a restarted machine.
        wall_offset_ms: Milliseconds by which the wall clock is set ahead, or back.
    """

    def __init__(self, boot: str = "boot-1") -> None:
        self.now_s = 1_000.0
        self.boot = boot
        self.wall_offset_ms = 0

    def wall_ms(self) -> int:
        """Return the wall clock's time in milliseconds, which begins at `EPOCH_MS`."""
        return EPOCH_MS + round(self.now_s * 1000) + self.wall_offset_ms

    def elapsed_s(self) -> float:
        """Return the time of this clock in seconds."""
        return self.now_s

    def boot_id(self) -> str:
        """Return the boot id that the test set."""
        return self.boot

    def advance(self, seconds: float) -> None:
        """Move the clock forward by *seconds*. Nothing sleeps."""
        self.now_s += seconds

    def advance_to(self, now_s: float) -> None:
        """Move the clock forward to the reading *now_s*; a reading in the past changes nothing."""
        self.now_s = max(self.now_s, now_s)
