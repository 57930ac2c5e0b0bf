"""Halves and releases in terms of records: targets first, each confirmed; then the op."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, cast

import msgspec
from confluent_kafka import KafkaError

from txcore.clock import Clock
from txcore.errors import BusyError, MessageRejectedError, TxcoreError, UsageError
from txcore.port import Batch
from txcore.records import DURABLE, HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import target_headers
from txcore_kafka.codec import delivery_outcome
from txcore_kafka.control import Control
from txcore_kafka.ops import OpMerger
from txcore_kafka.options import Options, topic_name
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.producing import ANY_PARTITION, Producing, Record
from txcore_kafka.targets import Targets
from txcore_kafka.threads import Worker, new_future
from txcore_kafka.transactions import Entry, TransactionLane

LOG_APPEND_TIME: Final = 2
PARKED_INDEX: Final = -1
HALVES: Final = "halves"
RELEASES: Final = "releases"
MARKS: Final = "marks"
IN_TRANSACTIONS: Final = "in transactions"


class HalfSending(Record):
    """One half under way: perhaps waiting for news of its targets, then for its acknowledgement."""

    batch: Batch[HalfRecord]
    index: int
    half: HalfRecord
    is_sent: bool = False
    is_done: bool = False

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        if not self.is_done:
            self.is_done = True
            self.batch.settle(self.index, outcome)

    def stored(self, message: Any) -> None:
        """See `Record.stored`; the broker's time comes with its acknowledgement."""
        kind, at_ms = message.timestamp()
        self.settle(_stored_at(at_ms) if kind == LOG_APPEND_TIME else DURABLE)

    def failed(self, error: KafkaError) -> None:
        """See `Record.failed`."""
        self.settle(delivery_outcome(error, self.topic))

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`; a half that was never handed over is certainly not stored."""
        self.settle(Outcome(Status.UNKNOWN if self.is_sent else Status.REFUSED, error))

    def not_found(self, error: TxcoreError) -> None:
        """End before anything was handed over."""
        self.settle(Outcome(Status.REFUSED, error))


class Release(msgspec.Struct, eq=False):
    """One resolution under way: counts its targets down, then queues its op. Ends on the thread that polls."""

    releaser: Releaser
    batch: Batch[Resolution]
    index: int
    resolution: Resolution
    left: int
    stored_bits: int = 0  #: one for each target
    status: Status = Status.DURABLE
    error: TxcoreError | None = None
    is_done: bool = False

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        if not self.is_done:
            self.is_done = True
            self.batch.settle(self.index, outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`; the op is not written any more."""
        self.settle(Outcome(Status.UNKNOWN, error, missing=self.missing()))

    def not_found(self, error: TxcoreError) -> None:
        """End before anything was published: REFUSED when there is no such group, else nobody refused."""
        if isinstance(error, UsageError):
            self.settle(Outcome(Status.REFUSED, error))
        else:
            self.expire(error)

    def confirmed(self, index: int) -> None:
        """One target, or the parked record, is stored."""
        if index != PARKED_INDEX:
            self.stored_bits |= 1 << index
        self._one_less()

    def missing(self) -> tuple[int, ...]:
        """Return which targets are not confirmed."""
        return tuple(index for index in sorted(self.resolution.targets) if not self.stored_bits >> index & 1)

    def failed(self, outcome: Outcome) -> None:
        """One target, or the parked record, is refused or unknown; unknown outweighs refused."""
        if self.status is not Status.UNKNOWN:
            self.status, self.error = outcome.status, outcome.error
        self._one_less()

    def _one_less(self) -> None:
        self.left -= 1
        if self.left or self.is_done:
            return
        if self.status is Status.DURABLE:
            self.releaser.queue_op(self)
        else:
            self.settle(Outcome(self.status, self.error, missing=self.missing()))


class TargetSend(Record):
    """A target, or a parked record, in the client's hands."""

    release: Release
    index: int

    def stored(self, message: Any) -> None:  # noqa: ARG002
        """See `Record.stored`."""
        self.release.confirmed(self.index)

    def failed(self, error: KafkaError) -> None:
        """See `Record.failed`."""
        self.release.releaser.targets.forget(self.topic)
        self.release.failed(delivery_outcome(error, self.topic))


class Marking:
    """A CLAIM or TICK under way."""

    __slots__ = ("future", "is_done", "stored")

    def __init__(self, stored: Callable[[], None]) -> None:
        self.is_done = False
        self.stored = stored
        self.future: Future[Outcome] = new_future()

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
        """End before anything was handed over."""
        self.settle(Outcome(Status.REFUSED, error))


class Releaser:
    """Turns batches into records for the client."""

    def __init__(
        self,
        options: Options,
        producing: Producing,
        control: Control,
        targets: Targets,
        worker: Worker,
        clock: Clock,
    ) -> None:
        self._options = options
        self._producing = producing
        self._control = control
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._deferred_count = 0
        self.targets = targets
        self.ops = OpMerger(producing, clock)
        self.lane: TransactionLane | None = None  #: publishes releases and marks in transactions, where there is one
        producing.on_turn = self.ops.flush_due
        producing.on_stop = self.ops.flush_all

    def append(self, batch: Batch[HalfRecord]) -> None:
        """Store halves, each once its group and targets are known."""
        counts, size_max, producing = self._control.partition_counts, self._options.body_size_max, self._producing
        now_s = self._clock.elapsed_s()
        sent = []
        for index, half in enumerate(batch.items):
            topic = topic_name(half.group, LogKind.HALF)
            sending = HalfSending(producing, topic, half.body, half.partition, None, None, False, batch, index, half)
            try:
                if len(half.body) > size_max:
                    raise _too_large(half, size_max)
                unknown = self.targets.examine(half.messages, now_s)
            except MessageRejectedError as error:
                sending.not_found(error)
                continue
            if unknown or half.group not in counts:
                self._defer(sending, half.group, unknown, functools.partial(self._send_deferred, sending))
            elif self._send_half(sending):
                sent.append(sending)
        producing.watch(HALVES, sent, now_s + self._options.delivery_timeout_s)

    def release(self, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        """Publish the targets of each item, or its parked record; ops follow their confirmations, or go with them."""
        if self.lane is not None:
            self._release_together(self.lane, batch, claim)
            return
        deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
        counts = self._control.partition_counts
        started = []
        for index, resolution in enumerate(batch.items):
            targets, group = resolution.targets, resolution.half.group
            item = Release(self, batch, index, resolution, len(targets) + bool(resolution.parked))
            if group in counts:
                self._start(item)
                started.append(item)
            else:
                self._defer(item, group, [], functools.partial(self._start_deferred, item))
        self._producing.watch(RELEASES, started, deadline_s)
        self.ops.flush_urgent()

    def _release_together(self, lane: TransactionLane, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        ready: list[Entry] = []
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            finish = functools.partial(batch.settle, index)
            entry = Entry(half, resolution.op, claim, finish, resolution)
            topics = self.targets.unknown(half.messages[target].topic for target in resolution.targets)
            if topics or half.group not in self._control.partition_counts:
                self._defer(entry, half.group, topics, functools.partial(lane.put, [entry]), deadline_s)
            else:
                ready.append(entry)
        if ready:
            self._producing.watch(IN_TRANSACTIONS, ready, deadline_s)
            lane.put(ready)

    def mark(
        self, group: str, partition: int, op: Op, stored: Callable[[], None], claim: KafkaClaim | None = None
    ) -> Future[Outcome]:
        """Append a CLAIM or TICK behind the ops queued so far; *stored* is called before the Future is resolved."""
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        marking = Marking(stored)
        lane, item = self.lane, cast("Any", marking)
        if lane is None:
            go = functools.partial(self.ops.mark, group, partition, op, marking.settle)
        else:
            item = Entry((group, partition), op, claim, marking.settle)
            go = functools.partial(lane.put, [item])
        if group in self._control.partition_counts:
            self._producing.watch(MARKS, [item], deadline_s)
            go()
        else:
            self._defer(item, group, [], go, deadline_s)
        return marking.future

    def queue_op(self, item: Release) -> None:
        """Every target is confirmed: write the op."""
        resolution = item.resolution
        if resolution.op is None:
            item.settle(DURABLE)
            return
        half = resolution.half
        settle = item.settle if resolution.flush else None
        error = self.ops.put(half.group, half.partition, resolution.op, settle)
        if error is not None:
            item.settle(Outcome(Status.REFUSED, error))
        elif settle is None:
            item.settle(DURABLE)

    # -- halves -----------------------------------------------------------------------------------------------------

    def _send_half(self, sending: HalfSending) -> bool:
        """Hand a half over; returns whether the client took it."""
        sending.is_sent = True
        try:
            self._producing.send(sending)
        except TxcoreError as error:
            sending.not_found(error)
            return False
        return True

    def _send_deferred(self, sending: HalfSending) -> None:
        """Go on once the targets were asked for; on the thread that polls, as an item may have expired meanwhile."""
        if sending.is_done:
            return
        try:
            self.targets.examine(sending.half.messages, self._clock.elapsed_s())
        except MessageRejectedError as error:
            sending.not_found(error)
        else:
            self._send_half(sending)

    # -- releases ---------------------------------------------------------------------------------------------------

    def _start(self, item: Release) -> None:
        resolution = item.resolution
        half = resolution.half
        if not item.left:
            self.queue_op(item)
            return
        producing = self._producing
        if resolution.parked:
            topic = topic_name(half.group, LogKind.PARKED)
            self._publish(
                TargetSend(
                    producing,
                    topic,
                    resolution.parked,
                    half.partition,
                    None,
                    None,
                    is_alone=False,
                    release=item,
                    index=PARKED_INDEX,
                )
            )
        for index in resolution.targets:
            message = half.messages[index]
            topic = message.topic
            headers = target_headers(
                half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
            )
            is_alone = self.targets.is_small(topic)
            self._publish(
                TargetSend(producing, topic, message.body, ANY_PARTITION, message.key, headers, is_alone, item, index)
            )

    def _start_deferred(self, item: Release) -> None:
        if not item.is_done:
            self._start(item)

    def _publish(self, record: TargetSend) -> None:
        try:
            self._producing.send(record)
        except TxcoreError as error:
            # Nobody refused it; the broker was not asked.
            self._producing.call(functools.partial(record.release.failed, Outcome(Status.UNKNOWN, error)))

    # -- what must be looked up first ---------------------------------------------------------------------------------

    def _defer(
        self, item: Any, group: str, topics: list[str], go: Callable[[], None], deadline_s: float | None = None
    ) -> None:
        """Ask for *group* and *topics*, then *go* on the thread that polls; REFUSED when one of them is not there."""
        with self._lock:
            if self._deferred_count >= self._options.queue_max:
                item.not_found(BusyError(f"{self._deferred_count} items wait for news of their topics already"))
                return
            self._deferred_count += 1
        if deadline_s is None:
            deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
        self._producing.watch(f"deferred {type(item).__name__}", [item], deadline_s)

        def finish(error: TxcoreError | None) -> None:
            with self._lock:
                self._deferred_count -= 1
            if error is None:
                go()
            else:
                item.not_found(error)

        def look_up() -> None:
            error: TxcoreError | None = None
            try:
                self._control.partition_count(group)
                if topics:
                    self.targets.look_up(topics)
            except TxcoreError as raised:
                error = raised
            self._producing.call(functools.partial(finish, error))

        self._worker.submit(look_up)


@functools.lru_cache(maxsize=16)
def _stored_at(at_ms: int) -> Outcome:
    """Return one outcome for all that was appended in the same millisecond, which is most of a batch."""
    return Outcome(Status.DURABLE, appended_ms=at_ms)


def _too_large(half: HalfRecord, size_max: int) -> MessageRejectedError:
    return MessageRejectedError(
        f"the transaction's messages have {len(half.body)} bytes together; this backend takes {size_max}",
        topic=half.messages[0].topic if half.messages else "",
        reason="size",
    )
