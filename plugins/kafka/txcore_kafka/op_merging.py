"""Op records: the ops of one partition wait briefly for each other and share a record; marks come after them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from confluent_kafka import KafkaError

from txcore.clock import Clock
from txcore.columns import ReleaseColumns
from txcore.errors import BusyError, TxcoreError
from txcore.records import DURABLE, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import encode_op, encode_ops, op_record
from txcore_kafka.codec import delivery_outcome
from txcore_kafka.options import topic_name
from txcore_kafka.producing import IDLE_POLL_S, NOT_AGAIN, Producing
from txcore_kafka.reports import OneRecord

OPS_MAX: Final = 64
"""Number of ops with which a merged record is sent: some 4 KB, as in RocketMQ. A batch of commits may add more."""
MERGE_BUSY_S: Final = 0.005
MERGE_IDLE_S: Final = 0.05
BUSY_COUNT: Final = 8
"""Least number of ops in a partition's last record that makes the partition busy."""
QUEUED_MAX: Final = 100_000

Settle = Callable[[Outcome], None]


class OpsRecord(OneRecord):
    """One op record under way."""

    def __init__(self, producing: Producing, queue: _Queue, body: bytes, settles: Sequence[Settle]) -> None:
        super().__init__(producing, queue.topic, body, None, queue.partition)
        self.settles = settles

    def stored(self, numbers: Sequence[int]) -> None:  # noqa: ARG002
        """See `Records.stored`."""
        self._settle(DURABLE)

    def failed(self, number: int, error: KafkaError) -> None:  # noqa: ARG002
        """See `Records.failed`."""
        self._settle(delivery_outcome(error, self.topic))

    def _settle(self, outcome: Outcome) -> None:
        for settle in self.settles:
            settle(outcome)


class _Queue:
    """The encoded ops of one partition that wait to share a record."""

    __slots__ = ("due_s", "last_count", "ops", "partition", "settles", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.ops: list[bytes] = []
        self.settles: list[Settle] = []
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

    def put(
        self,
        resolutions: Sequence[Resolution],
        indices: Sequence[int],
        settle: Callable[[Sequence[int], Outcome], None],
    ) -> Sequence[int]:
        """Queue the ops of the resolutions at *indices*, and return those that have ended by that.

        The others are settled: those with `flush` by the outcome of their op, which the next `flush_urgent` sends; or
        all with an op as REFUSED, and no op is queued, if too many wait already.
        """
        if type(resolutions) is ReleaseColumns and resolutions.all_commit:
            return self._put_commits(resolutions, indices, settle)
        queues = self._queues
        queued: list[int] = []
        left_over: list[int] = []
        refused: list[tuple[Settle, TxcoreError]] = []
        with self._lock:
            is_full = self._count + len(indices) > QUEUED_MAX
            for index in indices:
                resolution = resolutions[index]
                op, half = resolution.op, resolution.half
                if op is None:
                    queued.append(index)
                    continue
                if is_full:
                    left_over.append(index)
                    continue
                queue = queues.get((half.group, half.partition)) or self._queue(half.group, half.partition)
                ops = queue.ops
                ops.append(encode_op(op))
                self._count += 1
                if resolution.flush:
                    queue.settles.append(partial(settle, (index,)))
                    self._begin(queue, is_urgent=True)
                else:
                    queued.append(index)
                    if queue not in self._waiting:
                        self._begin(queue, is_urgent=False)
                if len(ops) >= OPS_MAX:
                    refused += self._send(queue)
        if left_over:
            settle(left_over, _no_room())
        _settle_all(refused)
        return queued

    def _put_commits(
        self, commits: ReleaseColumns, indices: Sequence[int], settle: Callable[[Sequence[int], Outcome], None]
    ) -> Sequence[int]:
        """Queue the ops of commits; see `put`."""
        parts, refused = commits.encoded_ops(indices), []
        with self._lock:
            is_full = self._count + len(indices) > QUEUED_MAX
            for partition, ops in parts.items() if not is_full else ():
                queue = self._queue(commits.halves.group, partition)
                queue.ops += ops
                self._count += len(ops)
                if queue not in self._waiting:
                    self._begin(queue, is_urgent=False)
                if len(queue.ops) >= OPS_MAX:
                    refused += self._send(queue)
        if is_full:
            settle(indices, _no_room())
        _settle_all(refused)
        return () if is_full else indices

    def _begin(self, queue: _Queue, *, is_urgent: bool) -> None:
        """Start the wait of a queue's first op for others; an urgent one does not wait."""
        wait_s = MERGE_BUSY_S if queue.last_count >= BUSY_COUNT else MERGE_IDLE_S
        queue.due_s = 0.0 if is_urgent else self._clock.elapsed_s() + wait_s
        self._due_s = min(self._due_s, queue.due_s)
        self._waiting[queue] = None
        self._producing.wake()

    def mark(self, group: str, partition: int, op: Op, settle: Settle) -> None:
        """Send *op* in a record of its own, after all ops queued for the partition."""
        with self._lock:
            queue = self._queue(group, partition)
            refused = self._send(queue) if queue.ops else []
            if queue.ops:  # The client has no room now.
                refused.append((settle, BusyError("too many records wait for the broker")))
            else:
                try:
                    OpsRecord(self._producing, queue, encode_ops([op]), [settle]).send()
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

    def _send(self, queue: _Queue) -> list[tuple[Settle, TxcoreError]]:
        """Hand a queue's ops to the client; they stay queued if the client has no room."""
        record = OpsRecord(self._producing, queue, op_record(queue.ops), queue.settles)
        refused: list[tuple[Settle, TxcoreError]] = []
        try:
            record.send()
        except BusyError:
            return []
        except TxcoreError as error:
            refused = [(settle, error) for settle in queue.settles]
        self._count -= len(queue.ops)
        queue.last_count = len(queue.ops)
        queue.ops, queue.settles = [], []
        self._waiting.pop(queue, None)
        return refused


def _no_room() -> Outcome:
    return Outcome(Status.REFUSED, BusyError(f"{QUEUED_MAX} ops wait for the broker already"))


def _settle_all(refused: Sequence[tuple[Settle, TxcoreError]]) -> None:
    for settle, error in refused:
        settle(Outcome(Status.REFUSED, error))
