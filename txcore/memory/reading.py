"""Readers and membership of one client of a memory broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ClosedError,
    DataLossError,
)
from txcore.memory.broker import Log, LogKey, MemoryBroker
from txcore.port import failed, resolved
from txcore.records import (
    DURABLE,
    Checkpoint,
    ClaimEvent,
    ClaimEventKind,
    LogRecord,
    Outcome,
    Position,
    Status,
)


class Requester(Protocol):
    """The part of its client's connection that a claim needs."""

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
        self.assigned: set[int] = set()
        self.expired = False
        self._backend = backend
        backend.broker.join(self)

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`; a member that was expired joins again."""
        with self._backend.broker.lock:
            events = list(self.events)
            self.events.clear()
            for event in events:
                if event.kind is ClaimEventKind.ASSIGNED:
                    self.assigned.add(event.partition)
                elif event.kind is ClaimEventKind.LOST:
                    self.assigned.discard(event.partition)
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
        self._is_closed = False

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return Position(self._next)

    def end(self) -> Future[Position]:
        """See `Reader.end`."""
        broker = self._broker
        self._require_open()
        with broker.lock:
            if broker.down:
                return failed(BackendUnavailableError("the memory broker is down"))
            unknown = broker.unknown_group(self._key[0])
            return failed(unknown) if unknown is not None else resolved(broker.end_of(self._key))

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`."""
        self._require_open()
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
            is_at_end = not log.records or log.records[-1].position < self._next
            index = len(log.records) if is_at_end else log.index_of(self._next)
            count = min(count_max, len(log.records) - index)
            records = log.records[index : index + broker.faults.readable(*self._key[1:], count)]
            if records:
                self._next = records[-1].position + 1
            if index + len(records) == len(log.records):
                self._next = max(self._next, broker.end_of(self._key))
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
        delay_s = self._broker.faults.fetch_delay_s()
        if not delay_s or self._broker.schedule is None:
            return resolved(found)
        future: Future[Mapping[Position, LogRecord]] = Future()
        self._broker.schedule(delay_s, lambda: future.set_result(found))
        return future

    def close(self) -> None:
        """See `Reader.close`."""
        self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this reader is closed")


def _settle_none(future: Future[None], outcome: Outcome) -> None:
    if outcome.status is Status.DURABLE:
        future.set_result(None)
    else:
        future.set_exception(outcome.error or BackendTimeoutError("the checkpoint was not stored"))
