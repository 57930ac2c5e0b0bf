"""The shared side of a memory broker: logs, topics, checkpoints, groups."""

from __future__ import annotations

import bisect
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from txcore import wire
from txcore.backends.holdings import Holdings
from txcore.clock import Clock, SystemClock
from txcore.errors import ConfigError, HalfRefusedError, MessageRejectedError, UsageError
from txcore.memory.profile import STRONG, Faults, Profile
from txcore.op_rules import excludes
from txcore.port import Claim as ClaimPort
from txcore.records import (
    DECIDING_KINDS,
    DURABLE,
    MARK_KINDS,
    UNIQUE_KINDS,
    Checkpoint,
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

POSITION_OF: Final = attrgetter("position")


@dataclass(slots=True)
class Target:
    """A message in a target topic, as an ordinary consumer sees it."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]
    appended_ms: int


class Log:
    """One append-only log with ordered, gapped positions and a start that retention moves."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._next = 0
        self._appends = 0
        self._ages: deque[tuple[int, int]] = deque()
        self.records: list[LogRecord] = []
        self.first = 0

    @property
    def end(self) -> Position:
        """The position after the last record that was ever appended."""
        return Position(self._next + 1)

    def append(self, body: bytes, appended_ms: int | None, born_ms: int) -> LogRecord:
        """Append a record; return it with its position."""
        self._appends += 1
        self._next += self._step if self._appends % 7 == 0 else 1
        record = LogRecord(Position(self._next), body, appended_ms)
        self.records.append(record)
        self._ages.append((record.position, born_ms))
        return record

    def index_of(self, position: int) -> int:
        """Return the index of the first record at or after *position*."""
        return bisect.bisect_left(self.records, position, key=POSITION_OF)

    def drop_before(self, index: int) -> None:
        """Forget the records before *index*."""
        if index > 0:
            self.first = self.records[index].position if index < len(self.records) else self._next + 1
            del self.records[:index]

    def drop_older(self, oldest_ms: int) -> None:
        """Forget the records from before *oldest_ms*."""
        before = 0
        while self._ages and self._ages[0][1] < oldest_ms:
            before = self._ages.popleft()[0] + 1
        self.drop_before(self.index_of(before))


LogKey = tuple[str, LogKind, int]
DRAIN_S: Final = 2.0
"""Drain time, in seconds, that a REVOKING names; the broker takes no partition away after it."""


@dataclass(eq=False)
class Member:
    """The broker's state of a member: its name, and its partitions."""

    group: str
    member: str
    holdings: Holdings
    expired: bool = False


class MemoryBroker:
    """The shared side: logs, topics, checkpoints, groups. Thread safe.

    Args:
        schedule: Runs a function after a number of seconds; None runs everything at once.

    Attributes:
        logs: Every log, by group, kind and partition; to be used while `lock` is held.
        checkpoints: The newest checkpoint, by group and partition.
        resolved, finals: The kind of the op that holds a generation of a transaction, or all of it; likewise.
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
        self.logs: dict[LogKey, Log] = defaultdict(lambda: Log(profile.position_step))
        self.checkpoints: dict[tuple[str, int], Checkpoint] = {}
        self._owners: dict[tuple[str, int], bytes] = {}
        self.mark_counts: Counter[tuple[str, int]] = Counter()  #: appended CLAIMs and TICKs by group and partition
        self.resolved: dict[tuple[str, bytes, int], int] = {}
        self.finals: dict[tuple[str, bytes], int] = {}
        self._ended_ms: dict[tuple[str, bytes], int] = {}
        self._published: dict[tuple[str, str | bytes], int] = {}
        self._members: dict[str, dict[str, Member]] = defaultdict(dict)
        self._assignment: dict[tuple[str, int], str] = {}

    # -- topics, as their consumers and operators see them ------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        """Make a target topic."""
        with self.lock:
            self.topics.setdefault(topic, [])

    def log(self, group: str, kind: LogKind, partition: int) -> Sequence[LogRecord]:
        """Return the current records of a whole log, for oracles."""
        with self.lock:
            return list(self.logs[group, kind, partition].records)

    def partition_count(self, group: str) -> int:
        """Return the group's number of partitions; 0 for an unknown group."""
        return self._partition_counts.get(group, 0)

    def groups(self) -> list[str]:
        """Return the names of the groups that exist."""
        return sorted(self._partition_counts)

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> None:
        """Drop the records before position *before*, as retention does."""
        with self.lock:
            log = self.logs[group, kind, partition]
            log.drop_before(log.index_of(before))

    # -- requests on their arrival --------------------------------------------------------------------------------

    def ensure_group(self, group: str, partition_count: int | None) -> int:
        """Create or verify a group."""
        with self.lock:
            known = self._partition_counts.get(group)
            if known is None:
                known = self._partition_counts[group] = partition_count or self.profile.partitions
            if partition_count is not None and partition_count != known:
                raise ConfigError(
                    f"group {group!r} has {known} partitions, not {partition_count}; the number never changes",
                    key="partition_count",
                )
            return known

    def unknown_group(self, group: str) -> ConfigError | None:
        """Return the error of a call for a group that does not exist, or None."""
        if group in self._partition_counts:
            return None
        return ConfigError(f"group {group!r} does not exist; call ensure_group first", key="group")

    def refusal(self, half: HalfRecord) -> UsageError | None:
        """Return the reason why *half* cannot be accepted, or None."""
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
        log = self.logs[group, kind, partition]
        retention_s = self.profile.capabilities.half_retention_s
        if kind is LogKind.HALF and retention_s is not None:
            log.drop_older(now_ms - round(retention_s * 1000))
        stamp_ms = None
        if self.profile.capabilities.server_time:
            stamp_ms = now_ms if kind is LogKind.OP else now_ms + self.faults.half_skew_ms
        log.append(body, stamp_ms, now_ms)
        return DURABLE

    def topic_refusal(self, topic: str) -> HalfRefusedError | None:
        """Return the error of a target topic that refuses messages: it was set so, or was never made; else None."""
        if topic in self.refusing or (topic not in self.topics and not self.profile.auto_create):
            return HalfRefusedError(f"topic {topic!r} refuses", topic=topic)
        return None

    def publish(self, resolution: Resolution, index: int) -> Outcome:
        """Append one target; dropped silently when the broker remembers its id."""
        half = resolution.half
        message = half.messages[index]
        refusal = self.topic_refusal(message.topic)
        if refusal is not None:
            return Outcome(Status.REFUSED, refusal, missing=(index,))
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
        """Return the refusal of an op for a resolved half, where the store keeps resolutions unique."""
        if not self.profile.capabilities.resolution_is_unique or op.kind not in UNIQUE_KINDS:
            return None
        kept_s, ended_ms = self.profile.capabilities.resolution_kept_s, self._ended_ms.get((group, op.transaction_id))
        if kept_s is not None and ended_ms is not None and self.clock.wall_ms() - ended_ms > kept_s * 1000:
            return None
        final = self.finals.get((group, op.transaction_id))
        holder = self.resolved.get((group, op.transaction_id, op.generation), final)
        if holder is None or not excludes(holder, op.generation, op):
            return None
        return Outcome(Status.SUPERSEDED, decision=holder)

    def fenced(self, group: str, partition: int, op: Op, claim: ClaimPort | None) -> Outcome | None:
        """Return the refusal of an op from a checker that another one has replaced, or None."""
        if claim is None or not self.profile.capabilities.fences_checkers:
            return None
        return Outcome(Status.FENCED) if self._owners.get((group, partition), b"") != op.token else None

    def append_ops(self, group: str, partition: int, ops: Sequence[Op]) -> Outcome:
        """Append one op record with *ops*, after noting their resolutions and claims."""
        for op in ops:
            if op.kind in UNIQUE_KINDS:
                self.resolved.setdefault((group, op.transaction_id, op.generation), op.kind)
                if self.profile.capabilities.resolution_kept_s is not None:
                    self._ended_ms[group, op.transaction_id] = self.clock.wall_ms()
            if op.kind in DECIDING_KINDS:
                self.finals.setdefault((group, op.transaction_id), op.kind)
            if op.kind in MARK_KINDS:
                self.mark_counts[group, partition] += 1
            if op.kind > OpKind.ROLLBACK:
                self._note_owner(group, partition, op)
        return self.append(group, LogKind.OP, partition, wire.encode_ops(ops))

    def _note_owner(self, group: str, partition: int, op: Op) -> None:
        """Note the owner that a CLAIM names, and an owner's op that takes the place of a COMMITTED."""
        place, identity = (group, op.transaction_id, op.generation), (group, op.transaction_id)
        if op.kind == OpKind.CLAIM:
            self._owners[group, partition] = op.token
        elif op.kind in UNIQUE_KINDS and self.resolved[place] == OpKind.COMMITTED:
            self.resolved[place] = op.kind
        if op.kind == OpKind.RELEASED and self.finals[identity] == OpKind.COMMITTED:
            self.finals[identity] = op.kind

    # -- membership -------------------------------------------------------------------------------------------------

    def join(self, claim: Member) -> None:
        """Add a member and share the partitions out anew; a member with a name in use gets a new name."""
        with self.lock:
            while self._members[claim.group].get(claim.member, claim) is not claim:
                claim.member += "+"
            self._members[claim.group][claim.member] = claim
            self.rebalance(claim.group)

    def leave(self, group: str, member: str) -> None:
        """Remove a member, which loses its partitions to the others."""
        with self.lock:
            claim = self._members[group].pop(member, None)
            if claim is not None:
                claim.holdings.lose_all()
                for partition in [p for (g, p), m in self._assignment.items() if g == group and m == member]:
                    del self._assignment[group, partition]
                self.rebalance(group)

    def expire(self, group: str, member: str) -> None:
        """Remove a silent member's partitions; its next poll, if there is one, reports it."""
        with self.lock:
            claim = self._members[group].get(member)
            if claim is not None:
                self.leave(group, member)
                claim.expired = True

    def rebalance(self, group: str) -> None:
        """Assign each partition to its member; an owner that knows of its partition is asked to give it up first."""
        members = self._members[group]
        names = sorted(members)
        if not names:
            return
        until_s = self.clock.elapsed_s() + DRAIN_S
        for partition in range(self.partition_count(group)):
            wanted = names[partition % len(names)]
            holder = self._assignment.get((group, partition), wanted)
            if holder == wanted or members[holder].holdings.revoke(partition, until_s):
                members[holder].holdings.freed(partition)
                self._assignment[group, partition] = wanted
                members[wanted].holdings.assign(partition)

    def given_up(self, claim: Member, partition: int) -> None:
        """Take back a partition that its owner drained; do nothing after the end of its assignment."""
        with self.lock:
            if claim.holdings.give_up(partition) is not None:
                claim.holdings.freed(partition)
                del self._assignment[claim.group, partition]
                self.rebalance(claim.group)
