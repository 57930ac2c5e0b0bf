"""The partitions of one member of a group, and the events that its checker has not polled yet."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from txcore.clock import Clock
from txcore.records import ClaimEvent, ClaimEventKind


class Holdings:
    """The partitions of one member. Thread safe.

    A lease ends here before another member may take the partition: this clock counts from the sending of the last
    heartbeat, the server's from its arrival.
    """

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._held: dict[int, float | None] = {}  # partition -> when it is taken away, after REVOKING was enqueued
        self._assigned: set[int] = set()  # partitions whose ASSIGNED was returned and is not over yet
        self._given: set[int] = set()  # partitions given up here, perhaps not on the server yet
        self._events: list[ClaimEvent] = []
        self._until_s = 0.0

    def take_events(self) -> Sequence[ClaimEvent]:
        """Return the events since the last call."""
        now_s = self._clock.elapsed_s()
        with self._lock:
            is_over = now_s >= self._until_s
            self._lose(
                [p for p, until_s in self._held.items() if is_over or (until_s is not None and until_s <= now_s)]
            )
            events, self._events = self._events, []
            for event in events:
                if event.kind is ClaimEventKind.ASSIGNED:
                    self._assigned.add(event.partition)
                elif event.kind is ClaimEventKind.LOST:
                    self._assigned.discard(event.partition)
        return events

    def beaten(self, sent_s: float, mine: Collection[int], revoked: Collection[int]) -> None:
        """Apply the server's view after a heartbeat that was sent at *sent_s*: the partitions, and those to give up."""
        with self._lock:
            self._until_s = sent_s + self._lease_s
            self._lose([partition for partition in self._held if partition not in mine])
            for partition in sorted(set(mine) - self._given):
                self._hold(partition, is_revoked=partition in revoked, until_s=self._until_s)

    def give_up(self, partition: int) -> bool:
        """End an assignment that was polled, and drop the partition's other events; return False if there is none."""
        with self._lock:
            if partition not in self._assigned:
                return False
            self._assigned.discard(partition)
            del self._held[partition]
            self._given.add(partition)
            self._events = [event for event in self._events if event.partition != partition]
            return True

    def freed(self, partition: int) -> None:
        """Let the partition, which was given up, be assigned again."""
        with self._lock:
            self._given.discard(partition)

    def _hold(self, partition: int, *, is_revoked: bool, until_s: float) -> None:
        if partition not in self._held:
            if not is_revoked:
                self._held[partition] = None
                self._events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))
        elif is_revoked and self._held[partition] is None:
            self._held[partition] = until_s
            self._events.append(ClaimEvent(ClaimEventKind.REVOKING, partition, drain_s=self._lease_s))

    def _lose(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            del self._held[partition]
            self._assigned.discard(partition)
            self._events.append(ClaimEvent(ClaimEventKind.LOST, partition))
