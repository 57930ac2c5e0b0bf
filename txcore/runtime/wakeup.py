"""The waiting of blocked callers for their outcomes, and the order in which they are woken."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from txcore.records import Outcome

PASSING_MAX: Final = 4
"""Number of callers awake at a time. With one or two, 64 callers idled while one of them woke; eight gained nothing."""


class Turnstile(msgspec.Struct, eq=False):
    """Wakes a few of the callers with an outcome; each lets another one through before it waits again.

    Outcomes come in bursts. If all their callers were woken at once, most would only wait again for Python's lock, and
    be woken again each time. The turnstile does not wait for a caller that leaves before its turn. Thread safe.

    An exception of a signal's handler, such as a task's time limit, may end a caller between any two steps. So no step
    here depends on an earlier one to be complete, and `reopen` gives back what such a caller kept.

    Attributes:
        lock: Protects the next attributes.
        settled: The callers with an outcome that wait for their turn, in the order of their outcomes.
        passing_count: The number of callers that were let through and have not left.
        waiting: The callers without an outcome; counted without the lock.
    """

    lock: Any = msgspec.field(default_factory=threading.Lock)
    settled: deque[Seat] = msgspec.field(default_factory=deque)
    passing_count: int = 0
    waiting: set[Seat] = set()

    def sit(self, items: Sequence[Any] = ()) -> Seat:
        """Return a seat that waits for the outcome of the one of *items*."""
        turn = threading.Lock()
        turn.acquire()
        seat = Seat(self, turn, items)
        self.waiting.add(seat)
        return seat

    def is_alone(self) -> bool:
        """Return whether at most one caller waits for an outcome, so that it delays no other."""
        return len(self.waiting) <= 1

    def reopen(self) -> None:
        """Let all callers with an outcome through: one of them has waited so long that its turn was forgotten."""
        with self.lock:
            through = list(self.settled)
            self.settled.clear()
            self.passing_count = len(through)
            for seat in through:
                seat.is_let_through = True
        for seat in through:
            seat.turn.release()


class Seat(msgspec.Struct, eq=False):
    """One blocked caller's place, and its batch of one (`port.Batch`). Made by `Turnstile.sit`.

    Attributes:
        turn: A lock that is held until this caller may continue; a bare lock wakes faster than an Event.
    """

    turnstile: Turnstile
    turn: Any
    items: Sequence[Any]
    outcome: Outcome | None = None
    is_let_through: bool = False
    is_gone: bool = False

    def settle(self, index: Any, outcome: Outcome) -> None:  # noqa: ARG002 - the only one
        """Receive the outcome, and wake the caller or let it wait for its turn; from any thread, never blocking."""
        turnstile = self.turnstile
        with turnstile.lock:
            if self.is_gone:
                return
            self.outcome = outcome
            turnstile.waiting.discard(self)
            if turnstile.passing_count >= PASSING_MAX:
                turnstile.settled.append(self)
                return
            turnstile.passing_count += 1
            self.is_let_through = True
        self.turn.release()

    settle_all = settle

    def is_settled(self) -> bool:
        """Return whether the outcome has arrived, though the caller's turn may not have come yet."""
        return self.outcome is not None

    def leave(self) -> None:
        """Let the next caller through: this one continues with other work, whether or not its turn had come."""
        turnstile = self.turnstile
        with turnstile.lock:
            if self.is_gone:
                return
            self.is_gone = True
            if not self.is_let_through:
                turnstile.waiting.discard(self)
                with contextlib.suppress(ValueError):  # without an outcome it is not there
                    turnstile.settled.remove(self)
                return
            if not turnstile.settled:
                turnstile.passing_count = max(0, turnstile.passing_count - 1)
                return
            following = turnstile.settled.popleft()
            following.is_let_through = True
        following.turn.release()
