"""The content of the two logs of the explicit-state model, read by the code that txcore itself runs.

The model stores its logs as a `Journal`, which holds only the facts that a reader can distinguish. To apply a record,
or to get a checker's conclusion, it writes the journal as records, reads them with `PartitionState`, and calls
`decide`. So the model has no rules of its own about which op counts, which closes a half, and what follows. A journal
and a record have one result, so each result is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from txcore.checker.decide import Decision, Pending, decide, terms_of
from txcore.checker.finish import lacks_committed
from txcore.checker.partition_state import PartitionState
from txcore.records import FINAL_KINDS, Op, OpKind, ParkCode, Position

ID: Final = bytes(16)
LIVE: Final = b"claim in force."
OLDER: Final = b"an older claim."
IMMUNITY_MS: Final = 1_000.0
SECOND: Final = (1,)
"""Index of the refusing target of a half that was parked as undeliverable and resumed."""


class Terms(NamedTuple):
    """Rules by which the half is judged."""

    fenced: bool
    check_max: int
    by_owner: bool = False


class Journal(NamedTuple):
    """Content of the logs, in the same fields as in the model's state."""

    half: int = -1
    final: str = ""
    decided: str = ""
    checks: int = 0
    discard: int = -1
    undeliverable: bool = False
    committed: bool = False


class Entry(NamedTuple):
    """A record of either log: an op, or a half; a resumed half holds the journal that its operator had read."""

    kind: str
    generation: int = 0
    live: bool = True
    asked: int = 0
    decision: str = ""
    reason: str = ""
    missing: tuple[int, ...] = ()
    committed: bool = False


class Judgement(NamedTuple):
    """Decision of `decide` about the half, and the known facts about its end."""

    decision: Decision
    outcome: str
    missing: tuple[int, ...]
    lacks_committed: bool


class _Read:
    """The logs as the owner with the claim in force reads them."""

    def __init__(self, terms: Terms, entries: Iterator[Entry]) -> None:
        self.state = PartitionState()
        self.pending: Pending | None = None  # of the newest half, closed or not
        self.counts = True  # whether the last record changes anything
        self._terms = terms_of(IMMUNITY_MS, 0.0, terms.check_max, terms.fenced, is_by_owner=terms.by_owner)
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
        generation = entry.generation
        pending = Pending(
            transaction_id=ID,
            position=generation,
            generation=generation,
            terms=self._terms,
            immune_until_ms=IMMUNITY_MS,
            due_ms=IMMUNITY_MS,
        )
        if entry.decision:
            pending.decision, pending.is_journaled = OpKind[entry.decision], True
        if entry.committed:
            pending.commit(next(at for at, op in enumerate(self._ops, 1) if op.kind == OpKind.COMMITTED))
        if entry.missing:
            pending.note(missing=entry.missing)
        folded_to, token = (0, LIVE) if entry.generation else (-1, b"")
        self.state.read_half(Position(entry.generation), pending, folded_to, token)
        self.pending = pending
        pending.is_closed = ID not in self.state.pending

    def _look_back(self) -> None:
        """Read the records again that a copy's journal may lack, as the judge does before it decides."""
        pending = self.state.pending.get(ID)
        if pending is None or pending.extras.look_back is None:
            return
        since, token = pending.extras.look_back
        pending.note(look_back=None)
        for position, op in enumerate(self._ops, 1):
            if position >= since:
                self.state.look_back(pending, op, Position(position), token)

    @property
    def closed_by(self) -> int:
        """Kind of the op that closed the half; 0 while it is open."""
        return max((kind for _, kind in self.state.closings()), default=0)


@cache
def landed(terms: Terms, before: Journal, entry: Entry) -> tuple[Journal, bool]:
    """Return the journal with *entry* at the end of its log, and whether *entry* contradicts a final op (S1)."""
    if entry.kind == "half" and entry.generation and before.undeliverable:
        entry = entry._replace(missing=SECOND)
    read = _Read(terms, iter((*_written(terms, before), entry)))
    after = before
    if entry.kind == "half":
        if entry.generation <= before.half:
            return before, False
        after = after._replace(half=entry.generation, checks=0)
    pending = read.pending
    if pending is None:  # an op without a half
        final = before.final or (entry.kind if OpKind[entry.kind] in FINAL_KINDS else "")
        return after._replace(final=final), bool(final) and final != entry.kind
    if entry.kind == "COMMITTED" and not before.final:  # perhaps of a half that is parked
        after = after._replace(committed=True)
    if not pending.is_closed:
        decided = OpKind(pending.decision).name if pending.is_journaled else ""
        after = after._replace(checks=pending.count, decided=decided, committed=pending.is_committed)
        return after, bool(read.state.conflicts)
    if read.closed_by in FINAL_KINDS:
        after = after._replace(final=before.final or OpKind(read.closed_by).name)
    elif read.closed_by == OpKind.DISCARD and before.discard < after.half:
        after = after._replace(discard=after.half, undeliverable=entry.reason == ParkCode.UNDELIVERABLE)
    elif entry.kind == "DECIDED" and read.counts:
        after = after._replace(decided=before.decided or entry.decision)  # a later resume reads the whole log
    return after, bool(read.state.conflicts)


@cache
def judged(terms: Terms, journal: Journal, generation: int, is_immune: bool) -> Judgement:  # noqa: FBT001 - a key
    """Return the decision of an owner that has read the halves up to *generation*, and all ops."""
    known = (entry for entry in _written(terms, journal) if entry.kind != "half" or entry.generation <= generation)
    pending = _Read(terms, known).pending
    assert pending is not None
    decision = decide(pending, IMMUNITY_MS - 1 if is_immune else IMMUNITY_MS, must_carry=False)
    outcome = OpKind(pending.decision).name if pending.decision else ""
    return Judgement(decision, outcome, pending.extras.missing or (), lacks_committed(pending))


def _written(terms: Terms, journal: Journal) -> Iterator[Entry]:
    """Yield a journal's records in a possible order."""
    if journal.half >= 0:
        yield Entry("half")
    decided = Entry("DECIDED", max(journal.half, 0), decision=journal.decided)
    is_decided = is_committed = False
    for generation in range(journal.discard + 1):
        undeliverable = journal.undeliverable and generation == journal.discard
        if undeliverable and journal.decided:
            yield decided
            is_decided = True
        if undeliverable and journal.committed:
            yield Entry("COMMITTED", generation)
            is_committed = True
        reason = ParkCode.UNDELIVERABLE if undeliverable else ParkCode.CHECKS_EXHAUSTED
        yield Entry("DISCARD", generation, reason=reason)
        if generation < journal.half:
            missing = SECOND if undeliverable else ()
            copied = journal.decided if is_decided else ""
            yield Entry("half", generation + 1, decision=copied, missing=missing, committed=is_committed)
    if journal.decided and not is_decided:
        yield decided
    if journal.committed and not is_committed:
        yield Entry("COMMITTED", journal.half)
    if journal.checks:
        yield Entry("CHECKED", journal.half, asked=journal.checks)
    if journal.final:
        yield Entry("RELEASED" if terms.by_owner and journal.final == "COMMIT" else journal.final)


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
