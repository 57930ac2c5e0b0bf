"""A circuit breaker: after failures in a row it is open, and one caller at a time probes whether the fault is over.

A producer in mode `auto` has one before its broker, the checker process one before each database and callback.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Final

from txcore.clock import Clock, Randomness

JITTER: Final = 0.2
"""Largest share of a pause that is added at random."""
_RANDOM_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the circuit: whether callers are refused from now on."""

    is_open: bool


@dataclass(slots=True, kw_only=True, eq=False)
class CircuitBreaker:
    """Opens after failures in a row; then lets one caller at a time probe. Thread safe.

    Attributes:
        probe_s: Longest time of a probe, in seconds; after it another caller may probe.
        failures_max: Failures in a row that open it.
        pause_first_s: Seconds without a try after it has opened; doubles with every probe that fails.
        pause_max_s: Longest pause, in seconds.
        randomness: Lengthens each pause by up to `JITTER` of it; None for exact pauses.
        is_open: Callers are refused, except for a probe.
        is_probing: A caller finds out now whether the fault is over.
    """

    clock: Clock = field(kw_only=False)
    probe_s: float = math.inf
    failures_max: int = 3
    pause_first_s: float = 1.0
    pause_max_s: float = 10.0
    randomness: Randomness | None = None
    is_open: bool = field(default=False, init=False)
    is_probing: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)
    _refused_until_s: float = field(default=0.0, init=False)
    _pause_s: float = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._pause_s = self.pause_first_s

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next probe is allowed, infinite during a probe without a bound; 0 while it is closed."""
        return max(self._refused_until_s - self.clock.elapsed_s(), 0.0) if self.is_open else 0.0

    def may_try(self) -> bool:
        """Return whether this caller may try; while the circuit is open, one caller at a time may, as its probe."""
        if not self.is_open:
            return True
        with self._lock:
            now_s = self.clock.elapsed_s()
            if now_s < self._refused_until_s:
                return False
            self._refused_until_s = now_s + self.probe_s
            self.is_probing = True
            return True

    def succeeded(self) -> Switch | None:
        """Note a success; returns the switch if this closes it."""
        if not self._failures and not self.is_open:
            return None
        with self._lock:
            was_open, self.is_open, self.is_probing = self.is_open, False, False
            self._failures, self._pause_s = 0, self.pause_first_s
        return Switch(is_open=False) if was_open else None

    def failed(self, retry_after_s: float = 0.0) -> Switch | None:
        """Note a failure; returns the switch if this opens it.

        Args:
            retry_after_s: Shortest pause that the failed service asked for, in seconds.
        """
        with self._lock:
            self._failures += 1
            if self.is_open:
                if self.is_probing:  # a call that began before it opened does not lengthen the pause
                    self.is_probing = False
                    self._pause_s = min(self._pause_s * 2, self.pause_max_s)
                    self._pause(retry_after_s)
                return None
            if self._failures < self.failures_max:
                return None
            self.is_open = True
            self._pause(retry_after_s)
        return Switch(is_open=True)

    def _pause(self, retry_after_s: float) -> None:
        share = 0.0 if self.randomness is None else self.randomness.getrandbits(_RANDOM_BITS) / 2**_RANDOM_BITS
        pause_s = self._pause_s * (1 + JITTER * share)
        self._refused_until_s = self.clock.elapsed_s() + max(pause_s, retry_after_s)
