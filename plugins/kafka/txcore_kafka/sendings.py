"""Batches under way, and how each item ends: halves, releases with their targets, marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

import msgspec
from confluent_kafka import KafkaError

from txcore.backends.batch_progress import RECORD_BITS, HalfProgress, ReleaseProgress
from txcore.errors import TxcoreError
from txcore.port import running
from txcore.records import DURABLE, LogKind, Outcome, Status
from txcore_kafka.codec import delivery_outcome, is_missing
from txcore_kafka.lookups import LookUps
from txcore_kafka.op_merging import OpMerger
from txcore_kafka.options import topic_name
from txcore_kafka.producing import Producing
from txcore_kafka.reports import Record, Records, parked_record, target_record

Refusal: TypeAlias = "Callable[[str], TxcoreError | None]"


class Halves(HalfProgress, Records, eq=False, kw_only=True):
    """Halves under way; the record of each has its index as number."""

    producing: Producing
    acked: list[int] = msgspec.field(default_factory=list)
    nacked: list[tuple[int, KafkaError]] = msgspec.field(default_factory=list)
    alone: AbstractSet[int] = frozenset()

    def send(self, indices: Iterable[int]) -> None:
        """Hand halves to the client; end those that it does not take as refused."""
        send, report = self.producing.send, self.report
        for index in indices:
            try:
                send(partial(report, index), self.record(index))
            except TxcoreError as error:
                self.refuse(index, error)

    def record(self, number: int) -> Record:
        """See `Records.record`."""
        half = self.items[number]
        return topic_name(half.group, LogKind.HALF), half.body, None, half.partition, None

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

    def send(self, indices: Iterable[int], refusal: Refusal | None = None) -> None:
        """Hand the records of items to the client, after all of them were made; queue the op of an item without any.

        Args:
            refusal: Returns why nothing can be published to a topic that was asked for.
        """
        if self.is_done:
            return
        records: list[tuple[int, Record]] = []
        bare: list[int] = []
        for index in indices:
            resolution, first = self.items[index], index << RECORD_BITS
            for place, target in enumerate(resolution.targets):
                records.append((first + place, target_record(resolution, target)))
            if resolution.parked:
                records.append((first + len(resolution.targets), parked_record(resolution)))
            elif not resolution.targets:
                bare.append(index)
        send, report, small = self.producing.send, self.report, self.look_ups.targets.small
        for number, record in records:
            error = None if refusal is None else refusal(record[0])
            if error is not None:
                self._end_later(number, Outcome(Status.REFUSED, error))
                continue
            try:
                if record[0] in small:
                    self.send_alone(number)
                else:
                    send(partial(report, number), record)
            except TxcoreError as raised:
                self._not_taken(number, record[0], raised)
        if bare:
            self.queue_ops(bare)

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

    def _not_taken(self, number: int, topic: str, error: TxcoreError) -> None:
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
