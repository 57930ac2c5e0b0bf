"""The members of `txcore.port.Backend`, `Reader` and `Claim`; the docstrings there state what each one promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from txcore.backends.holdings import Holdings
from txcore.backends.options import seconds, whole
from txcore.clock import SystemClock
from txcore.errors import ClosedError, ConfigError, MessageRejectedError, TxcoreError
from txcore.lifecycle import ClosedAtExit
from txcore.port import Batch, failed, resolved
from txcore.port import Claim as ClaimPort
from txcore.records import (
    DURABLE,
    Capabilities,
    Checkpoint,
    ClaimEvent,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    Outcome,
    Position,
    Resolution,
    Status,
)
from txcore.wire import encode_ops, target_headers
from txcore_mybroker.server import SERVERS, Log, Server

T = TypeVar("T")
STUCK_AFTER_S: Final = 5.0  #: time without a poll of its checker after which a claim's partitions go to others


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a URL `mybroker://name?partitions=8`."""

    name: str = ""
    partitions: int = whole(4, 1, 256, "of a group that is made without a number")
    drain_s: float = seconds(1.0, 0.1, 60, "for a checker to give up a partition that another one is to have")


class Part:
    """A backend, a reader or a claim: open until it is closed."""

    def __init__(self, server: Server) -> None:
        self._server, self._is_closed = server, False

    def _ask(self, action: Callable[..., T], *args: Any) -> Future[T]:
        """Return what *action* returns or raises, as the broker's answer."""
        if self._is_closed:
            raise ClosedError(f"this {type(self).__name__} is closed")
        try:
            with self._server.lock:
                return resolved(action(*args))
        except TxcoreError as error:
            return failed(error)


class MyBackend(Part, ClosedAtExit):
    """Implements `txcore.port.Backend`."""

    capabilities = Capabilities(False, False, False, server_time=False, rejects_when_full=True)

    def __init__(self, options: Options) -> None:
        super().__init__(SERVERS[options.name])
        self._options = options

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        def ensure() -> int:
            if not group or (partition_count is not None and partition_count < 1):
                raise ConfigError("a group has a name and at least 1 partition", key="partition_count")
            count = self._server.partition_counts.setdefault(group, partition_count or self._options.partitions)
            if partition_count not in {None, count}:
                text = f"group {group!r} has {count} partitions, not {partition_count}; the number never changes"
                raise ConfigError(text, key="partition_count")
            return count

        return self._ask(ensure)

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        self._settle(batch, self._append)

    def release(self, batch: Batch[Resolution], claim: ClaimPort | None = None) -> None:
        self._settle(batch, self._release)

    def _settle(self, batch: Batch[T], action: Callable[[T], Outcome]) -> None:
        for index, item in enumerate(batch.items):
            try:
                outcome = self._ask(action, item).result()  # at once here; your broker's answer comes later, or never
            except (ConfigError, MessageRejectedError) as error:
                outcome = Outcome(Status.REFUSED, error)
            batch.settle(index, outcome)

    def _append(self, half: HalfRecord) -> Outcome:
        if len(half.body) > self.capabilities.body_size_max:
            raise MessageRejectedError(f"{len(half.body)} bytes are too many for one transaction", reason="size")
        for message in half.messages:
            self._server.require_topic(message.topic)
        return self._server.append((half.group, LogKind.HALF, half.partition), half.body)

    def _release(self, resolution: Resolution) -> Outcome:
        half, failure = resolution.half, None
        missing: list[int] = []
        self._server.require(half.group, half.partition)
        for target in resolution.targets:
            message = half.messages[target]
            try:
                self._server.require_topic(message.topic)
            except MessageRejectedError as error:
                missing.append(target)
                failure = error
            else:
                headers = target_headers(half.group, half.transaction_id, target, message, resolution.by)
                self._server.topics[message.topic].append((message.key, message.body, headers))
        if resolution.parked:
            self._server.append((half.group, LogKind.PARKED, half.partition), resolution.parked)
        if failure is not None:
            return Outcome(Status.REFUSED, failure, missing=tuple(missing))  # and no op
        if resolution.op is not None:
            self._server.append((half.group, LogKind.OP, half.partition), encode_ops([resolution.op]))
        return DURABLE

    def mark(self, group: str, partition: int, op: Op, claim: ClaimPort | None = None) -> Future[Outcome]:
        return self._ask(self._server.append, (group, LogKind.OP, partition), encode_ops([op]))

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> MyReader:
        return self._ask(MyReader, self._server, (group, kind, partition), start).result()

    def claim(self, group: str, member: str) -> MyClaim:
        return self._ask(MyClaim, self._server, group, self._options.drain_s).result()

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        return self._ask(self._server.load, group, partition)

    def ping(self, group: str) -> Future[None]:
        return self._ask(self._server.require, group)

    def poll(self, *_: object, **__: object) -> bool:
        return False

    def close(self, timeout_s: float = 10.0) -> Future[None]:
        self._is_closed = True  # nothing is under way here; yours settles what is, in time
        return resolved(None)


class MyReader(Part):
    """Implements `txcore.port.Reader`; a position is an index of the log."""

    def __init__(self, server: Server, log: Log, start: Position | None) -> None:
        super().__init__(server)
        self._log, self.passed = log, start or Position(0)

    def read(self, count_max: int) -> Sequence[LogRecord]:
        first, bodies = self.passed, self._ask(self._server.records, self._log).result()
        self.passed = min(Position(first + count_max), Position(len(bodies)))
        return [LogRecord(Position(index), bodies[index]) for index in range(first, self.passed)]

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        bodies = self._ask(self._server.records, self._log).result()
        return resolved({each: LogRecord(each, bodies[each]) for each in positions if each < len(bodies)})

    def end(self) -> Future[Position]:
        return self._ask(lambda: Position(len(self._server.records(self._log))))

    def close(self) -> None:
        self._is_closed = True


class MyClaim(Part):
    """Implements `txcore.port.Claim`."""

    def __init__(self, server: Server, group: str, drain_s: float) -> None:
        super().__init__(server)
        self._group, self._drain_s, self._now_s = group, drain_s, SystemClock().elapsed_s
        self._holdings = Holdings(self._now_s, STUCK_AFTER_S)
        self._server.members[group].append(self._holdings)

    def poll(self) -> Sequence[ClaimEvent]:
        until_s = self._now_s() + self._drain_s
        self._ask(self._server.share, self._group, self._holdings, until_s).result()
        return self._holdings.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(self._server.store, self._group, partition, checkpoint)

    def give_up(self, partition: int) -> None:
        if self._holdings.give_up(partition) is not None:
            self._holdings.freed(partition)

    def close(self, timeout_s: float) -> Future[None]:
        self._is_closed = True
        self._server.leave(self._group, self._holdings)
        return resolved(None)
