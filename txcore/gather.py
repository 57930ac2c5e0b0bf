"""Group append and group release: items of concurrent transactions share a broker round trip.

Nobody waits when idle: a lone caller's item leaves at once as a batch of one. While `in_flight_max` batches are
under way, further items gather and leave together when one of them comes back, or after `GATHER_S` at the latest.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from txcore.errors import TxcoreError
from txcore.port import Backend, Batch
from txcore.port import Claim as ClaimPort
from txcore.records import HalfRecord, Outcome, Resolution, Status

GATHER_S: Final = 0.01
IN_FLIGHT_MAX: Final = 4
Item = TypeVar("Item")


class Waiter(Protocol):
    """Who wants to know how an item ended."""

    def settle(self, outcome: Outcome) -> None:
        """Take the outcome; from any thread, never blocking."""


class Group(Generic[Item]):
    """A batch whose items each have a waiter; implements `port.Batch`."""

    __slots__ = ("_waiters", "items")

    def __init__(self, items: Sequence[Item], waiters: Sequence[Waiter]) -> None:
        self.items = items
        self._waiters = waiters

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        self._waiters[index].settle(outcome)

    def refuse(self, error: TxcoreError) -> None:
        """Settle every item: the backend took none of them."""
        for index in range(len(self.items)):
            self.settle(index, Outcome(Status.REFUSED, error))


class _LaneGroup(Group[Item]):
    """One that tells its lane when all of it is settled, before the last waiter hears of it."""

    __slots__ = ("_on_empty", "_settled_count")

    def __init__(self, items: Sequence[Item], waiters: Sequence[Waiter], on_empty: Callable[[], None]) -> None:
        super().__init__(items, waiters)
        self._on_empty = on_empty
        self._settled_count = itertools.count(1)  # counts for many threads at once without a lock

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        if next(self._settled_count) == len(self.items):
            self._on_empty()
        self._waiters[index].settle(outcome)


class Lane(Generic[Item]):
    """One direction, halves or releases: a queue in front of the backend. Thread safe."""

    def __init__(self, submit: Callable[[Batch[Item]], None], batch_count_max: int) -> None:
        self._submit = submit
        self._batch_count_max = batch_count_max
        self._lock = threading.Lock()
        self._items: list[Item] = []
        self._waiters: list[Waiter] = []
        self.in_flight = 0  #: batches that were handed over and are not settled

    def put(self, item: Item, waiter: Waiter) -> None:
        """Queue *item*, and send what is queued if the lane is not busy."""
        with self._lock:
            self._items.append(item)
            self._waiters.append(waiter)
        self.flush()

    def flush(self, *, force: bool = False) -> None:
        """Send what is queued; with *force* even while many batches are under way."""
        while self._items and (force or self.in_flight < IN_FLIGHT_MAX):
            with self._lock:
                items, waiters, count_max = self._items, self._waiters, self._batch_count_max
                if not items or (self.in_flight >= IN_FLIGHT_MAX and not force):
                    return
                self._items, self._waiters = items[count_max:], waiters[count_max:]
                self.in_flight += 1
            if len(items) > count_max:
                items, waiters = items[:count_max], waiters[:count_max]
            group = _LaneGroup(items, waiters, self._landed)
            try:
                self._submit(group)
            except TxcoreError as error:
                group.refuse(error)

    def _landed(self) -> None:
        with self._lock:
            self.in_flight -= 1


class Gatherer:
    """Both lanes of one backend connection."""

    def __init__(self, backend: Backend, claim: ClaimPort | None = None) -> None:
        self.backend = backend
        count_max = backend.capabilities.batch_count_max
        self.halves: Lane[HalfRecord] = Lane(backend.append_halves, count_max)
        self.releases: Lane[Resolution] = Lane(lambda batch: backend.release(batch, claim), count_max)

    def is_alone(self) -> bool:
        """Return whether at most one batch is under way, so that whoever waits for it holds nobody up."""
        return self.halves.in_flight + self.releases.in_flight <= 1
