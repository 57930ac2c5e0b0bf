"""Readers and membership of one client of a memory broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    DataLossError,
)
from txcore.memory.broker import Log, LogKey, MemoryBroker
from txcore.port import failed, resolved
from txcore.records import (
    DURABLE,
    Checkpoint,
    ClaimEvent,
    LogRecord,
    Outcome,
    Position,
    Status,
)


class Requester(Protocol):
    """What a claim needs of its client's connection."""

    broker: MemoryBroker

    def request(
        self,
        what: str,
        apply: Callable[[], Outcome],
        done: Callable[[Outcome], None],
        transaction_ids: Sequence[bytes] = (),
    ) -> None:
        """Send one request to the broker."""


class MemoryClaim:
    """Membership in a memory broker's group."""

    def __init__(self, backend: Requester, group: str, member: str) -> None:
        self.group = group
        self.member = member
        self.events: deque[ClaimEvent] = deque()
        self.revoking: set[int] = set()
        self.expired = False
        self._backend = backend
        backend.broker.join(self)

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`; a member that was expired joins again."""
        with self._backend.broker.lock:
            events = list(self.events)
            self.events.clear()
            if self.expired:
                self.expired = False
                self.revoking.clear()
                self._backend.broker.join(self)
        return events

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`."""
        unknown = self._backend.broker.unknown_group(self.group)
        if unknown is not None:
            return failed(unknown)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        self._backend.broker.faults.checkpoint_sent(self.member, partition, checkpoint)

        def apply() -> Outcome:
            self._backend.broker.store_checkpoint(self.group, partition, checkpoint)
            return DURABLE

        self._backend.request("checkpoint", apply, lambda outcome: _settle_none(future, outcome))
        return future

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`."""
        self._backend.broker.given_up(self, partition)

    def close(self, timeout_s: float) -> Future[None]:  # noqa: ARG002
        """See `Claim.close`."""
        self._backend.broker.leave(self.group, self.member)
        return resolved(None)


class MemoryReader:
    """A reader over one memory log."""

    def __init__(self, broker: MemoryBroker, key: LogKey, start: Position | None) -> None:
        self._broker = broker
        self._key = key
        self._start = start
        self._next = 0 if start is None else int(start)
        self._checked = False

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`."""
        broker = self._broker
        with broker.lock:
            if broker.down:
                raise BackendUnavailableError("the memory broker is down")
            unknown = broker.unknown_group(self._key[0])
            if unknown is not None:
                raise unknown
            log = broker._logs[self._key]  # noqa: SLF001 - one module, two sides of one connection
            if not self._checked:
                self._check_start(log)
            index = log.index_of(self._next)
            count = min(count_max, len(log.records) - index)
            records = log.records[index : index + broker.faults.visible(count)]
            if records:
                self._next = records[-1].position + 1
            return records

    def _check_start(self, log: Log) -> None:
        asked = self._next
        if log.first > asked:
            raise DataLossError(asked, log.first)
        self._checked = True

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`."""
        with self._broker.lock:
            log = self._broker._logs[self._key]  # noqa: SLF001
            found = {}
            for position in positions:
                index = log.index_of(position)
                if index < len(log.records) and log.records[index].position == position:
                    found[position] = log.records[index]
            return resolved(found)

    def close(self) -> None:
        """See `Reader.close`."""


def _settle_none(future: Future[None], outcome: Outcome) -> None:
    if outcome.status is Status.DURABLE:
        future.set_result(None)
    else:
        future.set_exception(outcome.error or BackendTimeoutError("the checkpoint was not stored"))
