"""Halves and releases in terms of records: targets first, each confirmed; then the op."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, cast

from confluent_kafka import KafkaError

from txcore.clock import Clock
from txcore.errors import BusyError, MessageRejectedError, TxcoreError, UsageError
from txcore.port import Batch
from txcore.records import DURABLE, HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import target_headers
from txcore_kafka.codec import delivery_outcome, header_list
from txcore_kafka.control import Control
from txcore_kafka.ops import OpMerger
from txcore_kafka.options import Options, topic_name
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.producing import Producing, Record, Waiting
from txcore_kafka.targets import Targets
from txcore_kafka.threads import Worker, new_future
from txcore_kafka.transactions import Entry, TransactionLane

LOG_APPEND_TIME: Final = 2
PARKED_INDEX: Final = -1


class HalfSending(Waiting):
    """One half under way: perhaps waiting for news of its targets, then for its acknowledgement."""

    __slots__ = ("batch", "half", "index", "is_sent")

    def __init__(self, batch: Batch[HalfRecord], index: int, half: HalfRecord, deadline_s: float) -> None:
        super().__init__(deadline_s)
        self.batch = batch
        self.index = index
        self.half = half
        self.is_sent = False

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        if not self.is_done:
            self.is_done = True
            self.batch.settle(self.index, outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`; a half that was never handed over is certainly not stored."""
        self.settle(Outcome(Status.UNKNOWN if self.is_sent else Status.REFUSED, error))

    def not_found(self, error: TxcoreError) -> None:
        """End before anything was handed over."""
        self.settle(Outcome(Status.REFUSED, error))


class HalfAppend(Record):
    """A half in the client's hands."""

    __slots__ = ("sending",)
    sending: HalfSending

    def stored(self, message: Any) -> None:
        """See `Record.stored`; the broker's time comes with its acknowledgement."""
        kind, at_ms = message.timestamp()
        self.sending.settle(Outcome(Status.DURABLE, appended_ms=at_ms) if kind == LOG_APPEND_TIME else DURABLE)

    def failed(self, error: KafkaError) -> None:
        """See `Record.failed`."""
        self.sending.settle(delivery_outcome(error, self.topic))


class Release(Waiting):
    """One resolution under way: counts its targets down, then queues its op. Ends on the poll thread."""

    __slots__ = ("batch", "error", "index", "left", "missing", "releaser", "resolution", "status")

    def __init__(
        self, releaser: Releaser, batch: Batch[Resolution], index: int, resolution: Resolution, deadline_s: float
    ) -> None:
        super().__init__(deadline_s)
        self.releaser = releaser
        self.batch = batch
        self.index = index
        self.resolution = resolution
        self.status = Status.DURABLE
        self.error: TxcoreError | None = None
        self.missing: set[int] = set(resolution.targets)
        self.left = len(resolution.targets) + bool(resolution.parked)

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        if not self.is_done:
            self.is_done = True
            self.batch.settle(self.index, outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`; the op is not written any more."""
        self.settle(Outcome(Status.UNKNOWN, error, missing=tuple(sorted(self.missing))))

    def not_found(self, error: TxcoreError) -> None:
        """End before anything was published: REFUSED when there is no such group, else nobody refused."""
        if isinstance(error, UsageError):
            self.settle(Outcome(Status.REFUSED, error))
        else:
            self.expire(error)

    def confirmed(self, index: int) -> None:
        """One target, or the parked record, is stored."""
        self.missing.discard(index)
        self._one_less()

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
            self.settle(Outcome(self.status, self.error, missing=tuple(sorted(self.missing))))


class TargetSend(Record):
    """A target, or a parked record, in the client's hands."""

    __slots__ = ("index", "release")
    index: int
    release: Release

    def stored(self, message: Any) -> None:  # noqa: ARG002
        """See `Record.stored`."""
        self.release.confirmed(self.index)

    def failed(self, error: KafkaError) -> None:
        """See `Record.failed`."""
        self.release.releaser.targets.forget(self.topic)
        self.release.failed(delivery_outcome(error, self.topic))


class Marking(Waiting):
    """A CLAIM or TICK under way."""

    __slots__ = ("future", "stored")

    def __init__(self, deadline_s: float, stored: Callable[[], None]) -> None:
        super().__init__(deadline_s)
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
        deadline_s = self._deadline_s()
        counts = self._control.partition_counts
        for index, half in enumerate(batch.items):
            sending = HalfSending(batch, index, half, deadline_s)
            try:
                self._check_half_size(half)
                unknown = self.targets.examine(half.messages)
            except MessageRejectedError as error:
                sending.settle(Outcome(Status.REFUSED, error))
                continue
            if unknown or half.group not in counts:
                self._defer(sending, half.group, unknown, functools.partial(self._send_deferred, sending))
            else:
                self._send_half(sending)

    def release(self, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        """Publish the targets of each item, or its parked record; ops follow their confirmations, or go with them."""
        if self.lane is not None:
            self._release_together(self.lane, batch, claim)
            return
        deadline_s = self._deadline_s()
        counts = self._control.partition_counts
        for index, resolution in enumerate(batch.items):
            item = Release(self, batch, index, resolution, deadline_s)
            group = resolution.half.group
            if group not in counts:
                self._defer(item, group, [], functools.partial(self._start_deferred, item))
            else:
                self._start(item)
        self.ops.flush_urgent()

    def _release_together(self, lane: TransactionLane, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        ready: list[Entry] = []
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            finish = functools.partial(batch.settle, index)
            entry = Entry(half, resolution.op, claim, finish, deadline_s, resolution)
            topics = self.targets.unknown(half.messages[target].topic for target in resolution.targets)
            if topics or half.group not in self._control.partition_counts:
                self._defer(entry, half.group, topics, functools.partial(lane.put, [entry]))
            else:
                self._producing.watch(entry)
                ready.append(entry)
        if ready:
            lane.put(ready)

    def mark(
        self, group: str, partition: int, op: Op, stored: Callable[[], None], claim: KafkaClaim | None = None
    ) -> Future[Outcome]:
        """Append a CLAIM or TICK behind the ops queued so far; *stored* is called before the Future is resolved."""
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        marking = Marking(deadline_s, stored)
        lane, item = self.lane, cast("Waiting", marking)
        if lane is None:
            go = functools.partial(self.ops.mark, group, partition, op, marking.settle)
        else:
            item = Entry((group, partition), op, claim, marking.settle, deadline_s)
            go = functools.partial(lane.put, [item])
        if group in self._control.partition_counts:
            self._producing.watch(item)
            go()
        else:
            self._defer(item, group, [], go)
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

    def _send_half(self, sending: HalfSending) -> None:
        half = sending.half
        record = HalfAppend(self._producing, topic_name(half.group, LogKind.HALF), half.body, half.partition)
        record.sending = sending
        sending.is_sent = True
        try:
            self._producing.send(record)
        except TxcoreError as error:
            sending.settle(Outcome(Status.REFUSED, error))
        else:
            self._producing.watch(sending)

    def _send_deferred(self, sending: HalfSending) -> None:
        """Go on once the targets were asked for; on the poll thread, as an item may have expired meanwhile."""
        if sending.is_done:
            return
        try:
            self.targets.examine(sending.half.messages)
        except MessageRejectedError as error:
            sending.settle(Outcome(Status.REFUSED, error))
        else:
            self._send_half(sending)

    def _check_half_size(self, half: HalfRecord) -> None:
        size, size_max = len(half.body), self._options.body_size_max
        if size > size_max:
            raise MessageRejectedError(
                f"the transaction's messages have {size} bytes together; this backend takes {size_max}",
                topic=half.messages[0].topic if half.messages else "",
                reason="size",
            )

    # -- releases ---------------------------------------------------------------------------------------------------

    def _start(self, item: Release) -> None:
        resolution = item.resolution
        half = resolution.half
        if not item.left:
            if resolution.flush and resolution.op is not None:
                self._producing.watch(item)
            self.queue_op(item)
            return
        self._producing.watch(item)
        if resolution.parked:
            self._publish(
                item,
                PARKED_INDEX,
                TargetSend(self._producing, topic_name(half.group, LogKind.PARKED), resolution.parked, half.partition),
            )
        for index in resolution.targets:
            message = half.messages[index]
            headers = target_headers(
                half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
            )
            record = TargetSend(
                self._producing, message.topic, message.body, key=message.key, headers=header_list(headers)
            )
            record.is_alone = self.targets.is_small(message.topic)
            self._publish(item, index, record)

    def _start_deferred(self, item: Release) -> None:
        if not item.is_done:
            self._start(item)

    def _publish(self, item: Release, index: int, record: TargetSend) -> None:
        record.release = item
        record.index = index
        try:
            self._producing.send(record)
        except TxcoreError as error:
            # Nobody refused it; the broker was not asked.
            self._producing.call(functools.partial(item.failed, Outcome(Status.UNKNOWN, error)))

    # -- what must be looked up first ---------------------------------------------------------------------------------

    def _defer(self, item: Any, group: str, topics: list[str], go: Callable[[], None]) -> None:
        """Ask for *group* and *topics*, then *go* on the poll thread; REFUSED when one of them is not there."""
        with self._lock:
            if self._deferred_count >= self._options.queue_max:
                item.not_found(BusyError(f"{self._deferred_count} items wait for news of their topics already"))
                return
            self._deferred_count += 1
        self._producing.watch(item)

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

    def _deadline_s(self) -> float:
        return self._clock.elapsed_s() + self._options.delivery_timeout_s
