"""Halves and releases as records: the targets first, each confirmed; then the op."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, cast

import msgspec

from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError
from txcore.port import Batch
from txcore.records import HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import target_headers
from txcore_kafka.codec import as_sent, is_missing
from txcore_kafka.control import Control
from txcore_kafka.entries import Entry
from txcore_kafka.lanes import Lanes
from txcore_kafka.lookups import LookUps
from txcore_kafka.op_merging import OpMerger
from txcore_kafka.options import Options, topic_name
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.producing import ANY_PARTITION, Producing
from txcore_kafka.sendings import PARKED_INDEX, HalfSending, Marking, Release, TargetSend
from txcore_kafka.transactions import TransactionLane

HALVES: Final = "halves"
RELEASES: Final = "releases"
MARKS: Final = "marks"
IN_TRANSACTIONS: Final = "in transactions"


class Releaser:
    """The part of the backend that turns batches into records for the client."""

    def __init__(
        self,
        options: Options,
        producing: Producing,
        control: Control,
        look_ups: LookUps,
        clock: Clock,
    ) -> None:
        self._options = options
        self._producing = producing
        self._control = control
        self._look_ups = look_ups
        self._targets = look_ups.targets
        self._presence = look_ups.presence
        self._clock = clock
        self.ops = OpMerger(producing, clock)
        self.lanes: Lanes | None = None  #: publish releases and marks in transactions, unless it is None
        producing.on_turn = self.ops.flush_due
        producing.on_stop = self.ops.flush_all

    def append(self, batch: Batch[HalfRecord]) -> None:
        """Store halves, each after its group and targets are known."""
        counts, size_max, producing = self._control.partition_counts, self._options.body_size_max, self._producing
        now_s = self._clock.elapsed_s()
        sent = []
        for index, half in enumerate(batch.items):
            topic = topic_name(half.group, LogKind.HALF)
            sending = HalfSending(producing, topic, half.body, half.partition, None, None, False, batch, index, half)
            try:
                if len(half.body) > size_max:
                    raise _too_large(half, size_max)
                unknown = self._targets.examine(half.messages, now_s)
            except MessageRejectedError as error:
                sending.not_found(error)
                continue
            if unknown or half.group not in counts:
                self._look_ups.defer(sending, half.group, unknown, functools.partial(self._send_deferred, sending))
            elif self._send_half(sending):
                sent.append(sending)
        producing.watch(HALVES, sent, now_s + self._options.delivery_timeout_s)

    def release(self, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        """Publish the targets of each item, or its parked record; its op comes after these, or in one transaction."""
        if self.lanes is not None:
            self._release_together(self.lanes, batch, claim)
            return
        deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
        counts = self._control.partition_counts
        started = []
        for index, resolution in enumerate(batch.items):
            targets, group = resolution.targets, resolution.half.group
            item = Release(self.ops, self._look_ups, batch, index, resolution, len(targets) + bool(resolution.parked))
            messages = resolution.half.messages
            doubtful = self._presence.doubtful([messages[target].topic for target in targets])
            if group in counts and not doubtful:
                self._start(item)
                started.append(item)
            else:
                self._look_ups.defer(item, group, [], functools.partial(self._start_deferred, item), sought=doubtful)
        self._producing.watch(RELEASES, started, deadline_s)
        self.ops.flush_urgent()

    def _release_together(self, lanes: Lanes, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        ready: defaultdict[TransactionLane, list[Entry]] = defaultdict(list)
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            finish = functools.partial(self._finish_together, batch, index)
            entry, lane = Entry(half, resolution.op, claim, finish, resolution), lanes.of(half.group)
            topics = self._targets.unknown(half.messages[target].topic for target in resolution.targets)
            if topics or half.group not in self._control.partition_counts:
                self._look_ups.defer(entry, half.group, topics, functools.partial(lane.put, [entry]), deadline_s)
            else:
                ready[lane].append(entry)
        for lane, entries in ready.items():
            self._producing.watch(IN_TRANSACTIONS, entries, deadline_s)
            lane.put(entries)

    def _finish_together(self, batch: Batch[Resolution], index: int, outcome: Outcome) -> None:
        """Settle an item of a transaction; a missing topic is a refusal only if the broker itself reports it."""
        refusal = outcome.error
        if isinstance(refusal, MessageRejectedError) and refusal.reason == "topic":

            def take(answer: Outcome) -> None:
                batch.settle(index, msgspec.structs.replace(answer, missing=outcome.missing))

            self._look_ups.ask(refusal.topic, take)
        else:
            batch.settle(index, outcome)

    def mark(
        self, group: str, partition: int, op: Op, stored: Callable[[], None], claim: KafkaClaim | None = None
    ) -> Future[Outcome]:
        """Append a CLAIM or TICK after the ops queued so far; *stored* is called before the Future is resolved."""
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        marking = Marking(stored)
        item = cast("Any", marking)
        if self.lanes is None:
            go = functools.partial(self.ops.mark, group, partition, op, marking.settle)
        else:
            item = Entry((group, partition), op, claim, marking.settle)
            go = functools.partial(self.lanes.of(group).put, [item])
        if group in self._control.partition_counts:
            self._producing.watch(MARKS, [item], deadline_s)
            go()
        else:
            self._look_ups.defer(item, group, [], go, deadline_s)
        return marking.future

    # -- halves -----------------------------------------------------------------------------------------------------

    def _send_half(self, sending: HalfSending) -> bool:
        """Hand a half to the client; return whether the client accepted it."""
        sending.is_sent = True
        try:
            self._producing.send(sending)
        except TxcoreError as error:
            sending.not_found(error)
            return False
        return True

    def _send_deferred(self, sending: HalfSending) -> None:
        """Send a half after its targets were asked for, unless it has expired; runs on the thread that polls."""
        if sending.is_done:
            return
        try:
            self._targets.examine(sending.half.messages, self._clock.elapsed_s())
        except MessageRejectedError as error:
            sending.not_found(error)
        else:
            self._send_half(sending)

    # -- releases ---------------------------------------------------------------------------------------------------

    def _start(self, item: Release) -> None:
        resolution = item.resolution
        half = resolution.half
        if not item.left:
            item.queue_op()
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
            refusal = self._presence.refusal(topic)
            if refusal is not None:
                producing.call(functools.partial(item.failed, Outcome(Status.REFUSED, refusal)))
                continue
            headers = target_headers(
                half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
            )
            if message.headers:
                headers = as_sent(headers)
            is_alone = self._targets.is_small(topic)
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
            if is_missing(error.__cause__) and record.index != PARKED_INDEX:
                self._look_ups.ask(record.topic, record.release.failed)
            else:
                # This is no refusal: the broker was not asked.
                self._producing.call(functools.partial(record.release.failed, Outcome(Status.UNKNOWN, error)))


def _too_large(half: HalfRecord, size_max: int) -> MessageRejectedError:
    return MessageRejectedError(
        f"the transaction's messages have {len(half.body)} bytes together; this backend takes {size_max}",
        topic=half.messages[0].topic if half.messages else "",
        reason="size",
    )
