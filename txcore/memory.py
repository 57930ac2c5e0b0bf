"""`memory://name`: a broker inside the process, for users' tests and for the simulator.

A `MemoryBroker` holds the logs; a `MemoryBackend` is one client's connection to it. Every request may be given a
fate (lost, acknowledged too late, refused, late) and a delay, so that one seed replays one history; without them
each request is carried out at once in the calling thread. A `Profile` says which real broker is imitated.
"""

from __future__ import annotations

import enum
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from txcore import wire
from txcore.clock import Clock, SystemClock
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ClosedError,
    ConfigError,
    DataLossError,
    HalfRefusedError,
    MessageRejectedError,
    UsageError,
)
from txcore.hookspecs import hookimpl
from txcore.port import Backend, Batch, Reader, failed, resolved
from txcore.port import Claim as ClaimPort
from txcore.records import (
    DURABLE,
    FINAL_KINDS,
    Capabilities,
    Checkpoint,
    ClaimEvent,
    ClaimEventKind,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    Position,
    Resolution,
    Status,
)

UNIQUE_KINDS: Final = FINAL_KINDS | {OpKind.DISCARD}
PARTITION_COUNT_DEFAULT: Final = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """How the broker behaves.

    Attributes:
        position_step: Positions ascend by this much at every seventh append, by 1 otherwise (gaps).
        merge_delay_s: How long ops wait to be merged into one record; 0 for one record per op.
        answer_timeout_s: When a request without an answer is settled UNKNOWN.
        auto_create: Unknown target topics come into being; else halves for them are refused.
    """

    name: str
    capabilities: Capabilities
    position_step: int = 1
    merge_delay_s: float = 0.0
    answer_timeout_s: float = 1.0
    auto_create: bool = True


STRONG: Final = Profile(
    "strong",
    Capabilities(
        atomic_release=True,
        resolution_is_unique=True,
        fences_checkers=True,
        server_time=True,
        rejects_when_full=True,
        fsync_before_ack="yes",
    ),
)
KAFKA_LIKE: Final = Profile(
    "kafka-like",
    Capabilities(
        atomic_release=False,
        resolution_is_unique=False,
        fences_checkers=False,
        server_time=True,
        rejects_when_full=False,
        half_retention_s=600.0,
    ),
    position_step=3,
    merge_delay_s=0.05,
)
RABBITMQ_LIKE: Final = Profile(
    "rabbitmq-like",
    Capabilities(
        atomic_release=False,
        resolution_is_unique=False,
        fences_checkers=False,
        server_time=False,
        rejects_when_full=False,
        half_retention_s=600.0,
    ),
    position_step=2,
    merge_delay_s=0.02,
)
NATS_LIKE: Final = Profile(
    "nats-like",
    Capabilities(
        atomic_release=False,
        resolution_is_unique=True,
        fences_checkers=False,
        server_time=True,
        rejects_when_full=True,
        deduplicates_targets_s=20.0,
    ),
    position_step=2,
)
PROFILES: Final = {profile.name: profile for profile in (STRONG, KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE)}


class Fate(enum.Enum):
    """What becomes of one request."""

    DONE = "done"
    LOST = "lost"  #: never arrives; the client learns nothing
    ACK_LOST = "ack lost"  #: carried out; the client learns nothing
    LATE = "late"  #: carried out after the client has given up waiting
    REFUSED = "refused"  #: the broker says no
    TWICE = "twice"  #: carried out twice (a resend below the client), acknowledged once


class Faults:
    """What goes wrong; the default is nothing. The simulator overrides these methods."""

    def fate(self, what: str, transaction_ids: Sequence[bytes]) -> Fate:  # noqa: ARG002
        """Return the fate of a request; *what* is half, target, parked, op, mark or checkpoint."""
        return Fate.DONE

    def delay_s(self) -> float:
        """Return how long the next leg of a request travels."""
        return 0.0

    def checkpoint_sent(self, member: str, partition: int, checkpoint: Checkpoint) -> None:
        """Look at a checkpoint at the moment a checker writes it."""

    def visible(self, count: int) -> int:
        """Return how many of *count* arrived records a read returns."""
        return count


@dataclass(slots=True)
class Target:
    """A message in a target topic, as an ordinary consumer sees it."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]
    appended_ms: int


class _Log:
    """One append-only log with ordered, gapped positions and a start that retention moves."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._next = 0
        self._appends = 0
        self.records: list[LogRecord] = []
        self.first = 0

    def append(self, body: bytes, appended_ms: int | None, born_ms: int) -> LogRecord:
        self._appends += 1
        self._next += self._step if self._appends % 7 == 0 else 1
        record = LogRecord(Position(self._next), body, appended_ms)
        self.records.append(record)
        self.born_ms = born_ms
        return record

    def index_of(self, position: int) -> int:
        low, high = 0, len(self.records)
        while low < high:
            middle = (low + high) // 2
            if self.records[middle].position < position:
                low = middle + 1
            else:
                high = middle
        return low

    def drop_before(self, index: int) -> None:
        if index > 0:
            self.first = self.records[index].position if index < len(self.records) else self._next + 1
            del self.records[:index]


LogKey = tuple[str, LogKind, int]


class MemoryBroker:
    """The shared side: logs, topics, checkpoints, groups. Thread safe.

    Args:
        schedule: Runs a function after so many seconds; None carries everything out at once.
    """

    def __init__(
        self,
        profile: Profile = STRONG,
        *,
        clock: Clock | None = None,
        faults: Faults | None = None,
        schedule: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        self.profile = profile
        self.clock = clock or SystemClock()
        self.faults = faults or Faults()
        self.schedule = schedule
        self.lock = threading.RLock()
        self.down = False
        self.topics: dict[str, list[Target]] = {}
        self.refusing: set[str] = set()
        self._partition_counts: dict[str, int] = {}
        self._logs: dict[LogKey, _Log] = defaultdict(lambda: _Log(profile.position_step))
        self._ages: dict[LogKey, deque[tuple[int, int]]] = defaultdict(deque)
        self._checkpoints: dict[tuple[str, int], Checkpoint] = {}
        self._owners: dict[tuple[str, int], bytes] = {}
        self._resolved: dict[tuple[str, bytes, int], int] = {}
        self._finals: dict[tuple[str, bytes], int] = {}
        self._published: dict[tuple[str, str | bytes], int] = {}
        self._members: dict[str, dict[str, MemoryClaim]] = defaultdict(dict)
        self._assignment: dict[tuple[str, int], str] = {}

    # -- topics, as their consumers and operators see them ------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        """Make a target topic."""
        with self.lock:
            self.topics.setdefault(topic, [])

    def log(self, group: str, kind: LogKind, partition: int) -> Sequence[LogRecord]:
        """Return a whole log as it stands, for oracles."""
        with self.lock:
            return list(self._logs[group, kind, partition].records)

    def checkpoint_of(self, group: str, partition: int) -> Checkpoint | None:
        """Return the stored checkpoint, for oracles."""
        return self._checkpoints.get((group, partition))

    def partition_count(self, group: str) -> int:
        """Return the group's number of partitions; 0 for an unknown group."""
        return self._partition_counts.get(group, 0)

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> None:
        """Drop the records before position *before*, as retention does."""
        with self.lock:
            log = self._logs[group, kind, partition]
            log.drop_before(log.index_of(before))

    def lose_tail(self, group: str, kind: LogKind, partition: int, count: int) -> Sequence[LogRecord]:
        """Forget the last *count* records (a power failure before fsync); their positions are not used again."""
        with self.lock:
            records = self._logs[group, kind, partition].records
            lost = records[len(records) - count :] if count else []
            del records[len(records) - len(lost) :]
            for record in lost if kind is LogKind.OP else ():
                for op in wire.decode_ops(record.body):
                    self._resolved.pop((group, op.transaction_id, op.generation), None)
                    self._finals.pop((group, op.transaction_id), None)
            return lost

    # -- what requests do when they arrive ------------------------------------------------------------------------

    def ensure_group(self, group: str, partition_count: int | None) -> int:
        """Create or verify a group."""
        with self.lock:
            known = self._partition_counts.get(group)
            if known is None:
                known = self._partition_counts[group] = partition_count or PARTITION_COUNT_DEFAULT
            if partition_count is not None and partition_count != known:
                raise ConfigError(
                    f"group {group!r} has {known} partitions, not {partition_count}; the number never changes",
                    key="partition_count",
                )
            return known

    def unknown_group(self, group: str) -> ConfigError | None:
        """Return what is wrong with a call for a group that nobody made, or None."""
        if group in self._partition_counts:
            return None
        return ConfigError(f"group {group!r} does not exist; call ensure_group first", key="group")

    def refusal(self, half: HalfRecord) -> UsageError | None:
        """Return why *half* cannot be accepted, or None."""
        unknown = self.unknown_group(half.group)
        if unknown is not None:
            return unknown
        size = len(half.body)
        if size > self.profile.capabilities.body_size_max:
            topic = half.messages[0].topic if half.messages else ""
            return MessageRejectedError(f"{size} bytes are more than this broker takes", topic=topic, reason="size")
        for message in half.messages:
            if message.topic not in self.topics and not self.profile.auto_create:
                return MessageRejectedError(
                    f"topic {message.topic!r} does not exist; create it first", topic=message.topic, reason="topic"
                )
        return None

    def append(self, group: str, kind: LogKind, partition: int, body: bytes) -> Outcome:
        """Append a record to a log; retention is applied first."""
        now_ms = self.clock.wall_ms()
        key = (group, kind, partition)
        log = self._logs[key]
        retention_s = self.profile.capabilities.half_retention_s
        if kind is LogKind.HALF and retention_s is not None:
            self._retain(key, log, now_ms - round(retention_s * 1000))
        record = log.append(body, now_ms if self.profile.capabilities.server_time else None, now_ms)
        self._ages[key].append((record.position, now_ms))
        return Outcome(Status.DURABLE, appended_ms=record.appended_ms) if record.appended_ms else DURABLE

    def _retain(self, key: LogKey, log: _Log, oldest_ms: int) -> None:
        ages = self._ages[key]
        before = -1
        while ages and ages[0][1] < oldest_ms:
            before = ages.popleft()[0]
        if before >= 0:
            log.drop_before(log.index_of(before + 1))

    def publish(self, resolution: Resolution, index: int) -> Outcome:
        """Append one target; dropped silently when the broker remembers its id."""
        half = resolution.half
        message = half.messages[index]
        if message.topic in self.refusing or (message.topic not in self.topics and not self.profile.auto_create):
            error = HalfRefusedError(f"topic {message.topic!r} refuses", topic=message.topic)
            return Outcome(Status.REFUSED, error, missing=(index,))
        now_ms = self.clock.wall_ms()
        headers = wire.target_headers(
            half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
        )
        window_ms = self.profile.capabilities.deduplicates_targets_s * 1000
        name = (message.topic, headers[wire.HEADER_ID])
        if window_ms and now_ms - self._published.get(name, -(1 << 60)) < window_ms:
            return DURABLE
        self._published[name] = now_ms
        topic = self.topics.setdefault(message.topic, [])
        topic.append(Target(len(topic), message.key, message.body, headers, now_ms))
        return DURABLE

    def superseded(self, group: str, op: Op) -> Outcome | None:
        """Return the refusal of an op whose place is taken, where the store keeps resolutions unique."""
        if not self.profile.capabilities.resolution_is_unique or op.kind not in UNIQUE_KINDS:
            return None
        holder = self._resolved.get((group, op.transaction_id, op.generation))
        final = self._finals.get((group, op.transaction_id))
        if holder is None and final is not None:
            holder = final
        return None if holder is None else Outcome(Status.SUPERSEDED, decision=holder)

    def fenced(self, group: str, partition: int, op: Op, claim: ClaimPort | None) -> bool:
        """Return whether the op comes from a checker that another one has replaced."""
        if claim is None or not self.profile.capabilities.fences_checkers:
            return False
        return self._owners.get((group, partition), b"") != op.token

    def append_ops(self, group: str, partition: int, ops: Sequence[Op]) -> Outcome:
        """Append one op record with *ops*, after noting what they resolve and claim."""
        for op in ops:
            if op.kind in UNIQUE_KINDS:
                self._resolved.setdefault((group, op.transaction_id, op.generation), op.kind)
            if op.kind in FINAL_KINDS:
                self._finals.setdefault((group, op.transaction_id), op.kind)
            if op.kind == OpKind.CLAIM:
                self._owners[group, partition] = op.token
        return self.append(group, LogKind.OP, partition, wire.encode_ops(ops))

    def store_checkpoint(self, group: str, partition: int, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        self._checkpoints[group, partition] = checkpoint

    # -- membership -------------------------------------------------------------------------------------------------

    def join(self, claim: MemoryClaim) -> None:
        """Add a member and share the partitions out anew; who comes under a name in use gets one of its own."""
        with self.lock:
            while self._members[claim.group].get(claim.member, claim) is not claim:
                claim.member += "+"
            self._members[claim.group][claim.member] = claim
            self.rebalance(claim.group)

    def leave(self, group: str, member: str) -> None:
        """Remove a member; its partitions go to the others."""
        with self.lock:
            claim = self._members[group].pop(member, None)
            if claim is not None:
                for partition in [p for (g, p), m in self._assignment.items() if g == group and m == member]:
                    del self._assignment[group, partition]
                self.rebalance(group)

    def expire(self, group: str, member: str) -> None:
        """Take a silent member's partitions away; it learns of it when it polls again, if it ever does."""
        with self.lock:
            claim = self._members[group].get(member)
            if claim is not None:
                lost = [p for (g, p), m in self._assignment.items() if g == group and m == member]
                claim.events.extend(ClaimEvent(ClaimEventKind.LOST, partition) for partition in lost)
                self.leave(group, member)
                claim.expired = True

    def rebalance(self, group: str) -> None:
        """Hand each partition to the member that it falls to; an owner that must give one up is asked first."""
        members = sorted(self._members[group])
        if not members:
            return
        for partition in range(self.partition_count(group)):
            wanted = members[partition % len(members)]
            holder = self._assignment.get((group, partition))
            if holder is None:
                self._assignment[group, partition] = wanted
                self._members[group][wanted].events.append(ClaimEvent(ClaimEventKind.ASSIGNED, partition))
            elif holder != wanted and partition not in self._members[group][holder].revoking:
                self._members[group][holder].revoking.add(partition)
                self._members[group][holder].events.append(ClaimEvent(ClaimEventKind.REVOKING, partition, drain_s=2.0))

    def given_up(self, claim: MemoryClaim, partition: int) -> None:
        """Take back a partition that its owner drained."""
        with self.lock:
            claim.revoking.discard(partition)
            if self._assignment.get((claim.group, partition)) == claim.member:
                del self._assignment[claim.group, partition]
                self.rebalance(claim.group)


class MemoryClaim:
    """Membership in a memory broker's group."""

    def __init__(self, backend: MemoryBackend, group: str, member: str) -> None:
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

    def _check_start(self, log: _Log) -> None:
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


class MemoryBackend:
    """One client's connection to a memory broker; implements `Backend`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.capabilities = broker.profile.capabilities
        self.alive = True  #: False once the simulator has killed this client: it hears nothing any more
        self._closed = False
        self._queued: dict[tuple[str, int], list[tuple[Op, Callable[[Outcome], None] | None]]] = {}

    def ensure_group(self, group: str, partition_count: int | None = None) -> Future[int]:
        """See `Backend.ensure_group`."""
        self._require_open()
        try:
            return resolved(self.broker.ensure_group(group, partition_count))
        except ConfigError as error:
            return failed(error)

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`."""
        self._require_open()
        for index, half in enumerate(batch.items):
            self._append_half(batch, index, half)

    def _append_half(self, batch: Batch[HalfRecord], index: int, half: HalfRecord) -> None:
        def apply() -> Outcome:
            refusal = self.broker.refusal(half)
            if refusal is not None:
                return Outcome(Status.REFUSED, refusal)
            return self.broker.append(half.group, LogKind.HALF, half.partition, half.body)

        self.request("half", apply, lambda outcome: batch.settle(index, outcome), (half.transaction_id,))

    def release(self, batch: Batch[Resolution], claim: ClaimPort | None = None) -> None:
        """See `Backend.release`."""
        self._require_open()
        for index, resolution in enumerate(batch.items):
            done = _settler(batch, index)
            unknown = self.broker.unknown_group(resolution.half.group)
            if unknown is not None:
                done(Outcome(Status.REFUSED, unknown))
            elif self.capabilities.atomic_release:
                self._release_at_once(resolution, claim, done)
            else:
                self._release_in_steps(resolution, claim, done)

    def _release_at_once(
        self, resolution: Resolution, claim: ClaimPort | None, done: Callable[[Outcome], None]
    ) -> None:
        half, op = resolution.half, resolution.op

        def apply() -> Outcome:
            if op is not None:
                if self.broker.fenced(half.group, half.partition, op, claim):
                    return Outcome(Status.FENCED)
                taken = self.broker.superseded(half.group, op)
                if taken is not None:
                    return taken
            refused = [i for i in resolution.targets if half.messages[i].topic in self.broker.refusing]
            if refused:
                topic = half.messages[refused[0]].topic
                return Outcome(Status.REFUSED, HalfRefusedError(f"topic {topic!r} refuses", topic=topic))
            for index in resolution.targets:
                self.broker.publish(resolution, index)
            if resolution.parked:
                self.broker.append(half.group, LogKind.PARKED, half.partition, resolution.parked)
            return DURABLE if op is None else self.broker.append_ops(half.group, half.partition, [op])

        def settle(outcome: Outcome) -> None:
            if outcome.status in {Status.REFUSED, Status.UNKNOWN}:
                outcome = replace(outcome, missing=tuple(resolution.targets))
            done(outcome)

        self.request("op", apply, settle, (half.transaction_id,))

    def _release_in_steps(
        self, resolution: Resolution, claim: ClaimPort | None, done: Callable[[Outcome], None]
    ) -> None:
        """Targets (or the parked record) first, each confirmed; only then the op."""
        half, op = resolution.half, resolution.op
        if op is not None and self.capabilities.resolution_is_unique:
            taken = self.broker.superseded(half.group, op)
            if taken is not None:
                done(taken)
                return
        steps: list[tuple[str, Callable[[], Outcome], int]] = [
            ("target", lambda index=index: self.broker.publish(resolution, index), index)  # type: ignore[misc]
            for index in resolution.targets
        ]
        if resolution.parked:
            parked = resolution.parked
            steps.append(("parked", lambda: self.broker.append(half.group, LogKind.PARKED, half.partition, parked), -1))
        if not steps:
            self._release_op(resolution, claim, done)
            return
        worst: list[Outcome] = []
        missing: list[int] = []
        left = len(steps)

        def one_done(index: int, outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            if outcome.status is not Status.DURABLE:
                worst.append(outcome)
                missing.append(index)
            if left:
                return
            if not worst:
                self._release_op(resolution, claim, done)
                return
            refused = [outcome for outcome in worst if outcome.status is Status.REFUSED]
            first = refused[0] if refused else worst[0]
            unconfirmed = tuple(sorted(index for index in missing if index >= 0))
            done(replace(first, missing=unconfirmed))

        for what, apply, index in steps:
            self.request(
                what,
                apply,
                lambda outcome, index=index: one_done(index, outcome),  # type: ignore[misc]
                (half.transaction_id,),
            )

    def _release_op(self, resolution: Resolution, claim: ClaimPort | None, done: Callable[[Outcome], None]) -> None:
        half, op = resolution.half, resolution.op
        if op is None:
            done(DURABLE)
            return
        delay_s = self.broker.profile.merge_delay_s
        if delay_s and self.broker.schedule is not None:
            self._queue_op(half.group, half.partition, op, done if resolution.flush else None, delay_s)
            if not resolution.flush:
                done(DURABLE)
            return

        def apply() -> Outcome:
            if self.broker.fenced(half.group, half.partition, op, claim):
                return Outcome(Status.FENCED)
            return self.broker.superseded(half.group, op) or self.broker.append_ops(half.group, half.partition, [op])

        self.request("op", apply, done, (half.transaction_id,))

    def _queue_op(
        self, group: str, partition: int, op: Op, done: Callable[[Outcome], None] | None, delay_s: float
    ) -> None:
        queue = self._queued.setdefault((group, partition), [])
        queue.append((op, done))
        if len(queue) == 1:
            assert self.broker.schedule is not None
            self.broker.schedule(delay_s, lambda: self._flush_ops(group, partition))

    def _flush_ops(self, group: str, partition: int) -> None:
        queue = self._queued.pop((group, partition), None)
        if not queue or not self.alive:
            return
        ops = [op for op, _ in queue]

        def settle(outcome: Outcome) -> None:
            for _, done in queue:
                if done is not None:
                    done(outcome)

        ids = [op.transaction_id for op in ops]
        self.request("op", lambda: self.broker.append_ops(group, partition, ops), settle, ids)

    def mark(self, group: str, partition: int, op: Op, claim: ClaimPort | None = None) -> Future[Outcome]:
        """See `Backend.mark`."""
        self._require_open()
        unknown = self.broker.unknown_group(group)
        if unknown is not None:
            return failed(unknown)
        self._flush_ops(group, partition)
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()

        def apply() -> Outcome:
            if op.kind != OpKind.CLAIM and self.broker.fenced(group, partition, op, claim):
                return Outcome(Status.FENCED)
            return self.broker.append_ops(group, partition, [op])

        self.request("mark", apply, future.set_result)
        return future

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> Reader:
        """See `Backend.read`."""
        self._require_open()
        return MemoryReader(self.broker, (group, kind, partition), start)

    def claim(self, group: str, member: str) -> MemoryClaim:
        """See `Backend.claim`."""
        self._require_open()
        return MemoryClaim(self, group, member)

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`."""
        self._require_open()
        unknown = self.broker.unknown_group(group)
        if unknown is not None:
            return failed(unknown)
        return resolved(self.broker.checkpoint_of(group, partition))

    def poll(self, timeout_s: float) -> None:
        """See `Backend.poll`."""

    def close(self, timeout_s: float = 10.0) -> Future[None]:  # noqa: ARG002
        """See `Backend.close`."""
        for group, partition in list(self._queued):
            self._flush_ops(group, partition)
        self._closed = True
        return resolved(None)

    def request(
        self,
        what: str,
        apply: Callable[[], Outcome],
        done: Callable[[Outcome], None],
        transaction_ids: Sequence[bytes] = (),
    ) -> None:
        """Send one request to the broker with the fate that the faults give it."""
        broker = self.broker
        fate = broker.faults.fate(what, transaction_ids)
        timeout_s = broker.profile.answer_timeout_s
        unknown = Outcome(Status.UNKNOWN, BackendTimeoutError(f"no answer to the {what} within {timeout_s:g} s"))

        def hear(outcome: Outcome) -> None:
            if self.alive:
                done(outcome)

        def arrive(*, answered: bool) -> None:
            with broker.lock:
                if broker.down:
                    if answered:
                        self._later(timeout_s, lambda: hear(unknown))
                    return
                outcome = apply()
                if fate is Fate.TWICE and outcome.status is Status.DURABLE:
                    apply()
            if answered:
                self._later(broker.faults.delay_s(), lambda: hear(outcome))

        if broker.down or fate is Fate.LOST:
            self._later(timeout_s, lambda: hear(unknown))
        elif fate is Fate.REFUSED:
            refusal = HalfRefusedError(f"the broker refused the {what}")
            self._later(broker.faults.delay_s(), lambda: hear(Outcome(Status.REFUSED, refusal)))
        elif fate in {Fate.ACK_LOST, Fate.LATE}:
            self._later(timeout_s, lambda: hear(unknown))
            delay_s = broker.faults.delay_s() + (2 * timeout_s if fate is Fate.LATE else 0)
            self._later(delay_s, lambda: arrive(answered=False))
        else:
            self._later(broker.faults.delay_s(), lambda: arrive(answered=True))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        if self.broker.schedule is None:
            action()
        else:
            self.broker.schedule(delay_s, action)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this backend is closed")


def _settler(batch: Batch[Resolution], index: int) -> Callable[[Outcome], None]:
    return lambda outcome: batch.settle(index, outcome)


def _settle_none(future: Future[None], outcome: Outcome) -> None:
    if outcome.status is Status.DURABLE:
        future.set_result(None)
    else:
        future.set_exception(outcome.error or BackendTimeoutError("the checkpoint was not stored"))


_brokers: Final[dict[str, MemoryBroker]] = {}
_brokers_lock: Final = threading.Lock()


@hookimpl
def txcore_open_backend(url: str, options: Mapping[str, str]) -> Backend | None:
    """Open `memory://name`; connections to one name in one process share one broker."""
    parts = urlsplit(url)
    if parts.scheme != "memory":
        return None
    known = {"profile", "auto_create", "partitions"}
    for key in options:
        if key not in known:
            raise ConfigError(f"memory:// does not know option {key!r}; it knows {', '.join(sorted(known))}", key=key)
    name = options.get("profile", "strong")
    if name not in PROFILES:
        raise ConfigError(f"profile is one of {', '.join(PROFILES)}, not {name!r}", key="profile")
    create = options.get("auto_create", "true")
    if create not in {"true", "false"}:
        raise ConfigError(f"auto_create is true or false, not {create!r}", key="auto_create")
    with _brokers_lock:
        broker = _brokers.get(parts.netloc)
        if broker is None:
            broker = MemoryBroker(replace(PROFILES[name], auto_create=create == "true"))
            if parts.netloc:
                _brokers[parts.netloc] = broker
    return MemoryBackend(broker)
