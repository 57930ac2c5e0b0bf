"""The invariants, by id, with their predicates: one list for the simulator, the conformance oracle and the demo.

A `Facts` holds what is known about one transaction: its journey through the logs, its targets, what the database
says, and how many causes for a duplicate the history holds. `judge` returns every violation of S1 to S10, S12 to
S14 and, at rest, L1. S11 concerns a checkpoint and the logs: see `checkpoint_bounds`. L2, L3 and L4 are properties of
whole runs; tests and the simulator check them where they arise and report them under these ids.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from txcore import wire
from txcore.audit.verdicts import Verdict
from txcore.digest import digest_of
from txcore.history.journey import Journey
from txcore.ids import id_text
from txcore.op_rules import outcome_of
from txcore.records import (
    DECIDING_KINDS,
    OpKind,
    ParkCode,
    TargetMessage,
)

DECIDERS: Final = ("p:", "c:")
"""The prefixes of the attempt names of producers and checkers; a relay's begins with `r:`."""


class Invariant(enum.Enum):
    """The rules that must hold, for every transaction and every run."""

    S1 = "at most one final decision per half"
    S2 = "a target exists only for a COMMIT decision of a committed local transaction"
    S3 = "a COMMIT decision has every declared target, or is parked undeliverable"
    S4 = "the decision is the database's outcome, a recorded override excepted"
    S5 = "no target and no op without a half or a message-table row"
    S6 = "a target exists more than once only where the history holds a cause for each"
    S7 = "a target's payload, key and headers equal the half's, and the half's digest the fence row's"
    S8 = "an acknowledged send with a committed database is never lost"
    S9 = "checks are bounded by check_max and stop after the decision"
    S10 = "a discard is visible and never followed by a target unless resumed or forced"
    S11 = "a checkpoint never passes an undecided half, nor an op of a half at or after it"
    S12 = "the promised order is kept"
    S13 = "a delayed message is never early, and never sent once its cancel has committed"
    S14 = "what an owner releases has a COMMITTED as its first final op, which the owner has read back"
    L1 = "after faults end every half is decided or parked in bounded time"
    L2 = "a stuck transaction blocks no other"
    L3 = "two checkers at once change nothing but duplicates"
    L4 = "restart cost is bounded by the undecided count and replay_max"


class Local(enum.Enum):
    """The outcome of a local transaction, as its database reports it."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TargetFact:
    """One target as a consumer sees it; `position` orders what is in one `partition` of its topic."""

    index: int
    topic: str
    key: bytes | None
    body: bytes
    headers: dict[str, str | bytes]
    position: int = 0
    appended_ms: int | None = None
    partition: int = 0

    @property
    def by(self) -> str:
        """The attempt that published it."""
        value = self.headers.get(wire.HEADER_BY, "")
        return value.decode() if isinstance(value, bytes) else value


@dataclass(slots=True)
class Facts:
    """Everything known about one transaction.

    Attributes:
        is_acknowledged: Its producer had the acknowledgement of the half before the database committed.
        duplicate_causes: Number of causes for a second delivery in the history (crash between target and op,
            ambiguous answer, pause past the margin, takeover, resend, a second commit of one handle on a store without
            one decision); None where they were not counted.
        is_excused: Records of it were lost by the broker itself (an unsynced tail): nothing can be said.
        late_releases: Targets published before the DISCARD, or by releases that took effect after their sender had
            given up: those may exist beside a discard.
        unknown_answers: How often a listener really answered UNKNOWN; None where it was not counted.
        has_contrary_caller: The application itself asked for both ends; then only the first in the log must hold.
        is_via_table: Its fence row has state 3: its messages travel by the message table, with or without a half.
        messages: The messages that were published, where no half shows them.
        in_table: Messages that are still in the message table, parked ones included.
        dropped: Messages that the relay must no longer send, by an operator's decision.
        digest: The digest in its committed fence row; empty without one.
        dues_ms: When its delayed messages are due, by the clock that also gives the targets' times.
        cancelled: Delayed messages whose cancel has committed.
    """

    journey: Journey
    targets: list[TargetFact] = field(default_factory=list)
    local: Local = Local.UNKNOWN
    is_acknowledged: bool = False
    duplicate_causes: int | None = None
    is_excused: bool = False
    late_releases: int = 0
    unknown_answers: int | None = None
    has_contrary_caller: bool = False
    is_via_table: bool = False
    messages: Sequence[TargetMessage] = ()
    in_table: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()
    digest: bytes = b""
    dues_ms: Mapping[int, int] = field(default_factory=dict)
    cancelled: frozenset[int] = frozenset()

    @property
    def declared(self) -> Sequence[TargetMessage]:
        """The messages that the transaction holds, as far as they are known."""
        half = self.journey.half
        return self.messages if half is None else half.messages


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant."""

    invariant: Invariant
    transaction_id: bytes
    text: str

    def __str__(self) -> str:
        return f"{self.invariant.name} {id_text(self.transaction_id)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Promises:
    """The promises of the backend under judgement beyond delivery (from its capabilities)."""

    atomic_release: bool = False
    resolution_is_unique: bool = False


def judge(facts: Facts, promises: Promises, *, at_rest: bool) -> list[Violation]:
    """Return every violation in one transaction.

    Args:
        at_rest: Faults are over and the checker had its bounded time: an undecided half or missing target counts.
    """
    found: list[Violation] = []
    identity = facts.journey.transaction_id

    def broken(invariant: Invariant, text: str) -> None:
        found.append(Violation(invariant, identity, text))

    if facts.is_excused:
        return found
    _judge_decision(facts, promises, broken)
    _judge_targets(facts, promises, broken)
    _judge_checks(facts, broken)
    _judge_digest(facts, broken)
    _judge_delays(facts, broken)
    if at_rest:
        _judge_rest(facts, broken)
    return found


_Broken: TypeAlias = Callable[[Invariant, str], None]


def _judge_decision(facts: Facts, promises: Promises, broken: _Broken) -> None:
    journey = facts.journey
    finals = [op for _, op in journey.ops if op.kind in DECIDING_KINDS]
    outcomes = [outcome_of(op.kind) for op in finals]
    if len(set(outcomes)) > 1:
        is_refused = finals[0].kind == OpKind.ROLLBACK and not facts.targets
        if not is_refused and not facts.has_contrary_caller:
            broken(Invariant.S1, f"final ops {[OpKind(op.kind).name for op in finals]}")
    if journey.final and finals and journey.final != outcomes[0]:
        broken(Invariant.S1, f"taken for {OpKind(journey.final).name}; the first final op says otherwise")
    if promises.resolution_is_unique and len(finals) > 1 + (finals[0].kind == OpKind.COMMITTED if finals else 0):
        broken(Invariant.S1, f"{len(finals)} final ops on a store that keeps resolutions unique")
    is_overridden = journey.overrides > 0
    decided = journey.final or (OpKind.COMMIT if journey.committed_at >= 0 else 0)
    if decided and facts.local is not Local.UNKNOWN and not is_overridden:
        wanted = OpKind.COMMIT if facts.local is Local.COMMITTED else OpKind.ROLLBACK
        if decided != wanted:
            broken(Invariant.S4, f"decided {OpKind(decided).name}, the database says {facts.local.value}")
    came_by_table = facts.is_via_table and facts.local is not Local.ROLLED_BACK
    orphans = finals if came_by_table else [*finals, *facts.targets]
    if not journey.halves and orphans and not _is_dismissed_poison(facts):
        broken(Invariant.S5, f"{len(facts.targets)} targets and {len(finals)} final ops without a half")


def _is_dismissed_poison(facts: Facts) -> bool:
    """Whether an operator took poison off the list: its name has a ROLLBACK, no target, and never had a half.

    The same holds for a half that was lost, and there of a COMMIT that was journaled.
    """
    journey, codes = facts.journey, {ParkCode.POISON, ParkCode.LOST}
    is_poison = bool(journey.parked) and all(each.code in codes for each in journey.parked)
    return is_poison and journey.final in {OpKind.ROLLBACK, journey.decided} and not facts.targets


def _judge_targets(facts: Facts, promises: Promises, broken: _Broken) -> None:
    journey = facts.journey
    if not facts.targets:
        return
    is_overridden = journey.overrides > 0
    if journey.final == OpKind.ROLLBACK and not is_overridden:
        broken(Invariant.S2, f"{len(facts.targets)} targets of a rolled back transaction")
    if facts.local is Local.ROLLED_BACK and not is_overridden:
        broken(Invariant.S2, "targets exist but the local transaction did not commit")
    if facts.is_via_table and not is_overridden:
        for by in sorted({target.by for target in facts.targets if target.by.startswith(DECIDERS)}):
            broken(Invariant.S6, f"published by {by}, although the relay of the message table does")
    counts = Counter(target.index for target in facts.targets)
    if facts.duplicate_causes is not None:
        for index, count in sorted(counts.items()):
            if count > 1 + facts.duplicate_causes:
                broken(Invariant.S6, f"target {index} exists {count} times with {facts.duplicate_causes} causes")
    declared = facts.declared
    if declared:
        for target in facts.targets:
            judge_payload(target, declared[target.index] if target.index < len(declared) else None, broken)
    _judge_owner(facts, broken)
    if promises.atomic_release and not facts.is_via_table:
        _judge_order(facts.targets, broken)


def _judge_owner(facts: Facts, broken: _Broken) -> None:
    """Judge what an owner is to release: its publisher, and whether it was decided before (R17)."""
    half = facts.journey.half
    if half is None or not half.is_by_owner or facts.is_via_table:
        return
    if any(target.by.startswith("p:") for target in facts.targets):
        broken(Invariant.S14, "published by its producer, although its owner releases it")
    if facts.journey.final == OpKind.COMMIT and facts.journey.committed_at < 0:
        broken(Invariant.S14, "published without a COMMITTED")


def _judge_digest(facts: Facts, broken: _Broken) -> None:
    """Each copy of the half, or what was published without one, has the digest of the fence row (R15)."""
    contents: list[Sequence[TargetMessage]] = [half.messages for half in facts.journey.halves]
    if facts.digest and any(digest_of(each) != facts.digest for each in contents or [facts.messages]):
        broken(Invariant.S7, "the digest in the fence row is of other messages")


def _judge_delays(facts: Facts, broken: _Broken) -> None:
    for target in facts.targets:
        early_ms = facts.dues_ms.get(target.index, 0) - (target.appended_ms or 0)
        if target.appended_ms is not None and early_ms > 0:
            broken(Invariant.S13, f"target {target.index} came {early_ms} ms too early")
    sent = sorted(facts.cancelled & {target.index for target in facts.targets})
    if sent:
        broken(Invariant.S13, f"targets {sent} exist, although they were cancelled")


def judge_payload(target: TargetFact, message: object, broken: _Broken) -> None:
    """Report a target that is not the half's message (S7)."""
    headers = {name: value for name, value in target.headers.items() if name not in wire.OWN_HEADERS}
    expected = (getattr(message, "topic", None), getattr(message, "key", None), getattr(message, "body", None))
    key = target.key if target.key is not None else target.headers.get(wire.HEADER_KEY)
    if (target.topic, key, target.body) != expected or _plain(headers) != _plain(getattr(message, "headers", {})):
        broken(Invariant.S7, f"target {target.index} differs from the half")


def _plain(headers: dict[str, str | bytes]) -> dict[str, bytes]:
    return {name: value.encode() if isinstance(value, str) else value for name, value in headers.items()}


def _judge_order(targets: Sequence[TargetFact], broken: _Broken) -> None:
    """An atomic release puts a transaction's messages for one partition there in the order of their publishing.

    A publisher's second release begins with a message that it has published before.
    """
    released: dict[tuple[str, int, str], list[int]] = {}
    for target in sorted(targets, key=lambda target: target.position):
        key = (target.topic, target.partition, target.by)
        before = released.setdefault(key, [])
        if target.index in before:
            before.clear()
        elif before and target.index < before[-1]:
            broken(Invariant.S12, f"target {target.index} comes after target {before[-1]}")
        before.append(target.index)


def _judge_checks(facts: Facts, broken: _Broken) -> None:
    journey = facts.journey
    half = journey.half
    if half is not None and half.check_max:
        most = max((op.count for _, op in journey.ops if op.kind == OpKind.CHECKED), default=0)
        if most > half.check_max:
            broken(Invariant.S9, f"{most} checks were counted; at most {half.check_max} are allowed")
    if facts.unknown_answers is not None and half is not None and half.check_max and journey.exhausted:
        needed = half.check_max * len(journey.exhausted)
        if facts.unknown_answers < needed:
            broken(Invariant.S9, f"discarded after {facts.unknown_answers} answers; {needed} must be given first")
    discarded = [op for _, op in journey.ops if op.kind == OpKind.DISCARD]
    generations = {parked.generation for parked in journey.parked}
    for op in discarded:
        if op.generation not in generations:
            broken(Invariant.S10, f"DISCARD of generation {op.generation} without a parked record")
    if journey.undeliverable_generation >= 0 and journey.decided != OpKind.COMMIT:
        broken(Invariant.S3, "parked undeliverable, and no decision to commit is in the log")
    resumed = max((half.generation for half in journey.halves), default=0) > journey.discarded_generation
    is_forced = journey.forced > 0
    # Relays publish the rows of the table whether or not a half ends; targets of others are S6's concern.
    is_by_relay = facts.is_via_table
    if facts.targets and journey.is_parked and not (resumed or is_forced or is_by_relay):
        undeliverable = any(parked.code == ParkCode.UNDELIVERABLE for parked in journey.parked)
        if not undeliverable and len(facts.targets) > facts.late_releases:
            broken(Invariant.S10, "targets of a discarded half that was not resumed")


def _judge_rest(facts: Facts, broken: _Broken) -> None:
    journey, half = facts.journey, facts.journey.half
    if journey.is_pending:
        broken(Invariant.L1, f"still undecided; ops {[OpKind(op.kind).name for _, op in journey.ops]}")
    is_undecided = half is not None and not journey.final and not journey.is_parked
    if facts.targets and is_undecided and not facts.is_via_table:
        broken(Invariant.S2, "targets without a decision")
    present = {target.index for target in facts.targets} | facts.dropped | facts.cancelled
    missing = [index for index in range(len(facts.declared)) if index not in present]
    if journey.final == OpKind.COMMIT and missing:
        broken(Invariant.S3, f"decided COMMIT, but targets {missing} do not exist")
    if facts.is_acknowledged and facts.local is Local.COMMITTED:
        if half is None and not facts.is_via_table:
            broken(Invariant.S8, "acknowledged and committed, but the half is gone")
        elif not facts.in_table.issuperset(missing) and (half is None or not journey.is_parked):
            broken(Invariant.S8, f"acknowledged and committed, but targets {missing} do not exist")


INVARIANTS_OF: Final[Mapping[Verdict, frozenset[Invariant]]] = {
    Verdict.CONFLICT: frozenset({Invariant.S1}),
    Verdict.LOST: frozenset({Invariant.S3, Invariant.S8}),
    Verdict.LEAK: frozenset({Invariant.S2, Invariant.S10}),
    Verdict.PHANTOM: frozenset({Invariant.S5}),
    Verdict.MISDECIDED: frozenset({Invariant.S4}),
    Verdict.CORRUPT: frozenset({Invariant.S7}),
    Verdict.DUP_TARGET: frozenset({Invariant.S6}),
    Verdict.STUCK: frozenset({Invariant.L1}),
}
"""The invariants that each verdict of the audit breaks."""
