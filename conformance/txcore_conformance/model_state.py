"""States, records and the folded logs of the explicit-state model.

A state is one flat tuple of the durable values, the values in memory, and the records under way. The logs
are stored folded: every record is applied in the order in which it lands, by the code that reads the logs
in production (`model_fold`). A lagging reader is a checker that acts on an earlier plan. The appends are in
`model_steps` and `model_checkers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from txcore.records import OWNED_KINDS, OpKind, ParkCode
from txcore_conformance.model_fold import Entry, Journal, Terms, landed

Kind: TypeAlias = Literal["must", "may", "fault"]
Slot: TypeAlias = Literal["owner", "former owner"]

TOKENED: Final = (*(OpKind(kind).name for kind in OWNED_KINDS), "checkpoint")
"""Kinds that count only under the newest CLAIM (R13)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One bounded world: its promises and its number of faults.

    Args:
        fenced: the check goes through the fence row; otherwise a listener answers, perhaps UNKNOWN.
        half_first: the local transaction starts after the half is acknowledged (RocketMQ style).
        faults: budget of faults over the whole run.
        check_max: answered UNKNOWN checks before a discard (listener only).
        table: an unknown or refused half continues in the message table (fence state 3).
        prune: the fence table is pruned below its horizon.
        resume: an operator may resume a parked half once; target 2 may refuse until it is repaired; a new
            owner rewrites the checkpoint with its token.
        by_owner: the producer writes COMMITTED, and the partition's owner publishes the targets.
        mutant: identifier of the rule that is left out.
    """

    name: str
    fenced: bool
    half_first: bool
    faults: int
    check_max: int = 1
    table: bool = False
    prune: bool = False
    resume: bool = False
    by_owner: bool = False
    mutant: str | None = None


class Session(NamedTuple):
    """One checker between the claim of the partition and its loss; the phase is the plan of its next action."""

    phase: str
    live: bool = False
    generation: int = -1
    checks: int = 0


class Record(NamedTuple):
    """A sent record without an answer to its sender; it lands at any later time."""

    kind: str
    by: str
    live: bool = False
    generation: int = -1
    value: str = ""
    checks: int = 0
    committed: bool = False


NEW: Final = Session("new")
GONE: Final = Session("gone")
RETIRED: Final = Session("retired")  # only under the mutant no_new_assignment


class State(NamedTuple):
    """All durable values, all values in memory, and the records under way."""

    producer: str = "start"
    late: bool = False
    database: str = "none"
    fence: str = "none"
    clock: int = 0
    half: int = -1
    final: str = ""
    decided: str = ""
    checks: int = 0
    answers: int = 0
    discard: int = -1
    undeliverable: bool = False
    committed: bool = False
    parked: int = -1
    copies1: int = 0
    copies2: int = 0
    checkpoint: int = -1
    owner: Session = NEW
    former: Session = GONE
    relay: str = "none"
    horizon: bool = False
    refusing: bool = False
    flight: tuple[Record, ...] = ()
    faults: int = 0
    breach: str = ""


Edge: TypeAlias = tuple[str, Kind, State]

_OWNER: Final = State._fields.index("owner")
_FORMER: Final = State._fields.index("former")
_FLIGHT: Final = State._fields.index("flight")


def put(s: State, slot: Slot, session: Session) -> State:
    """Return *s* with *session* in *slot*; four times as fast as `_replace`, in the most frequent call."""
    at = _OWNER if slot == "owner" else _FORMER
    return State._make((*s[:at], session, *s[at + 1 :]))


def _fault(s: State, flight: tuple[Record, ...]) -> State:
    """Return *s* with *flight* under way after a fault of an append; only the last three fields change."""
    return State._make((*s[:_FLIGHT], flight, s.faults - 1, s.breach))


def send(c: Configuration, s: State, label: str, record: Record, then: tuple[State, State]) -> Iterator[Edge]:
    """Yield the outcomes of one append: stored and acknowledged, lost, or unanswered and under way.

    *then* is the state of the sender after an acknowledgement, and after none. A lost acknowledgement is
    the third outcome with the record landing at once.
    """
    yield label + _remark(s, record), "must", land(c, then[0], record)
    if s.faults:
        flight = tuple(sorted((*s.flight, record)))
        yield label + ": request lost", "fault", _fault(then[1], s.flight)
        yield label + ": no answer, still under way", "fault", _fault(then[1], flight)


def _remark(s: State, r: Record) -> str:
    if r.kind in TOKENED and not r.live:
        return " (older token)"
    if r.kind in ("COMMIT", "COMMITTED", "RELEASED", "ROLLBACK") and s.final:
        return " (after the first final op)"
    if r.kind == "COMMITTED" and s.half >= 0 and s.discard >= s.half:
        return " (of a parked half)"
    if r.kind == "RELEASED" and not s.committed:
        return " (without a COMMITTED)"
    return f" of generation {s.half}" if r.kind in ("COMMIT", "RELEASED") and s.half > 0 else ""


def land(c: Configuration, s: State, r: Record) -> State:
    """Apply *r* at the end of its log, as every reader in log order does."""
    match r.kind:
        case "target 1" | "target 2":
            closed = s.half >= 0 and s.discard >= s.half and not s.final and not s.undeliverable
            unread = c.by_owner and r.by == "checker" and not s.committed
            breach = "S10" if closed else "S14" if unread else s.breach
            if r.kind == "target 1":
                return s._replace(copies1=s.copies1 + 1, breach=breach)
            return s._replace(copies2=s.copies2 + 1, breach=breach)
        case "park record":
            return s._replace(parked=max(s.parked, r.generation))
        case "CLAIM":
            older = tuple(sorted(x._replace(live=False) for x in s.flight))
            owner, former = s.owner._replace(live=False), s.former._replace(live=False)
            return s._replace(owner=owner, former=former, flight=older)
        case "RESUME":  # only the mutant resume_as_op writes it
            return s._replace(discard=-1, checks=0, answers=0)
        case "checkpoint":
            return _land_checkpoint(c, s, r)
        case _:
            return _fold(c, s, r)


def _fold(c: Configuration, s: State, r: Record) -> State:
    """Apply a record of the half or op log as every reader of the logs does."""
    if c.mutant == "last_op_wins" and r.kind == "DISCARD" and s.final and r.live:
        return s._replace(final="", breach="S1")
    decision = "" if r.kind == "DISCARD" else r.value
    entry = Entry(r.kind, max(r.generation, 0), r.live, r.checks, decision, _reason(c, r), committed=r.committed)
    before = journal_of(s)
    after, is_conflict = landed(terms_of(c), before, entry)
    breach = "S1" if is_conflict else s.breach
    if after == before:
        return s if breach == s.breach else s._replace(breach=breach)
    answers = s.answers if after.half == before.half else 0
    return s._replace(**after._asdict(), answers=answers, breach=breach)


def _reason(c: Configuration, r: Record) -> str:
    if r.kind != "DISCARD":
        return ""
    if r.value:
        return ParkCode.UNDELIVERABLE
    # Found by this model: the owner's own late DISCARD may land after its late DECIDED, on which it acts.
    return ParkCode.PRUNED if c.fenced or c.mutant == "discard_after_decided" else ParkCode.CHECKS_EXHAUSTED


def journal_of(s: State) -> Journal:
    """Return the journal of the two logs."""
    return Journal(s.half, s.final, s.decided, s.checks, s.discard, s.undeliverable, s.committed)


def terms_of(c: Configuration) -> Terms:
    """Return the rules by which the half is judged."""
    return Terms(c.fenced, c.check_max, c.by_owner)


def _land_checkpoint(c: Configuration, s: State, r: Record) -> State:
    if r.live:
        return s._replace(checkpoint=r.generation)
    if c.mutant != "stale_checkpoint_accepted":
        return s
    return s._replace(checkpoint=r.generation, breach="L4" if r.generation < s.checkpoint else s.breach)


def arrivals(c: Configuration, s: State) -> Iterator[Edge]:
    """Yield the landing of each record under way."""
    for i, r in enumerate(s.flight):
        if i == 0 or r != s.flight[i - 1]:
            rest = s._replace(flight=s.flight[:i] + s.flight[i + 1 :])
            if r.kind == "CLAIM":
                yield "late CLAIM of an earlier attempt lands", "must", land(c, rest, r)
            else:
                yield f"late {r.kind} of the {r.by} lands" + _remark(s, r), "must", land(c, rest, r)
