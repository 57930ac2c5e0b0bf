"""The circuit breaker of a producer in mode `auto`: when to try the broker, and when to go straight to the table."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock

OPEN_FIRST_S: Final = 1.0
OPEN_MAX_S: Final = 10.0
FAILURES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the circuit: whether transactions go to the table from now on."""

    is_open: bool


class Breaker:
    """Opens after some failures in a row; then lets one transaction at a time probe the broker. Thread safe.

    Args:
        failures_max: Failures in a row that open it.
        open_s: Seconds without a try after it has opened; doubles with every probe that fails.
        probe_s: Longest time of a probe; one that has not ended by then counts as gone.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        probe_s: float,
        failures_max: int = FAILURES_MAX,
        open_s: float = OPEN_FIRST_S,
        open_max_s: float = OPEN_MAX_S,
    ) -> None:
        self._clock = clock
        self._probe_s = probe_s
        self._failures_max = failures_max
        self._open_first_s = self._open_s = open_s
        self._open_max_s = open_max_s
        self._failures = 0
        self._closed_until_s = 0.0  # while open: nobody tries before this reading
        self._is_open = False
        self._is_probing = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether transactions go to the table without asking the broker, but for a probe."""
        return self._is_open

    def may_try(self) -> bool:
        """Return whether this transaction may try the broker; while open, one at a time does."""
        if not self._is_open:
            return True
        with self._lock:
            now_s = self._clock.elapsed_s()
            if now_s < self._closed_until_s:
                return False
            self._closed_until_s = now_s + self._probe_s
            self._is_probing = True
            return True

    def succeeded(self) -> Switch | None:
        """Note that the broker answered; returns the switch back to it, if this is one."""
        if not self._failures and not self._is_open:
            return None
        with self._lock:
            was_open, self._is_open, self._is_probing = self._is_open, False, False
            self._failures, self._open_s = 0, self._open_first_s
        return Switch(is_open=False) if was_open else None

    def failed(self) -> Switch | None:
        """Note that it did not; returns the switch to the table, if this is one."""
        with self._lock:
            self._failures += 1
            now_s = self._clock.elapsed_s()
            if self._is_open:
                if self._is_probing:  # and none of those that were under way when it opened
                    self._is_probing = False
                    self._open_s = min(self._open_s * 2, self._open_max_s)
                    self._closed_until_s = now_s + self._open_s
                return None
            if self._failures < self._failures_max:
                return None
            self._is_open = True
            self._closed_until_s = now_s + self._open_s
        return Switch(is_open=True)
