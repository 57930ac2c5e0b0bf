"""A clock for tests that runs, and that a test can move; `txcore.testing` has the one that only the test moves."""

from __future__ import annotations

import time

from txcore.testing.clock import ManualClock


class RunningClock(ManualClock):
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
