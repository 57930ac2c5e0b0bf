"""Halves, releases and marks as messages: the targets first, the op after their confirmation; ops are merged.

All of it runs on the publishing loop's thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from txcore.backends.batch_progress import RECORD_BITS, ReleaseProgress, record_counts
from txcore.clock import Clock
from txcore.errors import BackendUnavailableError, ConfigError, MessageRejectedError, TxcoreError
from txcore.port import Batch
from txcore.records import DURABLE, HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import encode_ops, target_headers, target_id
from txcore_rabbitmq.coalescing import target_properties
from txcore_rabbitmq.codec import Target, check_headers, parse_topic
from txcore_rabbitmq.connection import LoopThread
from txcore_rabbitmq.lanes import End, Sending, log_lane, target_lane
from txcore_rabbitmq.names import log_name
from txcore_rabbitmq.options import Options
from txcore_rabbitmq.publishing import Publisher
from txcore_rabbitmq.targets import TargetChecks

MERGED_OP_COUNT_MAX: Final = 64
"""Most ops in one record: about 4 KB, as in RocketMQ."""
OP_TEXT_MAX: Final = 512
"""Longest free text, in characters, of an op that joins ops queued before it."""

Settle = Callable[[Outcome], None]


class OpQueue:
    """The ops of one partition that wait to share a record."""

    __slots__ = ("is_soon", "ops", "settles")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.settles: list[Settle] = []
        self.is_soon = False


class Releases(ReleaseProgress, eq=False, kw_only=True):
    """Releases under way; the op of each is queued after the confirmations of its records."""

    releaser: Releaser
    deadline_s: float

    def queue_ops(self, indices: Sequence[int]) -> None:
        """See `ReleaseProgress.queue_ops`."""
        for index in indices:
            resolution, settle = self.items[index], functools.partial(self.end, (index,))
            if resolution.op is not None:
                half = resolution.half
                self.releaser.queue_op(half.group, half.partition, resolution.op, settle if resolution.flush else None)
            if resolution.op is None or not resolution.flush:
                settle(DURABLE)


class Releaser:
    """The part of the backend that turns batches into messages for the publisher."""

    def __init__(
        self, options: Options, loop: LoopThread, publisher: Publisher, checks: TargetChecks, clock: Clock
    ) -> None:
        self._options = options
        self._loop = loop
        self._publisher = publisher
        self._checks = checks
        self._clock = clock
        self._queues: dict[tuple[str, int], OpQueue] = {}
        self._groups: dict[str, int] = {}
        self._topics: dict[str, Target] = {}

    def append(self, batch: Batch[HalfRecord], deadline_s: float) -> None:
        """Store halves, each after its targets are known to exist."""
        for index, half in enumerate(batch.items):
            end = functools.partial(_settle_half, batch, index)
            try:
                unknown = self._examine(half)
            except MessageRejectedError as error:
                end(Status.REFUSED, error)
                continue
            stream = log_name(half.group, LogKind.HALF, half.partition)
            sending = Sending(log_lane(half.group, LogKind.HALF), stream, half.body, deadline_s, end)
            if not self.knows(half.group, half.partition):
                self._publisher.watch(sending)
                self._send_when_known(sending, half, unknown)
            elif unknown:
                self._publisher.watch(sending)
                self._send_when_found(sending, unknown)
            else:
                self._publisher.send(sending)

    def know(self, group: str, partition_count: int) -> None:
        """Remember that the group's streams exist; callable from any thread."""
        self._groups[group] = partition_count

    def knows(self, group: str, partition: int) -> bool:
        """Return whether the partition's streams are known to exist; callable from any thread."""
        return partition < self._groups.get(group, 0)

    def release(self, batch: Batch[Resolution], deadline_s: float) -> None:
        """Publish the targets of each item, or its parked record; its op comes after their confirmations."""
        items = [*batch.items]
        releases = Releases(batch, items, left=record_counts(items), releaser=self, deadline_s=deadline_s)
        for index, resolution in enumerate(items):
            half = resolution.half
            if self.knows(half.group, half.partition) or not resolution.targets:
                self._begin(releases, index)
            else:
                self._begin_when_known(releases, index)

    def _begin(self, releases: Releases, index: int) -> None:
        resolution, first = releases.items[index], index << RECORD_BITS
        half, ended = resolution.half, releases.record_ended
        if not releases.left[index]:
            releases.queue_ops((index,))
        for number, target in enumerate(resolution.targets, first):
            self._publish_target(releases, number, target)
        if resolution.parked:
            stream = log_name(half.group, LogKind.PARKED, half.partition)
            end = functools.partial(ended, first + len(resolution.targets))
            lane = log_lane(half.group, LogKind.PARKED)
            self._publisher.send(Sending(lane, stream, resolution.parked, releases.deadline_s, end))

    def _send_when_known(self, sending: Sending, half: HalfRecord, unknown: Sequence[Target]) -> None:
        def found(error: TxcoreError | None) -> None:
            if error is not None:
                sending.settle(Status.REFUSED, _no_group(half) if isinstance(error, MessageRejectedError) else error)
            elif unknown:
                self._send_when_found(sending, unknown)
            else:
                self._publisher.start(sending)

        self._checks.ask([Target("", sending.routing_key)], found)

    def _begin_when_known(self, releases: Releases, index: int) -> None:
        """Publish after the group's op stream was found; refuse the item otherwise, as its op could not be written."""
        half = releases.items[index].half
        op_stream = Target("", log_name(half.group, LogKind.OP, half.partition))

        def ended(_status: Status, error: TxcoreError | None) -> None:
            releases.not_found(index, error or BackendUnavailableError("no answer"))

        lane = log_lane(half.group, LogKind.OP)
        gate = Sending(lane, op_stream.routing_key, b"", releases.deadline_s, ended)

        def found(error: TxcoreError | None) -> None:
            if gate.end is None:
                return
            gate.end = None
            if error is None:
                self._begin(releases, index)
            else:
                releases.not_found(index, _no_group(half) if isinstance(error, MessageRejectedError) else error)

        self._publisher.watch(gate)
        self._checks.ask([op_stream], found)

    def mark(self, group: str, partition: int, op: Op, future: Future[Outcome], deadline_s: float) -> None:
        """Append *op* in a record of its own, after the ops queued before it."""
        self.flush(group, partition)
        self._send_ops(group, partition, [op], [future.set_result], deadline_s)

    def queue_op(self, group: str, partition: int, op: Op, settle: Settle | None) -> None:
        """Queue *op* to share a record with others; with *settle* it waits only until the loop's next turn."""
        queue = self._queues.setdefault((group, partition), OpQueue())
        if len(op.reason) + len(op.by) > OP_TEXT_MAX:
            self.flush(group, partition)
        queue.ops.append(op)
        if settle is not None:
            queue.settles.append(settle)
        if len(queue.ops) >= MERGED_OP_COUNT_MAX:
            self.flush(group, partition)
        elif settle is not None and not queue.is_soon:
            queue.is_soon = True
            self._loop.later(0, functools.partial(self.flush, group, partition))
        elif len(queue.ops) == 1:
            self._loop.later(self._options.merge_delay_s, functools.partial(self.flush, group, partition))
        if self._publisher.is_closed:
            self.flush(group, partition)

    def flush(self, group: str, partition: int) -> None:
        """Send a partition's queued ops now."""
        queue = self._queues.get((group, partition))
        if queue is not None and queue.ops:
            ops, settles, queue.ops, queue.settles, queue.is_soon = queue.ops, queue.settles, [], [], False
            deadline_s = self._clock.elapsed_s() + self._options.delivery_timeout_s
            self._send_ops(group, partition, ops, settles, deadline_s)

    def flush_all(self) -> None:
        """Send all queued ops now."""
        for group, partition in list(self._queues):
            self.flush(group, partition)

    def _send_ops(
        self, group: str, partition: int, ops: Sequence[Op], settles: Sequence[Settle], deadline_s: float
    ) -> None:
        def ended(status: Status, error: TxcoreError | None) -> None:
            outcome = DURABLE if status is Status.DURABLE else Outcome(status, error)
            for settle in settles:
                settle(outcome)

        lane, stream = log_lane(group, LogKind.OP), log_name(group, LogKind.OP, partition)
        self._publisher.send(Sending(lane, stream, encode_ops(ops), deadline_s, ended, is_urgent=True))

    def _publish_target(self, releases: Releases, number: int, index: int) -> None:
        resolution = releases.items[number >> RECORD_BITS]
        half = resolution.half
        end = functools.partial(releases.record_ended, number)
        message = half.messages[index]
        target = self._target(message.topic)
        message_id = target_id(half.transaction_id, index)
        headers = target_headers(half.group, half.transaction_id, index, message, resolution.by, key_as_header=True)
        self._publisher.send(
            Sending(
                target_lane(target.exchange),
                target.routing_key,
                message.body,
                releases.deadline_s,
                self._unreached_is_unknown(target, end),
                properties=target_properties(headers, message_id),
                message_id=message_id,
            )
        )

    def _unreached_is_unknown(self, target: Target, end: End) -> End:
        """Turn a refusal that is not the broker's own answer into UNKNOWN, as only the broker's may lead to parking."""

        def ended(status: Status, error: TxcoreError | None) -> None:
            if status is Status.REFUSED:
                self._checks.forget(target)
                if not isinstance(error, MessageRejectedError):
                    status = Status.UNKNOWN
            end(status, error)

        return ended

    def _examine(self, half: HalfRecord) -> list[Target]:
        """Return the targets that the broker must be asked for.

        Raises:
            MessageRejectedError: the half is too large, or one of its messages cannot be carried.
        """
        size, size_max = len(half.body), self._options.body_size_max
        if size > size_max:
            raise MessageRejectedError(
                f"the transaction's messages have {size} bytes together; this backend takes {size_max}",
                topic=half.messages[0].topic if half.messages else "",
                reason="size",
            )
        unknown = []
        for message in half.messages:
            if message.headers or message.key:
                check_headers(message)
            target = self._target(message.topic)
            if not self._checks.is_known(target):
                unknown.append(target)
        return unknown

    def _target(self, topic: str) -> Target:
        target = self._topics.get(topic)
        if target is None:
            target = parse_topic(topic)
            if len(self._topics) < MERGED_OP_COUNT_MAX * 64:
                self._topics[topic] = target
        return target

    def _send_when_found(self, sending: Sending, unknown: Sequence[Target]) -> None:
        def found(error: TxcoreError | None) -> None:
            if error is not None:
                sending.settle(Status.REFUSED, error)
            else:
                self._publisher.start(sending)

        self._checks.ask(unknown, found)


def _no_group(half: HalfRecord) -> ConfigError:
    return ConfigError(f"group {half.group!r} has no partition {half.partition} here; call ensure_group", key="group")


def _settle_half(batch: Batch[HalfRecord], index: int, status: Status, error: TxcoreError | None) -> None:
    batch.settle(index, DURABLE if status is Status.DURABLE else Outcome(status, error))
