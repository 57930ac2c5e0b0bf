"""Time and randomness, injected everywhere; the only module that asks the operating system for either."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Final, Protocol

SHORTEST_SHARE: Final = 0.01
"""Shortest wait, as a share of the period; `until_beat` skips a multiple that is nearer."""


class Clock(Protocol):
    """The clock readings that the protocol needs."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch; may jump. Used for identity and display only."""

    def elapsed_s(self) -> float:
        """Return seconds on a clock that never goes back and runs through suspend."""

    def boot_id(self) -> str:
        """Return a name of this clock's origin; readings compare between processes only where it is equal."""


class SystemClock:
    """The machine's clocks: CLOCK_REALTIME and CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def elapsed_s(self) -> float:
        """Return seconds since boot, suspend included."""
        return time.clock_gettime(_BOOTTIME)

    def boot_id(self) -> str:
        """Return the kernel's boot id, or "" where there is none (then readings never compare)."""
        return self._boot_id


class Randomness(Protocol):
    """The only method of `random.Random` that ids, tokens and jitter need."""

    def getrandbits(self, k: int, /) -> int:
        """Return *k* random bits."""


class SystemRandomness:
    """The operating system's randomness, fetched for many draws at once; thread safe, and fresh in a forked child."""

    def getrandbits(self, k: int, /) -> int:
        """Return *k* random bits, at most 16,384."""
        missing = k - _WORD_BITS
        try:
            bits = _words.pop()  # atomic: no word is ever handed out twice
            while missing > 0:
                bits = bits << _WORD_BITS | _words.pop()
                missing -= _WORD_BITS
        except IndexError:
            _words.extend(struct.unpack(_WORDS_FORMAT, os.urandom(struct.calcsize(_WORDS_FORMAT))))
            return self.getrandbits(k)
        return bits >> -missing


def system_randomness() -> Randomness:
    """Return the operating system's source of randomness."""
    return SystemRandomness()


_WORD_BITS: Final = 64
_WORDS_FORMAT: Final = "256Q"
_words: Final[list[int]] = []
os.register_at_fork(after_in_child=_words.clear)


_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def until_beat(clock: Clock, period_s: float) -> float:
    """Return the seconds until the next multiple of *period_s*: idle threads then wake together, which costs far less.

    A multiple that is too near is skipped: a pause too short to move the clock would never end.
    """
    left_s = period_s - clock.elapsed_s() % period_s
    return left_s if left_s > period_s * SHORTEST_SHARE else left_s + period_s
