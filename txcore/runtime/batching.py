"""Group append and group release: items that concurrent transactions hand over together share a broker round trip.

No item waits for others. A lone caller's item leaves at once as a batch of one; items that are ready together leave
together, and each backend shares requests among the batches that it gets while others are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from txcore.errors import TxcoreError
from txcore.port import Batch
from txcore.records import Outcome, Status

Item = TypeVar("Item")


class Waiter(Protocol):
    """The receiver of an item's outcome."""

    def settle(self, outcome: Outcome) -> None:
        """Receive the outcome; from any thread, never blocking."""


def hand_over(batch: Batch[Item], take: Callable[[Batch[Item]], None]) -> None:
    """Call *take*; if the backend refuses the batch, each item is settled REFUSED."""
    try:
        take(batch)
    except TxcoreError as error:
        for index in range(len(batch.items)):
            batch.settle(index, Outcome(Status.REFUSED, error))


class Group(Generic[Item]):
    """A batch whose items each have a waiter; implements `port.Batch`."""

    __slots__ = ("_waiters", "items")

    def __init__(self, items: Sequence[Item], waiters: Sequence[Waiter]) -> None:
        self.items = items
        self._waiters = waiters

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        self._waiters[index].settle(outcome)


class Outbox(Generic[Item]):
    """Items that one thread has collected, each with its waiter."""

    __slots__ = ("_items", "_waiters")

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._waiters: list[Waiter] = []

    def put(self, item: Item, waiter: Waiter) -> None:
        """Add one."""
        self._items.append(item)
        self._waiters.append(waiter)

    def hand_over(self, take: Callable[[Batch[Item]], None], count_max: int) -> None:
        """Hand all items over to *take*, in batches of *count_max* at most."""
        items, waiters = self._items, self._waiters
        if items:
            self._items, self._waiters = [], []
        for start in range(0, len(items), count_max):
            group = Group(items[start : start + count_max], waiters[start : start + count_max])
            hand_over(group, take)
