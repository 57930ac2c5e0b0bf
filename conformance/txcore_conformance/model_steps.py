"""Steps of the explicit-state model: producer, database, time, relay, pruning, operator, and the kills."""

from __future__ import annotations

from collections.abc import Iterator

from txcore_conformance.model_checkers import checker
from txcore_conformance.model_state import GONE, NEW, Configuration, Edge, Record, State, arrivals, send


def successors(c: Configuration, s: State) -> Iterator[Edge]:
    """Yield every step possible in *s*: its name, whether it must happen, and the state after it."""
    yield from _producer(c, s)
    yield from _database(s)
    yield from _clock(c, s)
    yield from checker(c, s, "owner", s.owner)
    if s.former.phase != "gone":
        yield from checker(c, s, "former owner", s.former)
    if s.flight:
        yield from arrivals(c, s)
    if c.table:
        yield from _relay(c, s)
    if c.prune:
        yield from _prune(c, s)
    if c.resume:
        yield from _operator(c, s)
    if s.faults:
        yield from _kills(s)


def _producer(c: Configuration, s: State) -> Iterator[Edge]:
    match s.producer:
        case "start":
            if c.half_first:
                yield from _append_half(c, s)
            else:
                yield from _begin(c, s)
        case "open":
            yield from _append_half(c, s)
        case "prepared":
            if c.fenced and s.database == "none":
                yield from _begin(c, s)
            else:
                yield from _end_local_transaction(c, s)
        case "table":
            yield from _end_local_transaction(c, s)
        case "doubt":
            yield "producer: returns UNKNOWN", "must", s._replace(producer="done")
            if c.mutant == "exception_is_rollback":
                yield "producer: treats the error as a rollback", "must", s._replace(producer="op ROLLBACK")
            elif c.fenced:
                yield "producer: rollback() after the error", "must", s._replace(producer="tombstone")
        case "tombstone":
            yield from _tombstone(c, s)
        case "publish 1" | "publish 2" | "op COMMIT" | "op COMMITTED" | "op ROLLBACK":
            yield from _end(c, s)


def _begin(c: Configuration, s: State) -> Iterator[Edge]:
    if s.horizon:
        refused = "producer: fence row refused, below the horizon"
        yield refused, "must", s._replace(producer="done", database="rolled back")
    elif s.fence == "tombstone":
        refused = "producer: fence row refused, the tombstone is there"
        yield refused, "must", s._replace(producer="tombstone", database="rolled back")
    else:
        phase = "prepared" if c.half_first else "open"
        yield "producer: BEGIN and fence row", "must", s._replace(producer=phase, database="open")


def _append_half(c: Configuration, s: State) -> Iterator[Edge]:
    acked = s._replace(producer="prepared")
    if c.mutant == "local_after_uncertain_ack":
        unknown = acked
    elif c.table:
        unknown = s._replace(producer="table", relay="staged")
    else:
        unknown = s._replace(producer="done", database="rolled back")
    yield from send(c, s, "producer: half append", Record("half", "producer", generation=0), (acked, unknown))
    if s.faults:
        refused = s._replace(producer="done", database="rolled back") if unknown is acked else unknown
        yield "producer: half append: refused", "fault", refused._replace(faults=s.faults - 1)


def _end_local_transaction(c: Configuration, s: State) -> Iterator[Edge]:
    table = s.producer == "table"
    known = "done" if table else _first_phase(c)
    yield "producer: database commit", "must", _commit(s)._replace(producer=known)
    if s.faults:
        # In state 3 the producer writes no op any more, with either outcome of its transaction.
        doubt = s._replace(producer="done" if table else "doubt", database="doubt", faults=s.faults - 1)
        yield "producer: database commit: error, outcome unknown", "fault", doubt
    after = "done" if table else "tombstone" if c.fenced else "op ROLLBACK"
    undone = s._replace(producer=after, database="rolled back", relay="none")
    yield "producer: database rollback", "must", undone


def _first_phase(c: Configuration) -> str:
    if c.by_owner:
        return "op COMMITTED"
    return "op COMMIT" if c.mutant == "op_before_target" else "publish 1"


def _commit(s: State) -> State:
    table = s.relay == "staged"
    fence, relay = ("table", "row") if table else ("commit", s.relay)
    return s._replace(database="committed", fence=fence, relay=relay)


def _tombstone(c: Configuration, s: State) -> Iterator[Edge]:
    """Yield the answers to the producer's own upsert of the tombstone (R5)."""
    if c.mutant == "rollback_without_tombstone":
        yield "producer: rolls back without the tombstone", "must", s._replace(producer="op ROLLBACK")
    elif s.database in ("open", "doubt"):
        yield "producer: tombstone blocked, returns UNKNOWN", "must", s._replace(producer="done")
    elif s.fence in ("commit", "table"):
        yield "producer: tombstone answers CONFLICT", "must", s._replace(producer="done")
    elif s.fence == "none" and s.horizon:
        yield "producer: tombstone refused, below the horizon", "must", s._replace(producer="done")
    else:
        yield "producer: tombstone in force", "must", s._replace(producer="op ROLLBACK", fence="tombstone")


def _end(c: Configuration, s: State) -> Iterator[Edge]:
    """Yield the next append of an end; past the horizon the producer gives way (R6)."""
    if s.clock and not s.late and c.mutant != "late_producer_publishes":
        yield "producer: TOO_LATE, gives way", "must", s._replace(producer="done")
        return
    if (c.fenced or c.by_owner) and s.faults and not s.late and not s.clock:
        yield "producer: paused after its clock reading", "fault", s._replace(late=True, faults=s.faults - 1)
    op_first = c.mutant == "op_before_target"
    done = s._replace(producer="done", late=False)
    label = "producer (past its horizon)" if s.clock else "producer"
    match s.producer:
        case "publish 1":
            after = s._replace(producer="publish 2", late=False)
            yield from send(c, s, f"{label}: target 1", Record("target 1", "producer"), (after, done))
        case "publish 2":
            after = done if op_first else s._replace(producer="op COMMIT", late=False)
            if s.refusing:
                yield f"{label}: target 2 refused", "must", done
            else:
                yield from send(c, s, f"{label}: target 2", Record("target 2", "producer"), (after, done))
                if c.resume and s.faults:
                    refusal = done._replace(refusing=True, faults=s.faults - 1)
                    yield f"{label}: target 2 begins to refuse", "fault", refusal
        case "op COMMIT":
            after = s._replace(producer="publish 1", late=False) if op_first else done
            yield from send(c, s, f"{label}: op COMMIT", Record("COMMIT", "producer"), (after, done))
        case "op COMMITTED":
            yield from send(c, s, f"{label}: op COMMITTED", Record("COMMITTED", "producer"), (done, done))
        case _:
            yield from send(c, s, f"{label}: op ROLLBACK", Record("ROLLBACK", "producer"), (done, done))


def _database(s: State) -> Iterator[Edge]:
    undone = s._replace(database="rolled back", relay="none")
    if s.database == "doubt":
        yield "database: the commit in doubt applies", "must", _commit(s)
        yield "database: the commit in doubt is undone", "must", undone
    elif s.database == "open" and s.producer == "done":
        yield "database: drops the transaction", "must", undone


def _clock(c: Configuration, s: State) -> Iterator[Edge]:
    """Yield the passing of the producer's horizon and of the immunity, which only starts with a stored half.

    A producer that is delayed between its first and its last append counts as a fault: it causes duplicates.
    The margin covers the delivery timeout: without a fence no record of the producer lands after immunity. A COMMITTED
    may: the owner reads first which op is the first.
    """
    if s.clock == 2 or s.half < 0:
        return
    if s.clock == 0 and s.producer != "done":
        if s.producer not in ("publish 2", "op COMMIT") or s.late:
            yield "time: the producer's horizon passes", "must", s._replace(clock=1)
        elif s.faults:
            yield "time: horizon passes in a pause", "fault", s._replace(clock=1, faults=s.faults - 1)
    elif c.fenced or c.by_owner or c.mutant == "margin_too_small" or not any(r.by == "producer" for r in s.flight):
        yield "time: immunity expires", "must", s._replace(clock=2)


def _kills(s: State) -> Iterator[Edge]:
    faults = s.faults - 1
    if s.producer not in ("start", "done"):
        yield "producer: killed", "fault", s._replace(producer="done", late=False, faults=faults)
    if s.owner.phase != "new":
        yield "owner: killed, the other checker takes over", "fault", s._replace(owner=NEW, faults=faults)
        moved = s._replace(former=s.owner, owner=NEW, faults=faults)
        yield "partition given to the other checker", "fault", moved
    if s.former.phase != "gone":
        yield "former owner: killed", "fault", s._replace(former=GONE, faults=faults)
    if s.relay in ("target 1", "target 2"):
        yield "relay: killed", "fault", s._replace(relay="row", faults=faults)


def _relay(c: Configuration, s: State) -> Iterator[Edge]:
    retry = s._replace(relay="row")
    match s.relay:
        case "row":
            after = s._replace(relay="target 1")
            yield from send(c, s, "relay: target 1", Record("target 1", "relay"), (after, retry))
        case "target 1":
            after = s._replace(relay="target 2")
            yield from send(c, s, "relay: target 2", Record("target 2", "relay"), (after, retry))
        case "target 2":
            yield "relay: marks the row sent", "must", s._replace(relay="sent")


def _prune(c: Configuration, s: State) -> Iterator[Edge]:
    careless = c.mutant == "prune_without_horizon"
    if not s.horizon and not careless:
        yield "prune: raises the horizon", "may", s._replace(horizon=True)
    in_force = s.final and s.parked < 0 and s.fence in ("commit", "tombstone")
    if in_force and (s.horizon or careless):
        yield "prune: deletes the fence row", "may", s._replace(fence="none")


def _operator(c: Configuration, s: State) -> Iterator[Edge]:
    if s.refusing:
        yield "operator: repairs target 2", "may", s._replace(refusing=False)
    if s.half == 0 and s.discard == 0 and not s.final and not any(r.kind == "half" for r in s.flight):
        kind = "RESUME" if c.mutant == "resume_as_op" else "half"
        copy = Record(kind, "operator", generation=1, value=s.decided, committed=s.committed)
        for name, _, after in send(c, s, "operator: resumes", copy, (s, s)):
            yield name, "fault" if after.faults < s.faults else "may", after
