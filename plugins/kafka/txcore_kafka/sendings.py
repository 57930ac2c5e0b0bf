"""Batches under way, and how each item ends: halves, releases with their targets, marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

import msgspec
from confluent_kafka import KafkaError

from txcore.backends.batch_progress import RECORD_BITS, HalfProgress, ReleaseProgress
from txcore.columns import ReleaseColumns
from txcore.errors import TxcoreError
from txcore.port import running
from txcore.records import DURABLE, Outcome, Status
from txcore_kafka.codec import delivery_outcome, is_missing
from txcore_kafka.lookups import LookUps
from txcore_kafka.op_merging import OpMerger
from txcore_kafka.producing import Producing
from txcore_kafka.reports import (
    Record,
    Records,
    commit_records,
    half_record,
    half_records,
    parked_record,
    target_record,
)

Refusal: TypeAlias = "Callable[[str], TxcoreError | None]"


class Halves(HalfProgress, Records, eq=False, kw_only=True):
    """Halves under way; the record of each has its index as number."""

    producing: Producing
    acked: list[int] = msgspec.field(default_factory=list)
    nacked: list[tuple[int, KafkaError]] = msgspec.field(default_factory=list)
    alone: AbstractSet[int] = frozenset()

    def send(self, indices: Sequence[int]) -> None:
        """Hand halves to the client; end those that it does not take as refused."""
        for index, error in self.producing.send_all(self.report, indices, half_records(self.items, indices)):
            self.refuse(index, error)

    def record(self, number: int) -> Record:
        """See `Records.record`."""
        return half_record(self.items[number])

    def stored(self, numbers: Sequence[int]) -> None:
        """See `Records.stored`."""
        self.end(numbers, DURABLE)

    def failed(self, number: int, error: KafkaError) -> None:
        """See `Records.failed`."""
        self.end((number,), delivery_outcome(error, self.record(number)[0]))


class Releases(ReleaseProgress, Records, eq=False, kw_only=True):
    """Releases under way; see `ReleaseProgress` for the numbers of their records."""

    producing: Producing
    ops: OpMerger
    look_ups: LookUps
    acked: list[int] = msgspec.field(default_factory=list)
    nacked: list[tuple[int, KafkaError]] = msgspec.field(default_factory=list)
    alone: AbstractSet[int] = frozenset()

    def send(self, indices: Sequence[int], refusal: Refusal | None = None) -> None:
        """Hand the records of items to the client, after all of them were made; queue the op of an item without any.

        Args:
            refusal: Returns why nothing can be published to a topic that was asked for.
        """
        if self.is_done:
            return
        items, small = self.items, self.look_ups.targets.small
        numbers: list[int] = []
        records: list[Record] = []
        bare: list[int] = []
        for index in indices:
            resolution, number = items[index], index << RECORD_BITS
            for target in resolution.targets:
                numbers.append(number)
                records.append(target_record(resolution, target))
                number += 1
            if resolution.parked:
                numbers.append(number)
                records.append(parked_record(resolution))
            elif not resolution.targets:
                bare.append(index)
        if refusal is not None or small:
            numbers, records = self._set_apart(numbers, records, refusal)
        for number, error in self.producing.send_all(self.report, numbers, records):
            self._not_taken(number, error)
        if bare:
            self.queue_ops(bare)

    def send_commits(self, commits: ReleaseColumns) -> None:
        """Hand the records of all items to the client: commits of messages without headers."""
        numbers = range(0, len(commits) << RECORD_BITS, 1 << RECORD_BITS)
        for number, error in self.producing.send_all(self.report, numbers, commit_records(commits)):
            self._not_taken(number, error)

    def record(self, number: int) -> Record:
        """See `Records.record`."""
        resolution, target = self.items[number >> RECORD_BITS], self.target(number)
        return parked_record(resolution) if target is None else target_record(resolution, target)

    def stored(self, numbers: Sequence[int]) -> None:
        """See `Records.stored`."""
        self.records_stored(numbers)

    def failed(self, number: int, error: KafkaError) -> None:
        """See `Records.failed`."""
        topic = self.record(number)[0]
        if is_missing(error) and self.target(number) is not None:
            self.look_ups.ask(topic, partial(self.record_failed, number))
            return
        outcome = delivery_outcome(error, topic)
        if outcome.status is Status.REFUSED:
            self.look_ups.targets.forget(topic)
        self.record_failed(number, outcome)

    def queue_ops(self, indices: Sequence[int]) -> None:
        """See `ReleaseProgress.queue_ops`."""
        queued = self.ops.put(self.items, indices, self.end)
        if queued:
            self.end(queued, DURABLE)

    def _set_apart(
        self, numbers: Sequence[int], records: Sequence[Record], refusal: Refusal | None
    ) -> tuple[list[int], list[Record]]:
        """Return the records that may share a batch, after the others were sent alone or refused."""
        small = self.look_ups.targets.small
        kept: list[int] = []
        for number, record in zip(numbers, records, strict=True):
            error = None if refusal is None else refusal(record[0])
            if error is not None:
                self._end_later(number, Outcome(Status.REFUSED, error))
            elif record[0] in small:
                try:
                    self.send_alone(number)
                except TxcoreError as raised:
                    self._not_taken(number, raised)
            else:
                kept.append(number)
        return kept, [self.record(number) for number in kept]

    def _not_taken(self, number: int, error: TxcoreError) -> None:
        topic = self.record(number)[0]
        if is_missing(error.__cause__) and self.target(number) is not None:
            self.look_ups.ask(topic, partial(self.record_failed, number))
        else:
            self._end_later(number, Outcome(Status.UNKNOWN, error))  # no refusal: the broker was not asked

    def _end_later(self, number: int, outcome: Outcome) -> None:
        """Count a record as failed on the thread that polls."""
        self.producing.call(partial(self.record_failed, number, outcome))


class Marking:
    """A CLAIM or TICK under way."""

    __slots__ = ("future", "is_done", "stored")

    def __init__(self, stored: Callable[[], None]) -> None:
        self.is_done = False
        self.stored = stored
        self.future: Future[Outcome] = running()

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        if not self.is_done:
            self.is_done = True
            if outcome.status is Status.DURABLE:
                self.stored()
            self.future.set_result(outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`."""
        self.settle(Outcome(Status.UNKNOWN, error))

    def not_found(self, error: TxcoreError) -> None:
        """End before the mark was handed over."""
        self.settle(Outcome(Status.REFUSED, error))
