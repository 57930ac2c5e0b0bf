"""The progress of one batch in a backend: each item ends exactly once, and many that end alike end together.

The plugin says what the broker has answered; the rules are here. A release's op comes after the confirmation of its
last target, and never after a failed one; an unknown target outweighs a refused one; no answer in time is UNKNOWN.

While the submitting call runs, its thread may end items beside the thread that brings the answers; later only that
thread may.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, Generic, TypeVar

import msgspec

from txcore.errors import TxcoreError, UsageError
from txcore.port import Batch
from txcore.records import HalfRecord, Outcome, Resolution, Status

Item = TypeVar("Item")

RECORD_BITS: Final = 20
"""A record of a release is numbered by its item's index and, in so many bits, by its place within the item."""
_PLACE: Final = (1 << RECORD_BITS) - 1


class Progress(msgspec.Struct, Generic[Item], eq=False):
    """The items of *batch* that have not ended, and how they end at their deadline.

    Attributes:
        items: Those of *batch*.
        is_done: Nothing ends any more: every item has ended, or the deadline has passed.
        ended: The items that have ended.
        ended_count: Their number; too low if two threads changed it at once: then `is_done` waits for the deadline.
    """

    batch: Batch[Item]
    items: Sequence[Item]
    is_done: bool = False
    ended: list[Sequence[int]] = []
    ended_count: int = 0

    def end(self, indices: Sequence[int], outcome: Outcome) -> None:
        """Settle items that have not ended, unless the deadline came first."""
        if self.is_done:
            return
        self.ended_count = count = self.ended_count + len(indices)
        if count == len(self.items):
            self.is_done = True
        else:
            self.ended.append(indices)
        self.batch.settle_all(indices, outcome)

    def expire(self, error: TxcoreError) -> None:
        """End all others without an answer; nothing ends afterwards."""
        self.is_done = True
        ended = set(chain.from_iterable(self.ended))
        for index in range(len(self.items)):
            if index not in ended:
                self.batch.settle(index, self._expired(index, error))

    def _expired(self, index: int, error: TxcoreError) -> Outcome:
        """Return the outcome of an item that had no answer in time."""
        raise NotImplementedError


class HalfProgress(Progress[HalfRecord], eq=False):
    """Halves: one that was never handed to the broker is certainly not stored.

    Attributes:
        unsent: The items that still wait for news of their targets.
    """

    unsent: set[int] = set()

    def refuse(self, index: int, error: TxcoreError) -> None:
        """End an item that the broker never got."""
        self.end((index,), Outcome(Status.REFUSED, error))

    def _expired(self, index: int, error: TxcoreError) -> Outcome:
        return Outcome(Status.REFUSED if index in self.unsent else Status.UNKNOWN, error)


def worse(known: Outcome | None, outcome: Outcome) -> Outcome:
    """Return the failure of an item with a further failed record: UNKNOWN is worse, as REFUSED would claim too much."""
    return known if known is not None and known.status is Status.UNKNOWN else outcome


def record_counts(resolutions: Sequence[Resolution]) -> list[int]:
    """Return the number of records that each release sends before its op: for `ReleaseProgress.left`."""
    return [len(each.targets) + (each.parked != b"") for each in resolutions]


class ReleaseProgress(Progress[Resolution], eq=False):
    """Releases: the records of each are counted down, then its op is due.

    A record's number is `index << RECORD_BITS | place`: the targets in their order, then the parked record.

    Attributes:
        left: For each item the number of its records without an answer; begins with `record_counts`.
        confirmed: The numbers of the records that are stored.
        failures: The worst answer for each item with a failed record.
    """

    left: list[int] = []
    confirmed: list[Sequence[int]] = []
    failures: dict[int, Outcome] = {}

    def target(self, number: int) -> int | None:
        """Return the target that a record publishes; None for the parked record."""
        targets, place = self.items[number >> RECORD_BITS].targets, number & _PLACE
        return targets[place] if place < len(targets) else None

    def queue_ops(self, indices: Sequence[int]) -> None:
        """Write the ops of items whose records are all confirmed, and end the items."""
        raise NotImplementedError

    def record_ended(self, number: int, status: Status, error: TxcoreError | None) -> None:
        """Count a record as stored, refused or unknown."""
        if status is Status.DURABLE:
            self.confirmed.append((number,))
            self._count(number >> RECORD_BITS)
        else:
            self.record_failed(number, Outcome(status, error))

    def records_stored(self, numbers: Sequence[int]) -> None:
        """Count records as stored."""
        self.confirmed.append(numbers)
        left = self.left
        if max(left) == 1:
            ready = [number >> RECORD_BITS for number in numbers]
        else:
            ready = []
            for number in numbers:
                index = number >> RECORD_BITS
                left[index] -= 1
                if not left[index]:
                    ready.append(index)
        if ready:
            self._go_on(ready)

    def record_failed(self, number: int, outcome: Outcome) -> None:
        """Count a record as refused or unknown."""
        index = number >> RECORD_BITS
        self.failures[index] = worse(self.failures.get(index), outcome)
        self._count(index)

    def not_found(self, index: int, error: TxcoreError) -> None:
        """End an item before any record was sent: REFUSED for a usage error (no such group), else UNKNOWN."""
        is_refused = isinstance(error, UsageError)
        self.end((index,), Outcome(Status.REFUSED, error) if is_refused else self._expired(index, error))

    def _count(self, index: int) -> None:
        self.left[index] -= 1
        if not self.left[index]:
            self._go_on([index])

    def _go_on(self, indices: Sequence[int]) -> None:
        if self.failures:
            for index in indices:
                failure = self.failures.get(index)
                if failure is not None:
                    self.end((index,), Outcome(failure.status, failure.error, missing=self._missing(index)))
            indices = [index for index in indices if index not in self.failures]
        if indices and not self.is_done:
            self.queue_ops(indices)

    def _expired(self, index: int, error: TxcoreError) -> Outcome:
        return Outcome(Status.UNKNOWN, error, missing=self._missing(index))

    def _missing(self, index: int) -> tuple[int, ...]:
        """Return the targets of an item that are not confirmed."""
        confirmed = set(chain.from_iterable(self.confirmed))
        targets = enumerate(self.items[index].targets, index << RECORD_BITS)
        return tuple(sorted(target for number, target in targets if number not in confirmed))
