"""A circuit breaker: after failures in a row it is open, and one caller at a time probes whether the fault is over.

A producer in mode `auto` has one before its broker, the checker process one before each database and callback.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 10.0
FAILURES_MAX: Final = 3
JITTER: Final = 0.2
"""Largest share of a pause that is added at random."""
_RANDOM_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the circuit: whether callers are refused from now on."""

    is_open: bool


class CircuitBreaker:
    """Opens after failures in a row; then lets one caller at a time probe. Thread safe.

    Args:
        probe_s: Longest time of a probe, in seconds; after it another caller may probe.
        failures_max: Failures in a row that open it.
        pause_first_s: Seconds without a try after it has opened; doubles with every probe that fails.
        pause_max_s: Longest pause, in seconds.
        randomness: Lengthens each pause by up to `JITTER` of it; None for exact pauses.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        probe_s: float = math.inf,
        failures_max: int = FAILURES_MAX,
        pause_first_s: float = PAUSE_FIRST_S,
        pause_max_s: float = PAUSE_MAX_S,
        randomness: Randomness | None = None,
    ) -> None:
        self._clock = clock
        self._probe_s = probe_s
        self._failures_max = failures_max
        self._pause_first_s = self._pause_s = pause_first_s
        self._pause_max_s = pause_max_s
        self._randomness = randomness
        self._failures = 0
        self._refused_until_s = 0.0
        self._is_open = False
        self._is_probing = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether callers are refused, except for a probe."""
        return self._is_open

    @property
    def is_probing(self) -> bool:
        """Whether a caller finds out now whether the fault is over."""
        return self._is_probing

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next probe is allowed, infinite during a probe without a bound; 0 while it is closed."""
        return max(self._refused_until_s - self._clock.elapsed_s(), 0.0) if self._is_open else 0.0

    def may_try(self) -> bool:
        """Return whether this caller may try; while the circuit is open, one caller at a time may, as its probe."""
        if not self._is_open:
            return True
        with self._lock:
            now_s = self._clock.elapsed_s()
            if now_s < self._refused_until_s:
                return False
            self._refused_until_s = now_s + self._probe_s
            self._is_probing = True
            return True

    def succeeded(self) -> Switch | None:
        """Note a success; returns the switch if this closes it."""
        if not self._failures and not self._is_open:
            return None
        with self._lock:
            was_open, self._is_open, self._is_probing = self._is_open, False, False
            self._failures, self._pause_s = 0, self._pause_first_s
        return Switch(is_open=False) if was_open else None

    def failed(self, retry_after_s: float = 0.0) -> Switch | None:
        """Note a failure; returns the switch if this opens it.

        Args:
            retry_after_s: Shortest pause that the failed service asked for, in seconds.
        """
        with self._lock:
            self._failures += 1
            if self._is_open:
                if self._is_probing:  # a call that began before it opened does not lengthen the pause
                    self._is_probing = False
                    self._pause_s = min(self._pause_s * 2, self._pause_max_s)
                    self._pause(retry_after_s)
                return None
            if self._failures < self._failures_max:
                return None
            self._is_open = True
            self._pause(retry_after_s)
        return Switch(is_open=True)

    def _pause(self, retry_after_s: float) -> None:
        share = 0.0 if self._randomness is None else self._randomness.getrandbits(_RANDOM_BITS) / 2**_RANDOM_BITS
        pause_s = self._pause_s * (1 + JITTER * share)
        self._refused_until_s = self._clock.elapsed_s() + max(pause_s, retry_after_s)
