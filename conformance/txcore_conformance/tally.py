"""Computes the numbers for the audit's verdicts from the facts of one transaction."""

from __future__ import annotations

from typing import Final

from txcore import wire
from txcore.audit.verdicts import CANCELLED, DROPPED, FAR, SENT, Tally
from txcore.digest import digest_of, joined, message_digest
from txcore.history.journey import Journey
from txcore.op_rules import outcome_of
from txcore.records import DECIDING_KINDS, FINAL_KINDS, OpKind, ParkCode
from txcore_conformance.invariants import Facts, Local, TargetFact, judge_payload

ENDS: Final = (OpKind.COMMIT, OpKind.ROLLBACK)


def tally_of(facts: Facts, *, check_max: int = 15, interval_ms: int = 30_000, immunity_ms: int = 0) -> Tally:
    """Return the audit's tally of this transaction, as computed from the same logs.

    Args:
        check_max, interval_ms, immunity_ms: The checker's own policy, for halves that leave it to the checker.
    """
    journey, half = facts.journey, facts.journey.half
    deciding = [(n, op) for n, (_, op) in enumerate(journey.ops) if op.kind in DECIDING_KINDS]
    finals = [(n, op) for n, op in deciding if op.kind in FINAL_KINDS]
    firsts = {end: min((n for n, op in deciding if outcome_of(op.kind) == end), default=FAR) for end in ENDS}
    present = {target.index for target in facts.targets}
    copies = list(zip(journey.halves, journey.half_times_ms, strict=True))
    times = [each.born_ms if appended_ms is None else appended_ms for each, appended_ms in copies]
    deadlines = [
        (each.born_ms if appended_ms is None else appended_ms)
        + max(each.immunity_ms, immunity_ms)
        + (each.check_max or check_max) * (each.interval_ms or interval_ms)
        for each, appended_ms in copies
    ]
    committed = _table_state(facts) if facts.is_via_table else 1
    rows = {Local.COMMITTED: committed, Local.ROLLED_BACK: 2, Local.UNKNOWN: 0}
    return Tally(
        halves=len(journey.halves),
        generation=journey.generation,
        declared=len(half.messages) if half is not None else 0,
        fenced=int(any(each.fence_decides for each in journey.halves)),
        deadline_ms=max(deadlines, default=0),
        half_ms=min(times, default=FAR),
        op_ms=min((_time_ms(journey, n) for n, _ in deciding), default=FAR),
        targets=len(facts.targets),
        present=len(present),
        corrupt=_corrupt(facts),
        altered=int(any(digest_of(half.messages) != facts.digest for half in journey.halves if facts.digest)),
        missent=_missent(facts),
        target_ms=max((target.appended_ms or 0 for target in facts.targets), default=0),
        commits=sum(outcome_of(op.kind) == OpKind.COMMIT for _, op in finals),
        committed=len(deciding) - len(finals),
        rollbacks=sum(op.kind == OpKind.ROLLBACK for _, op in finals),
        first_commit=firsts[OpKind.COMMIT],
        first_rollback=firsts[OpKind.ROLLBACK],
        decided=journey.decided,
        discarded=journey.discarded_generation,
        undeliverable=journey.undeliverable_generation,
        discarded_ms=journey.discarded_ms,
        overrides=journey.overrides,
        forces=sum(op.kind == OpKind.FORCE for _, op in journey.ops),
        parked=len(journey.parked),
        poison=sum(parked.code in {ParkCode.POISON, ParkCode.LOST} for parked in journey.parked),
        row=rows[facts.local],
        row_early=int(facts.local is Local.COMMITTED and facts.is_acknowledged),
        absence=int(not facts.is_excused),
        row_absence=1,
    )


def _time_ms(journey: Journey, number: int) -> int:
    appended_ms = journey.op_times_ms[number] if number < len(journey.op_times_ms) else None
    return journey.ops[number][1].at_ms if appended_ms is None else appended_ms


def _table_state(facts: Facts) -> int:
    """Return the state that the audit reads for a row of state 3."""
    if facts.in_table:
        return 3
    return DROPPED if facts.dropped else CANCELLED if facts.cancelled else SENT


def _missent(facts: Facts) -> int:
    """Return whether the targets that only the fence row vouches for are not its transaction's messages."""
    is_vouched = facts.is_via_table and _table_state(facts) == SENT and not facts.journey.halves
    if not (is_vouched and facts.digest and facts.targets):
        return 0
    found = sorted({(target.index, _digest_of_target(target)) for target in facts.targets})
    return int(joined([digest for _, digest in found]) != facts.digest)


def _digest_of_target(target: TargetFact) -> bytes:
    headers = {name: value for name, value in target.headers.items() if name not in wire.OWN_HEADERS}
    key = target.key if target.key is not None else target.headers.get(wire.HEADER_KEY)
    return message_digest(target.topic, key, target.body, headers)


def _corrupt(facts: Facts) -> int:
    """Count the targets that differ from the half."""
    half = facts.journey.half
    if half is None:
        return 0
    differing: set[int] = set()
    for target in facts.targets:
        message = half.messages[target.index] if target.index < len(half.messages) else None
        judge_payload(target, message, lambda _, __, index=target.index: differing.add(index))  # type: ignore[misc]
    return len(differing)
