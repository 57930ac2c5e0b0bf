"""Where blocked callers wait for their outcomes, and in which order they are woken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from txcore.records import Outcome

PASSING_MAX: Final = 4
"""So many are awake at a time. With one or two, 64 callers stood idle while one of them woke; eight gained nothing."""


class Turnstile:
    """Wakes a few of those who have their outcome; each lets another one through when it is about to wait again.

    Outcomes come in bursts. Were all whom they concern woken at once, most would only wait again, for Python's lock,
    and each time be woken anew. Whoever leaves without having waited for its turn is not waited for. Thread safe.

    Attributes:
        lock: Held for what follows.
        settled: Who has an outcome and waits for its turn, in the order of their outcomes.
        passing_count: Who has been let through and has not left.
        waiting: As long as there are callers without an outcome; counted without the lock.
    """

    __slots__ = ("lock", "passing_count", "settled", "waiting")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.settled: deque[Seat] = deque()
        self.passing_count = 0
        self.waiting: list[None] = []

    def sit(self, items: Sequence[Any] = ()) -> Seat:
        """Return a place to wait in for the outcome of the one of *items*."""
        turn = threading.Lock()
        turn.acquire()
        self.waiting.append(None)
        return Seat(self, turn, items)

    def is_alone(self) -> bool:
        """Return whether at most one caller waits for an outcome, so that it holds nobody up."""
        return len(self.waiting) <= 1


class Seat(msgspec.Struct, eq=False):
    """One blocked caller's place, and its batch of one (`port.Batch`). Made by `Turnstile.sit`.

    Attributes:
        turn: A lock that is held until this caller may go on; a bare lock wakes faster than an Event.
    """

    turnstile: Turnstile
    turn: Any
    items: Sequence[Any]
    outcome: Outcome | None = None
    is_let_through: bool = False
    is_gone: bool = False

    def settle(self, index: int, outcome: Outcome) -> None:  # noqa: ARG002 - the only one
        """Take the outcome, and wake the caller or let it wait for its turn; from any thread, never blocking."""
        turnstile = self.turnstile
        with turnstile.lock:
            if self.is_gone:
                return
            self.outcome = outcome
            turnstile.waiting.pop()
            if turnstile.passing_count >= PASSING_MAX:
                turnstile.settled.append(self)
                return
            turnstile.passing_count += 1
            self.is_let_through = True
        self.turn.release()

    def is_settled(self) -> bool:
        """Return whether the outcome is there, though it may not be this caller's turn yet."""
        return self.outcome is not None

    def leave(self) -> None:
        """Let the next one through: the caller goes on to something else, whether it was its turn or not."""
        turnstile = self.turnstile
        with turnstile.lock:
            if self.is_gone:
                return
            self.is_gone = True
            if not self.is_let_through:
                if self.outcome is None:
                    turnstile.waiting.pop()
                else:
                    turnstile.settled.remove(self)
                return
            if not turnstile.settled:
                turnstile.passing_count -= 1
                return
            following = turnstile.settled.popleft()
            following.is_let_through = True
        following.turn.release()
