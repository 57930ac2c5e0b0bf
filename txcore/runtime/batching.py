"""Group append and group release: items that concurrent transactions hand over together share a broker round trip.

No item waits for others. A lone caller's item leaves at once as a batch of one; items that are ready together leave
together, and each backend shares requests among the batches that it gets while others are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from txcore.errors import TxcoreError
from txcore.port import Batch
from txcore.records import Outcome, Status

Item = TypeVar("Item")
WaiterT = TypeVar("WaiterT")


class Waiter(Protocol):
    """The receiver of an item's outcome."""

    def settle(self, outcome: Outcome) -> None:
        """Receive the outcome; from any thread, never blocking."""


def hand_over(batch: Batch[Item], take: Callable[[Batch[Item]], None]) -> None:
    """Call *take*; if the backend refuses the batch, each item is settled REFUSED."""
    try:
        take(batch)
    except TxcoreError as error:
        batch.settle_all(range(len(batch.items)), Outcome(Status.REFUSED, error))


class Group(msgspec.Struct, Generic[Item], eq=False):
    """A batch whose items each have a waiter; implements `port.Batch`."""

    items: Sequence[Item]
    waiters: Sequence[Waiter]

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        self.waiters[index].settle(outcome)

    def settle_all(self, indices: Sequence[int], outcome: Outcome) -> None:
        """See `port.Batch.settle_all`."""
        for index in indices:
            self.waiters[index].settle(outcome)


class Outbox(msgspec.Struct, Generic[Item, WaiterT], eq=False):
    """Items that one thread has collected, each with its waiter.

    Attributes:
        group: Makes the batch of items and waiters.
    """

    group: Callable[[Sequence[Item], Sequence[WaiterT]], Batch[Item]]
    items: list[Item] = []
    waiters: list[WaiterT] = []

    def put(self, item: Item, waiter: WaiterT) -> None:
        """Add one."""
        self.items.append(item)
        self.waiters.append(waiter)

    def hand_over(self, take: Callable[[Batch[Item]], None], count_max: int) -> None:
        """Hand all items over to *take*, in batches of *count_max* at most."""
        items, waiters = self.items, self.waiters
        if items:
            self.items, self.waiters = [], []
        for start in range(0, len(items), count_max):
            hand_over(self.group(items[start : start + count_max], waiters[start : start + count_max]), take)
