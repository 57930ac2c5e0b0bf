"""The partitions of one member of a group, and the events that its checker has not polled yet: one state machine.

The broker's side grants a partition, wants it back or takes it away; the checker polls and gives up. Per partition:

    free     -- assign ------->  OFFERED   ASSIGNED is queued
    OFFERED  -- poll --------->  HELD
    HELD     -- revoke ------->  DRAINING  REVOKING is queued
    OFFERED  -- revoke ------->  LEAVING   ASSIGNED is withdrawn
    HELD, DRAINING  -- give_up ----------------------------->  LEAVING
    DRAINING -- lose_overdue ->  LEAVING   LOST is queued
    OFFERED  -- resign ------->  LEAVING   ASSIGNED is withdrawn
    HELD, DRAINING  -- resign ------------------------------>  LEAVING   LOST is queued
    LEAVING  -- freed -------->  free
    LEAVING  -- offer_again -->  OFFERED   ASSIGNED is queued
    OFFERED, LEAVING  -- lose  ->  free    ASSIGNED is withdrawn
    HELD, DRAINING    -- lose  ->  free    LOST is queued

A step that has no line here changes nothing. So `give_up` refers to the last assignment that was polled, and is ignored
once that is over, or when a later one was not polled yet. LEAVING means that this side ended the assignment, and that
the broker still counts it: the backend gives the partition back and then calls `freed`.

An end withdraws the events of its assignment that were not polled. So an assignment that ends before it was polled
leaves no event, a REVOKING is polled only while it can be answered, and ASSIGNED never follows the end of its own
assignment. A LOST that is queued stays, whatever comes after it.

A checker that does not poll is stuck, although its process and its connections live: it would keep its partitions for
ever. The backend asks `is_stuck` and stops its heartbeats, or resigns, until the checker polls again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from txcore.records import ClaimEvent, ClaimEventKind

STUCK_LEASES: Final = 3
"""Time without a poll, in leases (or heartbeats, where a broker counts those), after which a checker is stuck."""


class State(Enum):
    """The state of a partition that is not free."""

    OFFERED = "offered"  #: assigned; the checker does not know it yet
    HELD = "held"  #: ASSIGNED was polled
    DRAINING = "draining"  #: held, and wanted back
    LEAVING = "leaving"  #: over for the checker, but not yet given back to the broker


POLLED = frozenset({State.HELD, State.DRAINING})
KEPT = frozenset({State.OFFERED, State.HELD})


class Holdings:
    """The partitions and queued events of one member. Thread safe; no call blocks or does I/O.

    Args:
        now_s: The clock of drain times, in seconds, such as `Clock.elapsed_s`.
        stuck_after_s: Time without a poll, in seconds, after which the checker is stuck; without a limit by default.
    """

    def __init__(self, now_s: Callable[[], float], stuck_after_s: float = math.inf) -> None:
        self._now_s = now_s
        self._stuck_after_s = stuck_after_s
        self._lock = threading.Lock()
        self._states: dict[int, State] = {}
        self._until_s: dict[int, float] = {}  # when the draining partitions are lost
        self._events: list[ClaimEvent] = []
        self._polled_s = now_s()
        self._is_closed = False

    # -- the checker's side -------------------------------------------------------------------------------------------

    def poll(self) -> list[ClaimEvent]:
        """Return the events since the last call, in order; from now on the checker knows its assignments."""
        self._polled_s = self._now_s()
        with self._lock:
            events, self._events = self._events, []
            for event in events:
                if event.kind is ClaimEventKind.ASSIGNED:
                    self._states[event.partition] = State.HELD
        return events

    def give_up(self, partition: int) -> State | None:
        """End the assignment that was polled last, and return its state; None, without effect, if it is over."""
        with self._lock:
            state = self._states.get(partition)
            if state not in POLLED:
                return None
            self._end(partition, is_leaving=True)
            return state

    def close(self) -> list[int]:
        """End all assignments, which are returned, without an event; nothing is assigned any more."""
        with self._lock:
            self._is_closed = True
            ended = [partition for partition, state in self._states.items() if state is not State.LEAVING]
            for partition in ended:
                self._end(partition, is_leaving=True)
            self._events.clear()
            return ended

    # -- the broker's side --------------------------------------------------------------------------------------------

    def assign(self, partition: int) -> None:
        """Offer a free partition to the checker."""
        self._offer(partition, None)

    def offer_again(self, partition: int) -> None:
        """Offer a partition that is leaving to the checker: the broker never took it back."""
        self._offer(partition, State.LEAVING)

    def revoke(self, partition: int, until_s: float) -> bool:
        """Ask the checker to give a partition up before *until_s*, of this object's clock.

        Returns True if it can be given back at once, as the checker does not know of it.
        """
        with self._lock:
            state = self._states.get(partition)
            if state is State.OFFERED:
                self._end(partition, is_leaving=True)
            elif state is State.HELD:
                self._states[partition] = State.DRAINING
                self._until_s[partition] = until_s
                drain_s = round(max(until_s - self._now_s(), 0.0), 3)
                self._events.append(ClaimEvent(ClaimEventKind.REVOKING, partition, drain_s))
            return state is State.OFFERED

    def lose(self, partitions: Iterable[int]) -> None:
        """End assignments that the broker has ended: nothing may be written for these *partitions*."""
        with self._lock:
            for partition in partitions:
                self._end(partition, is_lost=True)

    def lose_all(self) -> None:
        """Do as `lose` for every partition."""
        with self._lock:
            for partition in sorted(self._states):
                self._end(partition, is_lost=True)

    def lose_overdue(self) -> list[int]:
        """End the assignments that were not given up in time, and return their partitions, to be given back."""
        now_s = self._now_s()
        with self._lock:
            overdue = sorted(partition for partition, until_s in self._until_s.items() if until_s <= now_s)
            for partition in overdue:
                self._end(partition, is_lost=True, is_leaving=True)
            return overdue

    def resign(self) -> list[int]:
        """End all assignments of a checker that is stuck, and return their partitions, to be given back."""
        with self._lock:
            ended = sorted(partition for partition, state in self._states.items() if state is not State.LEAVING)
            for partition in ended:
                self._end(partition, is_lost=True, is_leaving=True)
            return ended

    def freed(self, partition: int) -> None:
        """Forget a partition that was leaving: the broker has it back."""
        with self._lock:
            if self._states.get(partition) is State.LEAVING:
                del self._states[partition]

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def held(self) -> set[int]:
        """The partitions that are assigned, draining ones included."""
        return self._in(KEPT | POLLED)

    @property
    def kept(self) -> set[int]:
        """The partitions that are assigned and not wanted back."""
        return self._in(KEPT)

    @property
    def draining(self) -> set[int]:
        """The partitions that the checker was asked to give up."""
        return self._in({State.DRAINING})

    @property
    def leaving(self) -> set[int]:
        """The partitions that are over for the checker, and not yet given back to the broker."""
        return self._in({State.LEAVING})

    @property
    def is_stuck(self) -> bool:
        """Whether the last poll, or the start, was too long ago."""
        return self._now_s() - self._polled_s > self._stuck_after_s

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _in(self, states: Iterable[State]) -> set[int]:
        with self._lock:
            return {partition for partition, state in self._states.items() if state in states}

    def _offer(self, partition: int, only_from: State | None) -> None:
        with self._lock:
            if not self._is_closed and self._states.get(partition) is only_from:
                self._states[partition] = State.OFFERED
                self._events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))

    def _end(self, partition: int, *, is_lost: bool = False, is_leaving: bool = False) -> None:
        state = self._states.pop(partition, None)
        self._until_s.pop(partition, None)
        if is_leaving:
            self._states[partition] = State.LEAVING
        self._events = [
            event for event in self._events if event.partition != partition or event.kind is ClaimEventKind.LOST
        ]
        if is_lost and state in POLLED:
            self._events.append(ClaimEvent(ClaimEventKind.LOST, partition))
