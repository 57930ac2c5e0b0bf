"""The limit on the callers that are under way at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txcore.clock import SystemClock
from txcore.wake import Wake

AGAIN_S: Final = 0.2
"""Seconds after which a waiting caller looks again: the one that was woken for a place may have been interrupted."""
POLL_S: Final = 0.005
"""Seconds between two looks for callers that are still under way, when a producer closes."""


class Places:
    """A number of places; a caller that finds none free waits for one. Thread safe.

    A semaphore, but one that takes no lock where no caller has to wait: threading's costs more than many a step of a
    transaction. A place is an element of a deque, whose `pop` and `append` are atomic.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = deque((None,) * count)
        self._beyond: deque[None] = deque()
        self._waiting: deque[Wake] = deque()  #: those of the waiting callers, the longest wait first

    def take(self, timeout_s: float) -> bool:
        """Take a place, within *timeout_s*; returns whether there was one."""
        return self._was_taken() or self._wait(timeout_s)

    def enter(self) -> Callable[[], None]:
        """Take a place if one is free now, and need none if not; returns the function that ends the call.

        `wait_for_all` waits for such a call in both cases.
        """
        if self._was_taken():
            return self.give_back
        self._beyond.append(None)
        return self._leave

    def wait_for_all(self, timeout_s: float) -> bool:
        """Wait until no caller is under way, within *timeout_s*; returns whether that is so. Takes no place itself."""
        clock, pause = SystemClock(), threading.Event()
        until_s = clock.elapsed_s() + timeout_s
        while len(self._free) < self._count or self._beyond:
            if clock.elapsed_s() > until_s:
                return False
            pause.wait(POLL_S)
        return True

    def give_back(self) -> None:
        """Give one place back, which was taken."""
        self._free.append(None)
        if self._waiting:  # a waiting caller enters itself before it looks for the last time
            with suppress(IndexError):
                self._waiting.popleft().set()

    def _wait(self, timeout_s: float) -> bool:
        clock, wake = SystemClock(), Wake()
        until_s = clock.elapsed_s() + timeout_s
        self._waiting.append(wake)
        try:
            while not self._was_taken():
                left_s = until_s - clock.elapsed_s()
                if left_s <= 0:
                    return False
                if wake.wait(min(left_s, AGAIN_S)):
                    self._waiting.append(wake)
            return True
        finally:
            with suppress(ValueError):
                self._waiting.remove(wake)

    def _leave(self) -> None:
        self._beyond.pop()

    def _was_taken(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True
