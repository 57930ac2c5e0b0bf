"""Steps of the two checkers of the explicit-state model: claim, read, judge, ask, act, advance.

The *owner* is the checker to which the partition is assigned, the *former owner* one that lost it and does
not know that. An unanswered check (R10) changes nothing and is not a step: the plan stays until an answer
is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txcore.checker.decide import Decision
from txcore_conformance.model_fold import Judgement, judged
from txcore_conformance.model_state import (
    GONE,
    NEW,
    RETIRED,
    Configuration,
    Edge,
    Record,
    Session,
    Slot,
    State,
    journal_of,
    land,
    put,
    send,
    terms_of,
)

OP_FIRST: Final = ("op_before_target", "released_before_target")
"""Mutants whose owner writes the end before it publishes."""


def checker(c: Configuration, s: State, slot: Slot, me: Session) -> Iterator[Edge]:
    """Yield the next steps of the checker in *slot*, whose session is *me*."""
    match me.phase:
        case "new":
            claimed = land(c, s, Record("CLAIM", "checker"))
            mine = put(claimed, slot, Session("claimed" if c.resume else "idle", live=True))
            yield f"{slot}: CLAIM read back", "must", mine
            if s.faults:
                spent = s._replace(faults=s.faults - 1)
                flight = tuple(sorted((*s.flight, Record("CLAIM", "checker"))))
                yield f"{slot}: CLAIM: no answer, still under way", "fault", spent._replace(flight=flight)
        case "claimed":
            idle = put(s, slot, Session("idle", me.live))
            record = Record("checkpoint", "checker", me.live, s.checkpoint)
            yield from send(c, s, f"{slot}: checkpoint rewritten", record, (idle, idle))
        case "idle" | "settled":
            if _is_due(c, s, me):
                reading = Session("read", me.live, s.half)
                yield f"{slot}: reads the halves", "must", put(s, slot, reading)
        case "read":
            yield _judge(c, s, slot, me)
        case "check":
            yield from (_ask_fence if c.fenced else _ask_listener)(c, s, slot, me)
        case "advance":
            settled = put(s, slot, Session("settled", me.live, me.generation))
            record = Record("checkpoint", "checker", me.live, me.generation)
            yield from send(c, s, f"{slot}: checkpoint advanced", record, (settled, settled))
        case _:
            yield from _act(c, s, slot, me)


def _is_due(c: Configuration, s: State, me: Session) -> bool:
    """Return whether a round can change anything: a pending half that is old enough or finished."""
    has_new = s.half > (me.generation if me.phase == "settled" else s.checkpoint)
    early = c.mutant in ("immunity_counts_as_check", "checkpoint_past_undecided")
    return has_new and (s.clock == 2 or bool(s.final) or s.committed or early)


def _judge(c: Configuration, s: State, slot: Slot, me: Session) -> Edge:
    """Return the plan made at the point where the checker's own TICK is read back (caught up)."""
    label = f"{slot}: caught up"
    if not me.live:
        # A late CLAIM of a dead checker may depose the assigned one: giving up must bring a new assignment.
        again = GONE if slot == "former owner" else RETIRED if c.mutant == "no_new_assignment" else NEW
        return f"{label}, foreign CLAIM, gives up the partition", "must", put(s, slot, again)
    judgement = judged(terms_of(c), journal_of(s), me.generation, s.clock < 2)
    if c.mutant == "checkpoint_past_undecided":
        plan = "advance"
    elif c.mutant == "immunity_counts_as_check" and judgement.decision is Decision.WAIT:
        plan = "checked"
    else:
        plan = _plan(c, judgement)
    checks = s.checks if plan in ("check", "checked") else 0
    return f"{label}, plan: {plan}", "must", put(s, slot, Session(plan, me.live, me.generation, checks))


def _plan(c: Configuration, judgement: Judgement) -> str:
    """Return the first step of the production code's decision."""
    match judgement.decision:
        case Decision.DONE:
            return "advance"
        case Decision.WAIT:
            return "idle"
        case Decision.CHECK:
            return "check"
        case Decision.DISCARD:
            return _discard_plan(c)
    assert judgement.decision is Decision.FINISH
    if judgement.outcome == "ROLLBACK":
        return "rollback"
    if c.by_owner and judgement.lacks_committed:
        return "decide for the owner"
    if judgement.missing:
        return "publish 2"
    return _publish_plan(c)


def _publish_plan(c: Configuration) -> str:
    return "commit" if c.mutant in OP_FIRST else "publish 1"


def _discard_plan(c: Configuration) -> str:
    return "discard" if c.mutant == "discard_before_park" else "park"


def _ask_fence(c: Configuration, s: State, slot: Slot, me: Session) -> Iterator[Edge]:
    """Yield the answer of the fence; no step while the producer's transaction holds the row (no answer)."""
    label = f"{slot}: check"
    if c.mutant == "no_fence" and s.fence == "none":
        believed = put(s, slot, me._replace(phase="rollback"))
        yield f"{label} finds nothing, treats that as ROLLBACK", "must", believed
    elif s.database in ("open", "doubt"):
        return
    elif s.fence == "commit":
        plan = "decide for the owner" if c.by_owner else _publish_plan(c)
        yield f"{label} answers COMMIT", "must", put(s, slot, me._replace(phase=plan))
    elif s.fence == "table":
        if s.relay == "sent":
            plan = "publish 1" if c.mutant == "owner_publishes_state_3" else "commit"
            yield f"{label} answers: sent from the table", "must", put(s, slot, me._replace(phase=plan))
    elif s.fence == "none" and s.horizon:
        yield f"{label} answers PRUNED", "must", put(s, slot, me._replace(phase=_discard_plan(c)))
    else:
        stored = put(s._replace(fence="tombstone"), slot, me._replace(phase="rollback"))
        yield f"{label} answers ROLLBACK, tombstone", "must", stored


def _ask_listener(c: Configuration, s: State, slot: Slot, me: Session) -> Iterator[Edge]:
    """Yield the listener's answers: the truth once it is settled, or UNKNOWN at any time."""
    answered = s._replace(answers=min(s.answers + 1, c.check_max)) if me.generation == s.half else s
    unknown = put(answered, slot, me._replace(phase="checked"))
    yield f"{slot}: listener answers UNKNOWN", "must", unknown
    if s.database in ("committed", "rolled back"):
        truth = "COMMIT" if s.database == "committed" else "ROLLBACK"
        decide = put(answered, slot, me._replace(phase=f"decide {truth}"))
        yield f"{slot}: listener answers {truth}", "must", decide
    if c.mutant == "unanswered_counts_as_check":
        counted = put(s, slot, me._replace(phase="checked"))
        yield f"{slot}: listener gives no answer, counted", "must", counted


def _act(c: Configuration, s: State, slot: Slot, me: Session) -> Iterator[Edge]:
    """Yield the appends of a plan; after an op or an unknown outcome the next round reads the log."""
    idle = put(s, slot, Session("idle", me.live))
    closed = put(s, slot, me._replace(phase="advance")) if c.mutant == "checkpoint_past_unread_op" else idle
    live, generation = me.live, me.generation

    def then(phase: str) -> State:
        return put(s, slot, Session(phase, live, generation))

    def append(record: Record, acked: State, unknown: State) -> Iterator[Edge]:
        name = f"op {record.kind}" if record.kind in ("COMMIT", "COMMITTED", "ROLLBACK") else record.kind
        return send(c, s, f"{slot}: {name}", record, (acked, unknown))

    op_first = c.mutant in OP_FIRST
    match me.phase:
        case "decide for the owner":
            acked = then("publish 1") if c.mutant == "published_before_read_back" else idle
            yield from append(Record("COMMITTED", "checker"), acked, idle)
        case "publish 1":
            yield from append(Record("target 1", "checker"), then("publish 2"), idle)
        case "publish 2" if s.refusing:
            yield f"{slot}: target 2 refused, to be parked", "must", then("park missing")
        case "publish 2":
            yield from append(Record("target 2", "checker"), idle if op_first else then("commit"), idle)
            if c.resume and s.faults:
                refusal = then("park missing")._replace(refusing=True, faults=s.faults - 1)
                yield f"{slot}: target 2 begins to refuse, to be parked", "fault", refusal
        case "commit":
            kind = "RELEASED" if c.by_owner else "COMMIT"
            yield from append(Record(kind, "checker"), then("publish 1") if op_first else closed, closed)
        case "rollback":
            yield from append(Record("ROLLBACK", "checker"), closed, closed)
        case "park" | "park missing":
            parked = idle if c.mutant == "discard_before_park" else then(me.phase.replace("park", "discard"))
            yield from append(Record("park record", "checker", generation=generation), parked, idle)
        case "discard" | "discard missing":
            discarded = then("park") if c.mutant == "discard_before_park" else closed
            reason = "undeliverable" if me.phase == "discard missing" else ""
            yield from append(Record("DISCARD", "checker", live, generation, reason), discarded, closed)
        case "checked":
            counted = Record("CHECKED", "checker", live, generation, checks=me.checks + 1)
            yield from append(counted, idle, idle)
        case "decide COMMIT" | "decide ROLLBACK":
            answer = me.phase.removeprefix("decide ")
            unread = then("publish 1" if answer == "COMMIT" else "rollback")
            acked = unread if c.mutant == "decided_not_read_back" else idle
            yield from append(Record("DECIDED", "checker", live, generation, answer), acked, idle)
