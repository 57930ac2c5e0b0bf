"""Halves and releases as records: the targets first, each confirmed; then the op."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

import msgspec

from txcore.clock import Clock
from txcore.errors import BackendUnavailableError, BusyError, MessageRejectedError, TxcoreError
from txcore.port import Batch
from txcore.records import DURABLE, HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import target_headers
from txcore_kafka.codec import as_sent, is_missing
from txcore_kafka.control import Control
from txcore_kafka.op_merging import OpMerger
from txcore_kafka.options import Options, topic_name
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.presence import Presence
from txcore_kafka.producing import ANY_PARTITION, Producing
from txcore_kafka.sendings import PARKED_INDEX, HalfSending, Marking, Question, Release, TargetSend
from txcore_kafka.targets import Targets
from txcore_kafka.threads import Worker
from txcore_kafka.transactions import Entry, TransactionLane

HALVES: Final = "halves"
RELEASES: Final = "releases"
MARKS: Final = "marks"
IN_TRANSACTIONS: Final = "in transactions"
QUESTIONS: Final = "questions"


class Releaser:
    """The part of the backend that turns batches into records for the client."""

    def __init__(
        self,
        options: Options,
        producing: Producing,
        control: Control,
        targets: Targets,
        presence: Presence,
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
        self.presence = presence
        self.ops = OpMerger(producing, clock)
        self.lane: TransactionLane | None = None  #: publishes releases and marks in transactions, unless it is None
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
        """Publish the targets of each item, or its parked record; its op comes after these, or in one transaction."""
        if self.lane is not None:
            self._release_together(self.lane, batch, claim)
            return
        deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
        counts = self._control.partition_counts
        started = []
        for index, resolution in enumerate(batch.items):
            targets, group = resolution.targets, resolution.half.group
            item = Release(self, batch, index, resolution, len(targets) + bool(resolution.parked))
            messages = resolution.half.messages
            doubtful = self.presence.doubtful([messages[target].topic for target in targets])
            if group in counts and not doubtful:
                self._start(item)
                started.append(item)
            else:
                self._defer(item, group, [], functools.partial(self._start_deferred, item), sought=doubtful)
        self._producing.watch(RELEASES, started, deadline_s)
        self.ops.flush_urgent()

    def _release_together(self, lane: TransactionLane, batch: Batch[Resolution], claim: KafkaClaim | None) -> None:
        deadline_s = self._clock.elapsed_s() + self._options.release_timeout_s
        ready: list[Entry] = []
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            finish = functools.partial(self._finish_together, batch, index)
            entry = Entry(half, resolution.op, claim, finish, resolution)
            topics = self.targets.unknown(half.messages[target].topic for target in resolution.targets)
            if topics or half.group not in self._control.partition_counts:
                self._defer(entry, half.group, topics, functools.partial(lane.put, [entry]), deadline_s)
            else:
                ready.append(entry)
        if ready:
            self._producing.watch(IN_TRANSACTIONS, ready, deadline_s)
            lane.put(ready)

    def _finish_together(self, batch: Batch[Resolution], index: int, outcome: Outcome) -> None:
        """Settle an item of a transaction; a missing topic is a refusal only if the broker itself reports it."""
        refusal = outcome.error
        if isinstance(refusal, MessageRejectedError) and refusal.reason == "topic":

            def take(answer: Outcome) -> None:
                batch.settle(index, msgspec.structs.replace(answer, missing=outcome.missing))

            self._ask(refusal.topic, take)
        else:
            batch.settle(index, outcome)

    def mark(
        self, group: str, partition: int, op: Op, stored: Callable[[], None], claim: KafkaClaim | None = None
    ) -> Future[Outcome]:
        """Append a CLAIM or TICK after the ops queued so far; *stored* is called before the Future is resolved."""
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
        """Queue the op of *item*, whose targets are all confirmed."""
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
            refusal = self.presence.refusal(topic)
            if refusal is not None:
                producing.call(functools.partial(item.failed, Outcome(Status.REFUSED, refusal)))
                continue
            headers = target_headers(
                half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
            )
            if message.headers:
                headers = as_sent(headers)
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
            if is_missing(error.__cause__) and record.index != PARKED_INDEX:
                self.explain(record)
            else:
                # This is no refusal: the broker was not asked.
                self._producing.call(functools.partial(record.release.failed, Outcome(Status.UNKNOWN, error)))

    def explain(self, record: TargetSend) -> None:
        """Ask the broker for a topic that the client does not know: REFUSED if it is gone, UNKNOWN otherwise."""
        self._ask(record.topic, record.release.failed)

    def _ask(self, topic: str, take: Callable[[Outcome], None]) -> None:
        """Ask whether *topic* exists; *take* receives a record's outcome, on the thread that polls."""
        self.targets.forget(topic)
        question = Question(take)
        self._producing.watch(QUESTIONS, [question], self._clock.elapsed_s() + self._options.request_timeout_s)

        def answered(answer: Future[None]) -> None:
            error = cast("TxcoreError | None", answer.exception()) or self.presence.refusal(topic)
            if isinstance(error, MessageRejectedError):
                outcome = Outcome(Status.REFUSED, error)
            else:
                text = f"the client does not know topic {topic!r} yet, and the broker does not say that it is gone"
                outcome = Outcome(Status.UNKNOWN, error or BackendUnavailableError(text))
            self._producing.call(functools.partial(question.settle, outcome))

        self.presence.seek([topic]).add_done_callback(answered)

    # -- look-ups before a release ------------------------------------------------------------------------------------

    def _defer(
        self,
        item: Any,
        group: str,
        topics: list[str],
        go: Callable[[], None],
        deadline_s: float | None = None,
        sought: Sequence[str] = (),
    ) -> None:
        """Ask for *group* and *topics*, then call *go* on the thread that polls; fail *item* if one of them is missing.

        Topics in *sought* may be missing: `go` finds the answer in `presence.refusal`.
        """
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

        def answered(answer: Future[None]) -> None:
            self._producing.call(functools.partial(finish, cast("TxcoreError | None", answer.exception())))

        def look_up() -> None:
            self._control.partition_count(group)
            if topics:
                self.targets.look_up(topics)

        def looked_up(answer: Future[None]) -> None:
            if sought and answer.exception() is None:
                answer = self.presence.seek(sought)
            answer.add_done_callback(answered)

        self._worker.submit(look_up).add_done_callback(looked_up)


def _too_large(half: HalfRecord, size_max: int) -> MessageRejectedError:
    return MessageRejectedError(
        f"the transaction's messages have {len(half.body)} bytes together; this backend takes {size_max}",
        topic=half.messages[0].topic if half.messages else "",
        reason="size",
    )
