"""The partitions assigned to one member of a group: shared by the thread that polls and the loop of its membership."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from txcore.clock import Clock
from txcore.records import ClaimEvent, ClaimEventKind

UNPOLLED_LEASES: Final = 3
"""Time without a poll, in leases, after which a member's heartbeats stop, so that it counts as dead."""


class Holdings:
    """The partitions of one member. Thread safe.

    A lease ends here before another member takes the partition: this clock counts from the sending of the last
    heartbeat, the other members' clocks from its arrival.
    """

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._held: dict[int, float | None] = {}  # partition -> when it is taken away, after REVOKING was enqueued
        self._assigned: set[int] = set()  # partitions whose ASSIGNED was returned and is not over yet
        self._events: list[ClaimEvent] = []
        self._beaten_s = -1.0  # when the last confirmed heartbeat was sent
        self._polled_s = clock.elapsed_s()
        self._is_closed = False

    @property
    def held(self) -> set[int]:
        """The partitions that are assigned to this member and not given up."""
        with self._lock:
            return set(self._held)

    @property
    def revoking(self) -> set[int]:
        """Those of the held partitions that this member was asked to give up."""
        with self._lock:
            return {partition for partition, until_s in self._held.items() if until_s is not None}

    @property
    def is_fresh(self) -> bool:
        """Whether other members still see this member as alive."""
        return self._clock.elapsed_s() - self._beaten_s < self._lease_s

    @property
    def is_polled(self) -> bool:
        """Whether the checker still polls for events."""
        return self._clock.elapsed_s() - self._polled_s < UNPOLLED_LEASES * self._lease_s

    def take_events(self) -> Sequence[ClaimEvent]:
        """Return the events since the last call."""
        self.lose_overdue()
        self._polled_s = self._clock.elapsed_s()
        with self._lock:
            events, self._events = self._events, []
            for event in events:
                if event.kind is ClaimEventKind.ASSIGNED:
                    self._assigned.add(event.partition)
                elif event.kind is ClaimEventKind.LOST:
                    self._assigned.discard(event.partition)
        return events

    def beaten(self, sent_s: float) -> None:
        """Remember that a heartbeat sent at *sent_s* is stored."""
        self._beaten_s = max(self._beaten_s, sent_s)

    def assign(self, partition: int) -> None:
        """Hold the partition and enqueue ASSIGNED, if the last heartbeat is fresh."""
        with self._lock:
            if not self._is_closed and partition not in self._held and self.is_fresh:
                self._held[partition] = None
                self._events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))

    def revoke(self, partition: int) -> None:
        """Enqueue REVOKING: the checker must give the partition up within one lease."""
        with self._lock:
            if partition in self._held and self._held[partition] is None:
                self._held[partition] = self._clock.elapsed_s() + self._lease_s
                self._events.append(ClaimEvent(ClaimEventKind.REVOKING, partition, drain_s=self._lease_s))

    def give_up(self, partition: int) -> bool:
        """End an assignment that was polled, and drop the partition's other events; return False if there is none."""
        with self._lock:
            if partition not in self._assigned:
                return False
            self._assigned.discard(partition)
            del self._held[partition]
            self._events = [event for event in self._events if event.partition != partition]
            return True

    def lose(self, partition: int) -> None:
        """Remove the partition, if it is held, and enqueue LOST."""
        with self._lock:
            if partition in self._held:
                del self._held[partition]
                self._assigned.discard(partition)
                self._events.append(ClaimEvent(ClaimEventKind.LOST, partition))

    def lose_overdue(self) -> None:
        """Lose all partitions after a lease without a heartbeat, and those that were not given up in time."""
        now_s = self._clock.elapsed_s()
        is_fresh = self.is_fresh
        with self._lock:
            over = [
                partition
                for partition, until_s in self._held.items()
                if not is_fresh or (until_s is not None and until_s <= now_s)
            ]
        for partition in over:
            self.lose(partition)

    def close(self) -> None:
        """Drop all partitions and events, and accept no more."""
        with self._lock:
            self._is_closed = True
            self._held.clear()
            self._assigned.clear()
            self._events.clear()
