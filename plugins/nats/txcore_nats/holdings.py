"""The partitions assigned to one member of a group: shared by the thread that polls and the loop that keeps it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from txcore.clock import Clock
from txcore.records import ClaimEvent, ClaimEventKind

UNPOLLED_LEASES: Final = 3
"""Time without a poll, in leases, after which a member's beats stop: it counts as dead."""


class Holdings:
    """Thread safe. Everything is over here before anyone else takes it, as they look at their own clocks, later."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._held: dict[int, float | None] = {}  # partition -> when it is taken away, once REVOKING was said
        self._assigned: set[int] = set()  # ASSIGNED was returned and is not over yet
        self._events: list[ClaimEvent] = []
        self._beaten_s = -1.0  # when the last beat that was confirmed was sent
        self._polled_s = clock.elapsed_s()
        self._is_closed = False

    @property
    def held(self) -> set[int]:
        """The partitions that this member was notified to own and has not given up."""
        with self._lock:
            return set(self._held)

    @property
    def revoking(self) -> set[int]:
        """Those of them that it was asked to give up."""
        with self._lock:
            return {partition for partition, until_s in self._held.items() if until_s is not None}

    @property
    def is_fresh(self) -> bool:
        """Others still see this member as alive."""
        return self._clock.elapsed_s() - self._beaten_s < self._lease_s

    @property
    def is_polled(self) -> bool:
        """The checker still asks for events."""
        return self._clock.elapsed_s() - self._polled_s < UNPOLLED_LEASES * self._lease_s

    def take_events(self) -> Sequence[ClaimEvent]:
        """Return what changed since the last call."""
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
        """A heartbeat that was sent at *sent_s* is stored."""
        self._beaten_s = max(self._beaten_s, sent_s)

    def assign(self, partition: int) -> None:
        """The partition is ours."""
        with self._lock:
            if not self._is_closed and partition not in self._held and self.is_fresh:
                self._held[partition] = None
                self._events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))

    def revoke(self, partition: int) -> None:
        """Ask for the partition to be given up within the lease's time."""
        with self._lock:
            if partition in self._held and self._held[partition] is None:
                self._held[partition] = self._clock.elapsed_s() + self._lease_s
                self._events.append(ClaimEvent(ClaimEventKind.REVOKING, partition, drain_s=self._lease_s))

    def give_up(self, partition: int) -> bool:
        """Say whether an assignment that was polled was held; it is no more, and nothing is said of it any more."""
        with self._lock:
            if partition not in self._assigned:
                return False
            self._assigned.discard(partition)
            del self._held[partition]
            self._events = [event for event in self._events if event.partition != partition]
            return True

    def lose(self, partition: int) -> None:
        """The partition is gone."""
        with self._lock:
            if partition in self._held:
                del self._held[partition]
                self._assigned.discard(partition)
                self._events.append(ClaimEvent(ClaimEventKind.LOST, partition))

    def lose_overdue(self) -> None:
        """Lose everything after a lease without a beat, and what was not given up in time."""
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
        """Hold nothing any more, and say nothing."""
        with self._lock:
            self._is_closed = True
            self._held.clear()
            self._assigned.clear()
            self._events.clear()
