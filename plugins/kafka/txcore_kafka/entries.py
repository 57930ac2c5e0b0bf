"""The releases and marks that wait for a transaction, and one try to commit some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from txcore.errors import BackendTimeoutError, BackendUnavailableError, TxcoreError
from txcore.records import HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import encode_ops
from txcore_kafka.codec import delivery_outcome, is_missing, kafka_error
from txcore_kafka.options import topic_name
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.reports import Record, parked_record, target_record

OPS_PER_RECORD: Final = 1_000
POLL_S: Final = 0.05


class Entry:
    """One release or mark that waits for a transaction. The lane settles it, or its deadline does."""

    __slots__ = ("claim", "finish", "group", "is_alone", "is_done", "lock", "missing", "op", "partition", "resolution")

    def __init__(
        self,
        half: HalfRecord | tuple[str, int],
        op: Op | None,
        claim: KafkaClaim | None,
        finish: Callable[[Outcome], None],
        resolution: Resolution | None = None,
    ) -> None:
        self.is_done = False
        self.group, self.partition = half if isinstance(half, tuple) else (half.group, half.partition)
        self.op = op
        self.claim = claim
        self.finish = finish
        self.resolution = resolution
        self.missing = () if resolution is None else tuple(resolution.targets)
        self.is_alone = False
        self.lock = threading.Lock()

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        with self.lock:
            if self.is_done:
                return
            self.is_done = True
        self.finish(outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`; a transaction that is under way may still be committed."""
        self.settle(Outcome(Status.UNKNOWN, error, missing=self.missing))

    def refuse(self, error: TxcoreError | None) -> None:
        """End as REFUSED; none of the targets was published."""
        self.settle(Outcome(Status.REFUSED, error, missing=self.missing))

    def not_found(self, error: TxcoreError) -> None:
        """End before any target was published, as the group or a target could not be found."""
        if isinstance(error, BackendUnavailableError | BackendTimeoutError):
            self.expire(error)
        else:
            self.refuse(error)

    def publish(self, send: Callable[[Entry, Record], None]) -> None:
        """Hand over the targets and the parked record; the op is sent later, merged with others."""
        resolution = self.resolution
        if resolution is None:
            return
        if resolution.parked:
            send(self, parked_record(resolution))
        for target in resolution.targets:
            send(self, target_record(resolution, target))


class Attempt:
    """One transaction: its entries, and the outcomes of its records. The lane's thread alone uses it."""

    def __init__(self, producer: Any, entries: Sequence[Entry]) -> None:
        self.producer = producer
        self.entries = entries
        self.left = 0
        self.refused: dict[int, Outcome] = {}  # by the id() of the entry
        self.failed = False

    def send(self, entry: Entry | None, record: Record) -> None:
        """Hand over a record of *entry*, or a record of ops without an entry.

        Raises:
            KafkaException: the client cannot be used any more.
        """
        topic, value, key, partition, headers = record

        def reported(error: KafkaError | None, _message: Any) -> None:
            self.left -= 1
            if error is not None:
                self.failed = True
                outcome = delivery_outcome(error, topic)
                if outcome.status is Status.REFUSED and entry is not None:
                    self.refused[id(entry)] = outcome

        while True:
            try:
                self.producer.produce(topic, value, key, partition, reported, headers=headers)
            except BufferError:
                self.producer.poll(POLL_S)
            except KafkaException as raised:
                cause = kafka_error(raised)
                if entry is None or cause is None or not is_missing(cause):
                    raise
                self.failed = True  # At once, as the client knows that the topic is gone.
                self.refused[id(entry)] = delivery_outcome(cause, topic)
                return
            else:
                self.left += 1
                return

    def send_ops(self) -> None:
        """Send the ops of all entries, merged by partition."""
        queues: dict[tuple[str, int], list[Op]] = {}
        for entry in self.entries:
            if entry.op is not None:
                queues.setdefault((entry.group, entry.partition), []).append(entry.op)
        for (group, partition), ops in queues.items():
            for start in range(0, len(ops), OPS_PER_RECORD):
                value = encode_ops(ops[start : start + OPS_PER_RECORD])
                self.send(None, (topic_name(group, LogKind.OP), value, None, partition, None))
