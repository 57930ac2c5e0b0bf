"""The items under way, and how each of them ends: halves, releases with their targets, marks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError

from txcore.errors import TxcoreError, UsageError
from txcore.port import Batch, running
from txcore.records import DURABLE, HalfRecord, Outcome, Resolution, Status
from txcore_kafka.codec import delivery_outcome, is_missing
from txcore_kafka.lookups import LookUps
from txcore_kafka.op_merging import OpMerger
from txcore_kafka.producing import Record

LOG_APPEND_TIME: Final = 2
PARKED_INDEX: Final = -1


class HalfSending(Record):
    """One half under way: it may wait for news of its targets first, then it waits for its acknowledgement."""

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
        """End before the half was handed over."""
        self.settle(Outcome(Status.REFUSED, error))


class Release(msgspec.Struct, eq=False):
    """One resolution under way: counts its targets down, then queues its op. Ends on the thread that polls."""

    ops: OpMerger
    look_ups: LookUps
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
        """End before any target was published: REFUSED for a usage error (no such group), else UNKNOWN."""
        if isinstance(error, UsageError):
            self.settle(Outcome(Status.REFUSED, error))
        else:
            self.expire(error)

    def confirmed(self, index: int) -> None:
        """Count one target, or the parked record, as stored."""
        if index != PARKED_INDEX:
            self.stored_bits |= 1 << index
        self._one_less()

    def missing(self) -> tuple[int, ...]:
        """Return the indexes of the targets that are not confirmed."""
        return tuple(index for index in sorted(self.resolution.targets) if not self.stored_bits >> index & 1)

    def failed(self, outcome: Outcome) -> None:
        """Count one target, or the parked record, as refused or unknown; unknown outweighs refused."""
        if self.status is not Status.UNKNOWN:
            self.status, self.error = outcome.status, outcome.error
        self._one_less()

    def queue_op(self) -> None:
        """Queue the op; all targets are confirmed."""
        resolution = self.resolution
        if resolution.op is None:
            self.settle(DURABLE)
            return
        half = resolution.half
        settle = self.settle if resolution.flush else None
        error = self.ops.put(half.group, half.partition, resolution.op, settle)
        if error is not None:
            self.settle(Outcome(Status.REFUSED, error))
        elif settle is None:
            self.settle(DURABLE)

    def _one_less(self) -> None:
        self.left -= 1
        if self.left or self.is_done:
            return
        if self.status is Status.DURABLE:
            self.queue_op()
        else:
            self.settle(Outcome(self.status, self.error, missing=self.missing()))


class TargetSend(Record):
    """A target, or a parked record, that was handed to the client."""

    release: Release
    index: int

    def stored(self, message: Any) -> None:  # noqa: ARG002
        """See `Record.stored`."""
        self.release.confirmed(self.index)

    def failed(self, error: KafkaError) -> None:
        """See `Record.failed`."""
        release = self.release
        if is_missing(error) and self.index != PARKED_INDEX:
            release.look_ups.ask(self.topic, release.failed)
            return
        outcome = delivery_outcome(error, self.topic)
        if outcome.status is Status.REFUSED:
            release.look_ups.targets.forget(self.topic)
        release.failed(outcome)


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


@functools.lru_cache(maxsize=16)
def _stored_at(at_ms: int) -> Outcome:
    """Return one outcome for all halves appended in the same millisecond, which is most of a batch."""
    return Outcome(Status.DURABLE, appended_ms=at_ms)
