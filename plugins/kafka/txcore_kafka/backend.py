"""The backend port on Kafka: a producer with its poll thread, two workers, a consumer per reader and per claim."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

from confluent_kafka import KafkaError

from txcore.backends import exit_flush as exiting
from txcore.backends.checkpoint_record import encode_checkpoint
from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import ClosedError, TxcoreError, UsageError
from txcore.lifecycle import ClosedAtExit
from txcore.port import Batch, Claim, never_done, running
from txcore.records import (
    MARK_KINDS,
    Capabilities,
    Checkpoint,
    HalfRecord,
    LogKind,
    Op,
    Outcome,
    Position,
    Resolution,
    Status,
)
from txcore_kafka.codec import delivery_outcome
from txcore_kafka.control import Control
from txcore_kafka.ends import Ends
from txcore_kafka.guarantees import capabilities_of
from txcore_kafka.lanes import Lanes
from txcore_kafka.lookups import LookUps
from txcore_kafka.options import Options, checkpoint_topic
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.presence import Presence
from txcore_kafka.producing import Producing
from txcore_kafka.readers import Readers
from txcore_kafka.reading import KafkaReader
from txcore_kafka.releasing import Releaser
from txcore_kafka.reports import OneRecord
from txcore_kafka.targets import Targets
from txcore_kafka.threads import Worker

CHECKPOINT_KEY: Final = b"checkpoint"
"""The key of every checkpoint: compaction keeps the last record of each partition."""


class KafkaBackend(ClosedAtExit):
    """One Kafka cluster as a txcore backend. Thread safe; threads and connections start with the first call.

    A forked child that inherits a started backend must open its own.
    """

    def __init__(
        self, options: Options | None = None, *, clock: Clock | None = None, randomness: Randomness | None = None
    ) -> None:
        self._options = options or Options()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None
        self._pid: int | None = None
        self._claims: list[KafkaClaim] = []
        self._producing = Producing(self._options, self._clock)
        self._control = Control(self._options, self._clock, self._producing.news)
        self._worker = Worker("txcore-kafka-control")
        self._topic_worker = Worker("txcore-kafka-topics")
        self._presence = Presence(self._producing.has_topic, self._clock)
        self._targets = Targets(self._control, self._presence, self._topic_worker, self._clock)
        ends = Ends(self._producing, self._control, self._topic_worker, self._clock, self._options.delivery_timeout_s)
        self._readers = Readers(self._options, self._control, self._worker, self._clock, ends)
        look_ups = LookUps(
            self._options,
            self._producing,
            self._control,
            self._targets,
            self._presence,
            self._topic_worker,
            self._clock,
        )
        self._releaser = Releaser(self._options, self._producing, self._control, look_ups, self._clock)
        self._capabilities = capabilities_of(self._options)
        if self._options.is_transactional:
            number = (randomness or system_randomness()).getrandbits(64)
            self._releaser.lanes = Lanes(self._options, self._clock, number)

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend.capabilities`."""
        return self._capabilities

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`; makes the group's four topics or verifies them."""
        self._enter()
        return self._worker.submit(lambda: self._ensure_group(group, partition_count))

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._enter()
        self._releaser.append(batch)

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """See `Backend.release`: targets first, then the op; or all in one transaction.

        Raises:
            ClosedError: after `close`.
            UsageError: in a forked child.
        """
        self._enter()
        self._releaser.release(batch, _own(claim))

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:
        """See `Backend.mark`."""
        self._enter()
        assert op.kind in MARK_KINDS
        stored = functools.partial(self._readers.marked, group, partition)
        return self._releaser.mark(group, partition, op, stored, _own(claim))

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> KafkaReader:
        """See `Backend.read`."""
        self._enter()
        return KafkaReader(self._readers, group, kind, partition, start)

    def claim(self, group: str, member: str) -> KafkaClaim:
        """See `Backend.claim`; joins the consumer group `txc.<group>`."""
        self._enter()
        claim = KafkaClaim(self._options, self._control, self._clock, group, member, self._store_checkpoint)
        with self._lock:
            self._claims = [each for each in self._claims if not each.is_closed]
            self._claims.append(claim)
        return claim

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`."""
        self._enter()
        return self._worker.submit(lambda: self._readers.load_checkpoint(group, partition))

    def ping(self, group: str) -> Future[None]:
        """See `Backend.ping`; asks for the half topic."""
        self._enter()
        return self._control.ping(group)

    def poll(self, timeout_s: float, is_done: Callable[[], Any] = never_done, *, comes_again: bool = False) -> bool:
        """See `Backend.poll`; the poll thread lends its work, except with releases that end on another thread."""
        if self._releaser.lanes is not None:
            return False
        return self._producing.poll(timeout_s, is_done, comes_again=comes_again)

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        """See `Backend.close`; claims leave their groups, so that others take over at once."""
        is_mine = False
        with self._lock:
            if self._closing is None:
                self._closing = running()
                if self._pid is None or self._pid != os.getpid():
                    self._closing.set_result(None)  # Never used, or inherited in a fork: it has no threads here.
                else:
                    is_mine = True
            closing = self._closing
        if is_mine:
            exiting.run_beside(functools.partial(self._close, timeout_s, closing), "txcore-kafka-close")
        return closing

    def _ensure_group(self, group: str, partition_count: int | None) -> int:
        count = self._control.ensure_group(group, partition_count)
        if self._releaser.lanes is not None:
            self._releaser.lanes.of(group).start()
        return count

    def _close(self, timeout_s: float, future: Future[None]) -> None:
        deadline_s = self._clock.elapsed_s() + timeout_s
        try:
            if self._releaser.lanes is not None:
                self._releaser.lanes.close(timeout_s * 0.8)
            leaving = [claim.close(self._left_s(deadline_s) * 0.25) for claim in self._claims]
            self._producing.close(self._left_s(deadline_s) * 0.8)
            self._worker.stop(self._left_s(deadline_s))
            self._topic_worker.stop(self._left_s(deadline_s))
            self._presence.stop(self._left_s(deadline_s))
            wait(leaving, self._left_s(deadline_s))
            self._readers.close(self._left_s(deadline_s))
        finally:
            exiting.closed(self)
            future.set_result(None)

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - self._clock.elapsed_s())

    def _enter(self) -> None:
        """Refuse calls after `close` and in forked children."""
        if self._closing is not None:
            raise ClosedError("this kafka backend is closed")
        pid = os.getpid()
        if self._pid != pid:
            if self._pid is not None:
                raise UsageError("this kafka backend was opened before a fork; open another one in the child")
            self._producing.start()
            exiting.close_at_exit(self)
            self._pid = pid

    def _store_checkpoint(self, group: str, partition: int, checkpoint: Checkpoint) -> Future[None]:
        self._enter()
        future: Future[None] = running()
        value = encode_checkpoint(checkpoint)
        record = _CheckpointRecord(self._producing, checkpoint_topic(group), value, CHECKPOINT_KEY, partition)
        record.future = future

        def send() -> None:
            self._control.partition_count(group)
            record.send()

        def sent(done: Future[None]) -> None:
            error = done.exception()
            if error is not None:
                future.set_exception(error)

        if group in self._control.partition_counts:
            try:
                send()
            except TxcoreError as error:
                future.set_exception(error)
        else:
            self._worker.submit(send).add_done_callback(sent)
        return future


def _own(claim: Claim | None) -> KafkaClaim | None:
    assert claim is None or isinstance(claim, KafkaClaim)
    return claim


class _CheckpointRecord(OneRecord):
    future: Future[None]

    def stored(self, numbers: Sequence[int]) -> None:  # noqa: ARG002
        self.future.set_result(None)

    def failed(self, number: int, error: KafkaError) -> None:  # noqa: ARG002
        outcome = delivery_outcome(error, self.topic)
        assert outcome.status is not Status.DURABLE
        assert outcome.error is not None
        self.future.set_exception(outcome.error)
