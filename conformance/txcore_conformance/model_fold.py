"""What the two logs of the explicit-state model say, by the code that txcore itself runs.

The model keeps of its logs a `Journal`: no more than a reader can still tell apart. Whatever lands, and whatever a
checker concludes, is found by writing that journal out as records, reading them with `PartitionState`, and asking
`decide`. So the model has no second opinion on which op counts, what closes a half, and what is to be done about it.
A journal and a record have one answer, so each is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from txcore.checker.decide import Decision, Pending, decide, terms_of
from txcore.checker.partition_state import PartitionState
from txcore.records import FINAL_KINDS, Op, OpKind, ParkCode, Position

ID: Final = bytes(16)
LIVE: Final = b"claim in force."
OLDER: Final = b"an older claim."
IMMUNITY_MS: Final = 1_000.0
SECOND: Final = (1,)
"""The index of the target that refused, of a half that was parked as undeliverable and resumed."""


class Terms(NamedTuple):
    """How the half is to be judged."""

    fenced: bool
    check_max: int


class Journal(NamedTuple):
    """What the logs hold; the same fields as in the model's state."""

    half: int = -1
    final: str = ""
    decided: str = ""
    checks: int = 0
    discard: int = -1
    undeliverable: bool = False


class Entry(NamedTuple):
    """A record of either log: an op, or a half; in a resumed half stands what its operator had read."""

    kind: str
    generation: int = 0
    live: bool = True
    asked: int = 0
    decision: str = ""
    reason: str = ""
    missing: tuple[int, ...] = ()


class Judgement(NamedTuple):
    """What `decide` says about the half, and what is known of its end."""

    decision: Decision
    outcome: str
    missing: tuple[int, ...]


class _Read:
    """The logs as an owner under the claim in force reads them."""

    def __init__(self, terms: Terms, entries: Iterator[Entry]) -> None:
        self.state = PartitionState()
        self.pending: Pending | None = None  # of the newest half, closed or not
        self.counts = True  # whether the last record changes anything
        self._terms = terms_of(IMMUNITY_MS, 0.0, terms.check_max, terms.fenced)
        self._ops = [Op(OpKind.CLAIM, LIVE, token=LIVE)]
        self._read_op(self._ops[0])
        for entry in entries:
            self.counts = self._read(entry)
        self._look_back()

    def _read(self, entry: Entry) -> bool:
        if entry.kind == "half":
            self._read_half(entry)
            return True
        self._ops.append(_op(entry))
        return self._read_op(self._ops[-1])

    def _read_op(self, op: Op) -> bool:
        return self.state.read_op(Position(len(self._ops)), op)

    def _read_half(self, entry: Entry) -> None:
        """Read a producer's half, or the copy of an operator's resume, which folds the journal up to it."""
        pending = Pending(ID, entry.generation, entry.generation, self._terms, IMMUNITY_MS, IMMUNITY_MS)
        if entry.decision:
            pending.decision, pending.is_journaled = OpKind[entry.decision], True
        if entry.missing:
            pending.note(missing=entry.missing)
        folded_to, token = (0, LIVE) if entry.generation else (-1, b"")
        self.state.read_half(Position(entry.generation), pending, folded_to, token)
        self.pending = pending
        pending.is_closed = ID not in self.state.pending

    def _look_back(self) -> None:
        """Read again what a copy's journal may lack, as the judge does before it decides."""
        pending = self.state.pending.get(ID)
        if pending is None or pending.extras.look_back is None:
            return
        since, token = pending.extras.look_back
        pending.note(look_back=None)
        for position, op in enumerate(self._ops, 1):
            if position >= since:
                self.state.look_back(pending, op, position, token)

    @property
    def closed_by(self) -> int:
        """The kind of op that closed it; 0 while it is open."""
        return max((kind for _, kind in self.state.closings()), default=0)


@cache
def landed(terms: Terms, before: Journal, entry: Entry) -> tuple[Journal, bool]:
    """Return the journal once *entry* stands at the end of its log, and whether it contradicts a final op (S1)."""
    if entry.kind == "half" and entry.generation and before.undeliverable:
        entry = entry._replace(missing=SECOND)
    read = _Read(terms, iter((*_written(before), entry)))
    after = before
    if entry.kind == "half":
        if entry.generation <= before.half:
            return before, False
        after = after._replace(half=entry.generation, checks=0)
    pending = read.pending
    if pending is None:  # an op without a half
        final = before.final or (entry.kind if OpKind[entry.kind] in FINAL_KINDS else "")
        return after._replace(final=final), bool(final) and final != entry.kind
    if not pending.is_closed:
        decided = OpKind(pending.decision).name if pending.is_journaled else ""
        return after._replace(checks=pending.count, decided=decided), False
    if read.closed_by in FINAL_KINDS:
        after = after._replace(final=before.final or OpKind(read.closed_by).name)
    elif read.closed_by == OpKind.DISCARD and before.discard < after.half:
        after = after._replace(discard=after.half, undeliverable=entry.reason == ParkCode.UNDELIVERABLE)
    elif entry.kind == "DECIDED" and read.counts:
        after = after._replace(decided=before.decided or entry.decision)  # for a resume, which reads the whole log
    return after, bool(read.state.conflicts)


@cache
def judged(terms: Terms, journal: Journal, generation: int, is_immune: bool) -> Judgement:  # noqa: FBT001 - a key
    """Return what the owner does that has read the halves up to *generation*, and all ops."""
    known = (entry for entry in _written(journal) if entry.kind != "half" or entry.generation <= generation)
    pending = _Read(terms, known).pending
    assert pending is not None
    decision = decide(pending, IMMUNITY_MS - 1 if is_immune else IMMUNITY_MS, must_carry=False)
    outcome = OpKind(pending.decision).name if pending.decision else ""
    return Judgement(decision, outcome, pending.extras.missing or ())


def _written(journal: Journal) -> Iterator[Entry]:
    """Yield a journal's records in an order that could have led to it."""
    if journal.half >= 0:
        yield Entry("half")
    decided = Entry("DECIDED", max(journal.half, 0), decision=journal.decided)
    is_decided = False
    for generation in range(journal.discard + 1):
        undeliverable = journal.undeliverable and generation == journal.discard
        if undeliverable and journal.decided:
            yield decided
            is_decided = True
        reason = ParkCode.UNDELIVERABLE if undeliverable else ParkCode.CHECKS_EXHAUSTED
        yield Entry("DISCARD", generation, reason=reason)
        if generation < journal.half:
            copied = journal.decided if is_decided else ""
            yield Entry("half", generation + 1, decision=copied, missing=SECOND if undeliverable else ())
    if journal.decided and not is_decided:
        yield decided
    if journal.checks:
        yield Entry("CHECKED", journal.half, asked=journal.checks)
    if journal.final:
        yield Entry(journal.final)


def _op(entry: Entry) -> Op:
    owned = entry.kind in ("CHECKED", "DECIDED", "DISCARD")
    return Op(
        OpKind[entry.kind],
        ID,
        entry.generation,
        token=(LIVE if entry.live else OLDER) if owned else b"",
        count=entry.asked,
        decision=OpKind[entry.decision] if entry.decision else 0,
        reason=entry.reason,
    )
