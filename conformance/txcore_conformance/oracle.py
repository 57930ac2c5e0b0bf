"""The oracle: reads a whole group back and names every invariant that does not hold.

The oracle uses only the port and the harness's view of the target topics, and contains no protocol:
`txcore.history.journey` makes the facts, and `txcore_conformance.invariants` judges them. A `History` brings the facts
that only the test has: local outcomes, acknowledged sends, and the number of faults that the test caused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from txcore import wire
from txcore.errors import BackendTimeoutError, DataLossError, UsageError
from txcore.history.folding import Journeys
from txcore.history.journey import Journey
from txcore.ids import known_id, parse_id, partition_of
from txcore.port import Backend
from txcore.producer.arguments import ReleaseName
from txcore.records import Capabilities, Checkpoint, LogKind, LogRecord, Position
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.harness import Delivered, Harness
from txcore_conformance.invariants import (
    Facts,
    Invariant,
    Local,
    Promises,
    TargetFact,
    Violation,
    judge,
)
from txcore_conformance.order import Copy, FirstRecord, disorder, first_records
from txcore_conformance.refine.replay import judge_logs
from txcore_conformance.refine.whole import halves_in

CALL_TIMEOUT_S: Final = 30.0
READ_COUNT_MAX: Final = 1_000
PAUSE_S: Final = 0.005
READ_TIMEOUT_S: Final = 60.0
"""Longest time, in seconds, without a record before the end of a log."""
_LOG: Final = logging.getLogger("txcore.conformance")


@dataclass(slots=True)
class History:
    """The facts that a test knows and no log holds.

    Attributes:
        local: The outcomes of local transactions; ids that are not named are UNKNOWN.
        acknowledged: Ids whose producer had an acknowledgement that the half is durable.
        causes: Number of causes for a second delivery that the test made, by id; `causes_default` for the others.
        reasons: The names of those causes, for reports.
        late_releases: Number of releases that took effect after their sender gave up, by id.
        topics: Topics to read in addition to those that the halves name.
        at_rest: Whether everything must be decided; otherwise pending transactions are not judged for L1, S3 and S8.
        via_table: Ids whose fence row has state 3: they need no half.
        unjudged: Reason why the history is not judged, such as records that no producer writes; "" if it is judged.
    """

    local: dict[bytes, Local] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    causes: dict[bytes, int] = field(default_factory=dict)
    causes_default: int = 0
    reasons: dict[bytes, list[str]] = field(default_factory=dict)
    late_releases: dict[bytes, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    at_rest: bool = False
    via_table: set[bytes] = field(default_factory=set)
    unjudged: str = ""

    def committed(self, transaction_id: bytes) -> None:
        """Note that the half was acknowledged and the local transaction committed."""
        self.local[transaction_id] = Local.COMMITTED
        self.acknowledged.add(transaction_id)

    def rolled_back(self, transaction_id: bytes) -> None:
        """Note that the local transaction rolled back for ever."""
        self.local[transaction_id] = Local.ROLLED_BACK

    def caused(self, transaction_id: bytes, reason: str) -> None:
        """Note one cause for a second delivery, beyond the default: an ambiguous answer, a killed broker."""
        self.causes[transaction_id] = self.causes.get(transaction_id, self.causes_default) + 1
        self.reasons.setdefault(transaction_id, []).append(reason)


@dataclass(slots=True)
class PartitionLogs:
    """All that a partition's logs hold, and the checkpoint that was stored before they were read."""

    partition: int
    checkpoint: Checkpoint | None
    halves: Sequence[LogRecord]
    ops: Sequence[LogRecord]
    parked: Sequence[LogRecord]
    is_truncated: bool = False  #: retention deleted halves: a transaction without one is not judged
    lacks_ops: bool = False  #: retention deleted ops


def read_partition(backend: Backend, group: str, partition: int) -> PartitionLogs:
    """Read one partition's checkpoint and all three logs, each to the end that the log itself reports.

    The op log is read first: the halves and parked records that its ops name were stored before.

    Raises:
        BackendTimeoutError: a log was not read to its end in time, which proves nothing about its records.
    """
    checkpoint = backend.load_checkpoint(group, partition).result(CALL_TIMEOUT_S)
    ops, lacks_ops = _read(backend, group, LogKind.OP, partition)
    halves, is_truncated = _read(backend, group, LogKind.HALF, partition)
    parked, _ = _read(backend, group, LogKind.PARKED, partition)
    return PartitionLogs(partition, checkpoint, halves, ops, parked, is_truncated, lacks_ops)


def read_group(backend: Backend, group: str) -> list[PartitionLogs]:
    """Read every partition of *group*."""
    count = backend.ensure_group(group).result(CALL_TIMEOUT_S)
    return [read_partition(backend, group, partition) for partition in range(count)]


def journeys_of(
    partition: int,
    halves: Iterable[LogRecord],
    ops: Iterable[LogRecord],
    parked: Iterable[LogRecord],
    token: bytes = b"",
    *,
    only: bytes | None = None,
) -> dict[bytes, Journey]:
    """Fold one partition's logs, given in log order, into a journey per transaction.

    Args:
        token: The claim in force where *ops* begins.
        only: Restrict the result to this transaction.
    """
    journeys = Journeys(partition, token, None if only is None else only.__eq__)
    for record in halves:
        journeys.read_half(record)
    for record in ops:
        journeys.read_ops(record)
    for record in parked:
        journeys.read_parked(record)
    return journeys.found


def journeys(backend: Backend, group: str) -> dict[bytes, Journey]:
    """Return the journey of each transaction in the logs of *group*, by id."""
    found: dict[bytes, Journey] = {}
    for logs in read_group(backend, group):
        found.update(journeys_of(logs.partition, logs.halves, logs.ops, logs.parked))
    return found


def collect(
    harness: Harness,
    backend: Backend,
    group: str,
    history: History | None = None,
    logs: Sequence[PartitionLogs] | None = None,
) -> list[Facts]:
    """Return the facts of every transaction of *group* that any log, any target or the history names."""
    history = history or History()
    facts: dict[bytes, Facts] = {}
    logs = read_group(backend, group) if logs is None else logs
    for part in logs:
        for identity, journey in journeys_of(part.partition, part.halves, part.ops, part.parked).items():
            facts[identity] = Facts(journey)
    topics = history.topics | {
        message.topic for each in facts.values() for half in each.journey.halves for message in half.messages
    }

    def fact(identity: bytes) -> Facts:
        return facts.setdefault(identity, Facts(Journey(known_id(identity), -1)))

    for topic in sorted(topics):
        for delivered in everything_in(harness, topic):
            name = _text(delivered.headers.get(wire.HEADER_ID, ""))
            if _text(delivered.headers.get(wire.HEADER_GROUP, "")) == group and ":" in name:
                text, index = name.rsplit(":", 1)
                fact(_parsed(text)).targets.append(_target(topic, int(index), delivered))
    for identity in history.local:
        fact(identity)
    for identity, each in facts.items():
        each.local = history.local.get(identity, Local.UNKNOWN)
        each.is_acknowledged = identity in history.acknowledged
        each.duplicate_causes = history.causes.get(identity, history.causes_default)
        each.is_via_table = identity in history.via_table
        each.late_releases = history.late_releases.get(identity, 0)
        each.is_excused = not each.journey.halves and logs[partition_of(identity, len(logs))].is_truncated
    return list(facts.values())


def judge_group(
    harness: Harness, backend: Backend, group: str, history: History | None = None
) -> tuple[list[Violation], list[Facts]]:
    """Read *group* back and return every violation, and the facts in which they were found."""
    history = history or History()
    logs = read_group(backend, group)
    facts = collect(harness, backend, group, history, logs)
    violations = [*judge_facts(facts, backend.capabilities, at_rest=history.at_rest), *_judge_order(facts, logs)]
    for part in logs:
        violations += _judge_reading(group, part)
    return violations, facts


def _judge_reading(group: str, part: PartitionLogs) -> list[Violation]:
    """Fold the same logs in other orders, and from the checkpoint; judge the checkpoint and every copy."""
    place = f"partition {part.partition}"
    if part.is_truncated or part.lacks_ops:
        _LOG.info("logs of %s, %s: retention cut them, so they are not replayed", group, place)
        found = judge_checkpoint(part.checkpoint, part.halves, part.ops) if part.checkpoint is not None else ""
        return [Violation(Invariant.S11, bytes(16), f"{place}: {found}")] if found else []
    checkpoints = [] if part.checkpoint is None else [part.checkpoint]
    wrong = judge_logs(part.halves, part.ops, checkpoints)
    return [Violation(Invariant.S11, bytes(16), f"{place}: {text}") for text in wrong]


def _judge_order(facts: Iterable[Facts], logs: Sequence[PartitionLogs]) -> Iterator[Violation]:
    """Judge the order of the halves with order keys; a parked half holds its key up, so it is no exception."""
    records: dict[bytes, FirstRecord] = {}
    for part in logs:
        records |= {} if part.is_truncated else first_records(part.partition, halves_in(part.halves))
    copies = (
        Copy(each.journey.transaction_id, target.index, (target.topic, target.partition), target.position)
        for each in facts
        for target in each.targets
    )
    for identity, text in disorder(records, copies):
        yield Violation(Invariant.S12, identity, text)


def judge_facts(facts: Iterable[Facts], capabilities: Capabilities, *, at_rest: bool) -> list[Violation]:
    """Return every violation in *facts*; a pending transaction is judged as at rest only with *at_rest*."""
    promises = Promises(capabilities.atomic_release, capabilities.resolution_is_unique)
    return [
        violation
        for each in facts
        for violation in judge(each, promises, at_rest=at_rest or bool(each.journey.final) or each.journey.is_parked)
    ]


def is_released_once(capabilities: Capabilities, release: ReleaseName) -> bool:
    """Return whether nothing is a cause of a duplicate: releases are atomic, and an owner reads the log before each."""
    return capabilities.atomic_release and release == "owner"


def causes_of_a_crash(capabilities: Capabilities, release: ReleaseName = "producer") -> int:
    """Return how many duplicates the kill of a process may cause: none where at most one release takes effect.

    Args:
        release: What publishes the halves.
    """
    is_unique = capabilities.atomic_release and capabilities.resolution_is_unique
    return 0 if is_unique or is_released_once(capabilities, release) else 1


def everything_in(harness: Harness, topic: str) -> Sequence[Delivered]:
    """Read a topic, in a second try if the first one fails: a plain client may notice a broker's kill that late."""
    try:
        return harness.read_topic(topic)
    except Exception:  # noqa: BLE001 - clients raise what they like; the second error is not caught
        return harness.read_topic(topic)


def _read(backend: Backend, group: str, kind: LogKind, partition: int) -> tuple[list[LogRecord], bool]:
    """Return the records, and whether retention deleted the log's beginning.

    Silence proves nothing: on a busy machine, or after a lost connection, the first record may take seconds.
    """
    records: list[LogRecord] = []
    is_truncated = False
    reader = backend.read(group, kind, partition)
    try:
        end = reader.end().result(CALL_TIMEOUT_S)
        until_s = time.monotonic() + READ_TIMEOUT_S
        while True:
            try:
                batch = reader.read(READ_COUNT_MAX)
            except DataLossError as loss:
                reader.close()
                is_truncated = True
                if loss.first is None:
                    return records, is_truncated
                reader = backend.read(group, kind, partition, Position(loss.first))
                continue
            records.extend(batch)
            if batch:
                until_s = time.monotonic() + READ_TIMEOUT_S
            elif reader.passed >= end:
                return records, is_truncated
            elif time.monotonic() > until_s:
                place = f"the {kind.value} log of partition {partition}"
                raise BackendTimeoutError(f"{place} ends at {end}, and was read to {reader.passed} only")
            else:
                time.sleep(PAUSE_S)
    finally:
        reader.close()


def _target(topic: str, index: int, delivered: Delivered) -> TargetFact:
    place = (delivered.position, delivered.appended_ms, delivered.partition)
    return TargetFact(index, topic, delivered.key, delivered.body, dict(delivered.headers), *place)


def _parsed(text: str) -> bytes:
    try:
        return parse_id(text)
    except UsageError:
        return bytes(16)  # The id is not txcore's: S5 will report that there is no half.


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
