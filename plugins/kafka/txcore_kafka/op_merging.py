"""Op records: the ops of one partition wait briefly for each other and share a record; marks come after them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError

from txcore.clock import Clock
from txcore.errors import BusyError, TxcoreError
from txcore.records import DURABLE, LogKind, Op, Outcome, Status
from txcore.wire import encode_ops
from txcore_kafka.codec import delivery_outcome
from txcore_kafka.options import topic_name
from txcore_kafka.producing import IDLE_POLL_S, NOT_AGAIN, Producing, Record

RECORD_BYTES: Final = 4_096
"""Approximate size, in bytes, at which a merged record is sent; as in RocketMQ."""
OP_BYTES: Final = 48
"""Size of an op without its texts, in bytes."""
MERGE_BUSY_S: Final = 0.005
MERGE_IDLE_S: Final = 0.05
BUSY_COUNT: Final = 8
"""Least number of ops in a partition's last record that makes the partition busy."""
QUEUED_MAX: Final = 100_000

Settle = Callable[[Outcome], None]


class OpsRecord(Record):
    """One op record under way."""

    settles: Sequence[Settle]

    def stored(self, message: Any) -> None:  # noqa: ARG002
        """See `Record.stored`."""
        for settle in self.settles:
            settle(DURABLE)

    def failed(self, error: KafkaError) -> None:
        """See `Record.failed`."""
        outcome = delivery_outcome(error, self.topic)
        for settle in self.settles:
            settle(outcome)


class _Queue:
    """The ops of one partition that wait to share a record."""

    __slots__ = ("due_s", "last_count", "ops", "partition", "settles", "size", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.ops: list[Op] = []
        self.settles: list[Settle] = []
        self.size = 0
        self.due_s = 0.0
        self.last_count = 0


class OpMerger:
    """All queues of one backend. Thread safe; records are handed to the client under the lock, which keeps order."""

    def __init__(self, producing: Producing, clock: Clock) -> None:
        self._producing = producing
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._waiting: dict[_Queue, None] = {}
        self._due_s = 0.0  #: no queue is due before
        self._count = 0

    def put(self, group: str, partition: int, op: Op, settle: Settle | None) -> TxcoreError | None:
        """Queue *op*; with *settle* the next `flush_urgent` sends it, and its outcome is reported.

        Returns an error if too many ops wait already; then *op* is not queued.
        """
        with self._lock:
            if self._count >= QUEUED_MAX:
                return BusyError(f"{QUEUED_MAX} ops wait for the broker already")
            queue = self._queue(group, partition)
            if not queue.ops:
                queue.due_s = self._clock.elapsed_s() + (
                    MERGE_BUSY_S if queue.last_count >= BUSY_COUNT else MERGE_IDLE_S
                )
                self._due_s = min(self._due_s, queue.due_s)
                self._waiting[queue] = None
                self._producing.wake()
            self._count += 1
            queue.ops.append(op)
            queue.size += OP_BYTES + len(op.by) + len(op.reason)
            if settle is not None:
                queue.settles.append(settle)
                queue.due_s = self._due_s = 0.0
            if queue.size < RECORD_BYTES:
                return None
            refused = self._send(queue)
        _settle_all(refused)
        return None

    def mark(self, group: str, partition: int, op: Op, settle: Settle) -> None:
        """Send *op* in a record of its own, after all ops queued for the partition."""
        with self._lock:
            queue = self._queue(group, partition)
            refused = self._send(queue) if queue.ops else []
            if queue.ops:  # The client has no room now.
                refused.append((settle, BusyError("too many records wait for the broker")))
            else:
                try:
                    self._producing.send(self._record(queue, [op], [settle]))
                except TxcoreError as error:
                    refused.append((settle, error))
        _settle_all(refused)

    def flush_due(self, now_s: float) -> float:
        """Send the queues that are due; return the seconds until the next call, `NOT_AGAIN` if no op waits."""
        if not self._waiting:
            return NOT_AGAIN
        if now_s < self._due_s:
            return min(IDLE_POLL_S, self._due_s - now_s)
        refused = []
        pause_s = IDLE_POLL_S
        with self._lock:
            due_s = NOT_AGAIN
            for queue in list(self._waiting):
                if queue.due_s <= now_s:
                    refused += self._send(queue)
                    if queue.ops:
                        pause_s = min(pause_s, MERGE_BUSY_S)
                if queue.ops:
                    due_s = min(due_s, queue.due_s)
            self._due_s = due_s
        _settle_all(refused)
        return max(0.0, min(pause_s, due_s - now_s)) if due_s > now_s else pause_s

    def flush_urgent(self) -> None:
        """Send the queues in which a caller waits for an answer."""
        self.flush_due(0.0)

    def flush_all(self) -> bool:
        """Send all queues; return whether none is left."""
        self.flush_due(float("inf"))
        return not self._waiting

    def _queue(self, group: str, partition: int) -> _Queue:
        queue = self._queues.get((group, partition))
        if queue is None:
            queue = self._queues[group, partition] = _Queue(topic_name(group, LogKind.OP), partition)
        return queue

    def _record(self, queue: _Queue, ops: Sequence[Op], settles: Sequence[Settle]) -> OpsRecord:
        value = encode_ops(ops)
        return OpsRecord(
            self._producing, queue.topic, value, queue.partition, None, None, is_alone=False, settles=settles
        )

    def _send(self, queue: _Queue) -> list[tuple[Settle, TxcoreError]]:
        """Hand a queue's ops to the client; they stay queued if the client has no room."""
        record = self._record(queue, queue.ops, queue.settles)
        refused: list[tuple[Settle, TxcoreError]] = []
        try:
            self._producing.send(record)
        except BusyError:
            return []
        except TxcoreError as error:
            refused = [(settle, error) for settle in queue.settles]
        self._count -= len(queue.ops)
        queue.last_count = len(queue.ops)
        queue.ops, queue.settles, queue.size = [], [], 0
        self._waiting.pop(queue, None)
        return refused


def _settle_all(refused: Sequence[tuple[Settle, TxcoreError]]) -> None:
    for settle, error in refused:
        settle(Outcome(Status.REFUSED, error))
