"""The limit on the callers that are under way at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from txcore.clock import SystemClock

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
        self._waiting_count = 0
        self._is_free = threading.Condition()

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
        if self._waiting_count:  # a waiting thread has raised this count before it looked for the last time
            with self._is_free:
                self._is_free.notify()

    def _wait(self, timeout_s: float) -> bool:
        with self._is_free:
            self._waiting_count += 1
            try:
                return self._is_free.wait_for(self._was_taken, timeout_s)
            finally:
                self._waiting_count -= 1

    def _leave(self) -> None:
        self._beyond.pop()

    def _was_taken(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True
