"""Where blocked callers wait for their outcomes, and in which order they are woken."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

import msgspec

from txcore.records import Outcome

PASSING_MAX: Final = 4
"""So many are awake at a time. With one or two, 64 callers stood idle while one of them woke; eight gained nothing."""


class Seat(msgspec.Struct, eq=False):
    """One blocked caller's place; a bare lock wakes faster than an Event. Made by `Turnstile.sit`.

    Attributes:
        turn: A lock that is held until this caller may go on.
    """

    turnstile: Turnstile
    turn: Any
    outcome: Outcome | None = None
    is_let_through: bool = False
    is_gone: bool = False

    def settle(self, outcome: Outcome) -> None:
        """Take the outcome; from any thread, never blocking."""
        self.turnstile.settle(self, outcome)

    def is_settled(self) -> bool:
        """Return whether the outcome is there, though it may not be this caller's turn yet."""
        return self.outcome is not None

    def leave(self) -> None:
        """See `Turnstile.leave`."""
        self.turnstile.leave(self)


class Turnstile:
    """Wakes a few of those who have their outcome; each lets another one through when it is about to wait again.

    Outcomes come in bursts. Were all whom they concern woken at once, most would only wait again, for Python's lock,
    and each time be woken anew. Whoever leaves without having waited for its turn is not waited for. Thread safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled: deque[Seat] = deque()
        self._passing = 0
        self._waiting: list[None] = []  #: as long as there are callers without an outcome; counted without the lock

    def sit(self) -> Seat:
        """Return a place to wait in."""
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(None)
        return Seat(self, turn)

    def is_alone(self) -> bool:
        """Return whether at most one caller waits for an outcome, so that it holds nobody up."""
        return len(self._waiting) <= 1

    def settle(self, seat: Seat, outcome: Outcome) -> None:
        """Give *seat* its outcome, and wake its caller or let it wait for its turn."""
        with self._lock:
            if seat.is_gone:
                return
            seat.outcome = outcome
            self._waiting.pop()
            if self._passing >= PASSING_MAX:
                self._settled.append(seat)
                return
            self._passing += 1
            seat.is_let_through = True
        seat.turn.release()

    def leave(self, seat: Seat) -> None:
        """Let the next one through: the caller in *seat* goes on to something else, whether it was its turn or not."""
        with self._lock:
            if seat.is_gone:
                return
            seat.is_gone = True
            if not seat.is_let_through:
                if seat.outcome is None:
                    self._waiting.pop()
                else:
                    self._settled.remove(seat)
                return
            if not self._settled:
                self._passing -= 1
                return
            following = self._settled.popleft()
            following.is_let_through = True
        following.turn.release()
