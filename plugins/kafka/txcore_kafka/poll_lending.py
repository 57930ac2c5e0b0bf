"""Which thread polls the client: the poll thread, or a caller that it lends the work to; see docs/polling.md."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from txcore.clock import Clock
from txcore.wake import Wake

LENT_AGAIN_S: Final = 0.2
"""Longest wait of the poll thread, in seconds, for a thread that polled itself and said that it comes again."""
LENT_IDLE_S: Final = 0.005
"""The same wait, in seconds, while nothing is under way: a lone caller's next record wakes no thread."""
SLEEP_S: Final = 0.5
"""Longest sleep of the poll thread, in seconds: the driver's news about connections comes without a wake."""
KEPT_S: Final = 0.5
KEPT_COUNT: Final = 4
"""The poll thread waits so often, each time so many seconds, for a borrower whose time is over."""


class PollLending:
    """The work of polling and its holder. The poll thread is POLLING, ASLEEP, or has LENT the work.

    The thread that polls holds `polling`. Each method names the threads that may call it. An exception of a signal's
    handler may end a borrower between any two steps; the poll thread then takes the work back after some seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self.polling = threading.Lock()
        self.polled_s = 0.0  #: time of the last turn; written by the thread that polls
        self._clock = clock
        self._wake = Wake()
        self._lent_until_s = 0.0  #: 0 while not lent
        self._is_asleep = False
        self._waits_for_borrower = False

    # -- any thread ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Announce work. A poll thread that has lent its work is not woken: the borrower polls."""
        if self._is_asleep:
            self._wake.set()

    def end(self) -> None:
        """Wake the poll thread from any wait."""
        self._lent_until_s = 0.0
        self._wake.set()

    # -- a borrower ---------------------------------------------------------------------------------------------------

    def lend(self, now_s: float, timeout_s: float) -> threading.Lock:
        """Keep the poll thread away for *timeout_s*; return the lock that the borrower acquires within that time."""
        # No longer, because perhaps no thread polls if this one does not get the work.
        self._lent_until_s = now_s + timeout_s + LENT_IDLE_S
        return self.polling

    def given_back(self, now_s: float, *, comes_again: bool, is_busy: Callable[[], bool]) -> None:
        """Let the poll thread continue: after a moment, if the borrower *comes_again* or nothing is under way."""
        if comes_again:
            self._lent_until_s = now_s + LENT_AGAIN_S
        elif not is_busy():
            self._lent_until_s = now_s + LENT_IDLE_S
        else:
            self.end()

    def leave(self) -> None:
        """Poll no more: the poll thread continues at once, if no other thread polls."""
        if self._lent_until_s and not self.polling.locked():
            self._lent_until_s = 0.0
            if self._waits_for_borrower:
                self._wake.set()

    # -- the poll thread ----------------------------------------------------------------------------------------------

    def take(self) -> threading.Lock:
        """Become the thread that polls, and return the lock to release; a lock that a borrower kept is replaced."""
        late_count = 0
        while not self.polling.acquire(timeout=KEPT_S):
            late_count = 0 if self.is_lent() else late_count + 1
            if late_count == KEPT_COUNT:
                self.polling = threading.Lock()
        return self.polling

    def is_lent(self) -> bool:
        """Return whether another thread polls, or comes again to do so.

        Callers that wait for the lock of an interrupted borrower do not count: none of them polls.
        """
        if not self._lent_until_s:
            return False
        now_s = self._clock.elapsed_s()
        return now_s < self._lent_until_s and (not self.polling.locked() or now_s < self.polled_s + KEPT_S)

    def wait_for_borrower(self) -> None:
        """Leave the work to the thread that polls; `leave` and `given_back` end this wait early."""
        self._wake.clear()
        self._waits_for_borrower = True
        left_s = self._lent_until_s - self._clock.elapsed_s()
        if left_s > 0:
            self._wake.wait(left_s)
        self._waits_for_borrower = False

    def sleep(self, may_sleep: Callable[[], bool]) -> None:
        """Wait for `wake`: a thread that hands work over sees that we sleep, or *may_sleep* sees its work."""
        self._wake.clear()
        self._is_asleep = True
        if may_sleep():
            self._wake.wait(SLEEP_S)
        self._is_asleep = False
