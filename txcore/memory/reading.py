"""Readers and membership of one client of a memory broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from txcore.backends.holdings import Holdings
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, DataLossError, TxcoreError
from txcore.memory.broker import LogKey, Member, MemoryBroker
from txcore.port import failed, resolved, running
from txcore.records import DURABLE, Checkpoint, ClaimEvent, LogRecord, Outcome, Position, Status


class MemoryClaim(Member):
    """Membership in a memory broker's group.

    Args:
        request: Sends a request of the client, as `MemoryBackend.request` does.
    """

    def __init__(self, broker: MemoryBroker, request: Callable[..., None], group: str, member: str) -> None:
        super().__init__(group, member, Holdings(broker.clock.elapsed_s))
        self._broker = broker
        self._request = request
        self._is_closed = False
        broker.join(self)

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`; a member that was expired joins again."""
        with self._broker.lock:
            if self._is_closed:
                raise ClosedError("this claim is closed")
            events = self.holdings.poll()
            if self.expired:
                self.expired = False
                self._broker.join(self)
        return events

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`."""
        unknown = self._broker.unknown_group(self.group)
        if unknown is not None:
            return failed(unknown)
        future: Future[None] = running()

        self._broker.faults.checkpoint_sent(self.member, partition, checkpoint)

        def apply() -> Outcome:
            self._broker.checkpoints[self.group, partition] = checkpoint
            return DURABLE

        self._request("checkpoint", apply, lambda outcome: _settle_none(future, outcome))
        return future

    def give_up(self, partition: int) -> None:
        """See `Claim.give_up`."""
        self._broker.given_up(self, partition)

    def close(self, timeout_s: float) -> Future[None]:  # noqa: ARG002
        """See `Claim.close`."""
        with self._broker.lock:
            self._is_closed = True
            self._broker.leave(self.group, self.member)
        return resolved(None)


class MemoryReader:
    """A reader over one memory log."""

    def __init__(self, broker: MemoryBroker, key: LogKey, start: Position | None) -> None:
        self._broker = broker
        self._key = key
        self._next = 0 if start is None else int(start)
        self._checked = False
        self._is_closed = False

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return Position(self._next)

    def end(self) -> Future[Position]:
        """See `Reader.end`."""
        self._require_open()
        with self._broker.lock:
            error = self._failure()
            return failed(error) if error is not None else resolved(self._broker.logs[self._key].end)

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`."""
        self._require_open()
        broker = self._broker
        with broker.lock:
            error = self._failure()
            if error is not None:
                raise error
            log = broker.logs[self._key]
            if not self._checked and log.first > self._next:
                raise DataLossError(self._next, log.first)
            self._checked = True
            is_at_end = not log.records or log.records[-1].position < self._next
            index = len(log.records) if is_at_end else log.index_of(self._next)
            count = min(count_max, len(log.records) - index)
            records = log.records[index : index + broker.faults.readable(*self._key[1:], count)]
            if records:
                self._next = records[-1].position + 1
            if index + len(records) == len(log.records):
                self._next = max(self._next, log.end)
            return records

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`."""
        with self._broker.lock:
            log = self._broker.logs[self._key]
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

    def _failure(self) -> TxcoreError | None:
        if self._broker.down:
            return BackendUnavailableError("the memory broker is down")
        return self._broker.unknown_group(self._key[0])

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this reader is closed")


def _settle_none(future: Future[None], outcome: Outcome) -> None:
    if outcome.status is Status.DURABLE:
        future.set_result(None)
    else:
        future.set_exception(outcome.error or BackendTimeoutError("the checkpoint was not stored"))
