"""Each transaction as a group's logs show it: pure reading, for operators, oracles and the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field

from txcore.history.parked_entries import (
    GONE_TEXT,
    LOST_COMMIT_TEXT,
    NEWER_TEXT,
    STRANGE_CODES,
    half_in,
    is_newer,
    open_entry,
    why_unreadable,
)
from txcore.ids import TransactionId, born_ms
from txcore.op_rules import is_reply_to, outcome_of
from txcore.records import Half, Op, OpKind, ParkCode, Parked, Position
from txcore.signed_records import SIGNED_VERSION


@dataclass(slots=True)
class Journey:
    """One transaction as its logs show it: every copy of the half, every op in log order, every parked record.

    `parked` holds every parked record but CLOSED; `entry` is the one that no later CLOSED has closed.
    """

    transaction_id: TransactionId
    partition: int
    group: str = ""
    halves: list[Half] = field(default_factory=list)
    half_times_ms: list[int | None] = field(default_factory=list)
    ops: list[tuple[Position, Op]] = field(default_factory=list)
    op_times_ms: list[int | None] = field(default_factory=list)
    replies: list[tuple[Position, Op]] = field(default_factory=list)  #: to requests, in force
    parked: list[Parked] = field(default_factory=list)
    entry: Parked | None = None
    closed_generation: int = -1  #: everything parked up to here was dismissed, or resumed and ended
    newer_version: int = 0  #: the highest wire version of its halves, if that is above ours
    newer_generation: int = -1  #: the highest generation among those
    final: int = 0  #: COMMIT once its targets are published, or ROLLBACK
    committed_at: int = -1  #: the place of its COMMITTED, if that came first: decided, and its owner is to release it
    count: int = 0
    journaled: int = 0  #: the decision of the first DECIDED in force
    copied_decision: int = 0  #: the decision in a copy whose journal held a DECIDED
    decided_by: int = 0  #: an operator's part in that decision, see `Forced`
    discarded_generation: int = -1
    exhausted: set[int] = field(default_factory=set)  #: generations discarded, in force, for exhausted checks
    undeliverable_generation: int = -1  #: the highest one discarded, in force, because a target refuses
    forced: int = 0  #: final ops and decisions in force that an operator made; a request that was refused is none
    overrides: int = 0  #: final ops and decisions in force that an operator made against the fence
    discarded_ms: int = 0  #: time of the newest DISCARD in force
    token_before: bytes = b""
    checked: dict[int, int] = field(default_factory=dict)  #: answered checks, in force, per generation

    def __repr__(self) -> str:
        """Return the class with the id, the place and the state; `txcore show` prints all of it."""
        where = f"partition={self.partition}, generation={self.generation}"
        return f"Journey({self.transaction_id!r}, {where}, state={self.state!r})"

    def add_half(self, half: Half, appended_ms: int | None) -> None:
        """Add a copy of the half; a carried or resumed one brings the contents of its journal."""
        self.halves.append(half)
        self.half_times_ms.append(appended_ms)
        if half.decided and not (self.journaled or self.copied_decision):
            self.copied_decision, self.decided_by = half.decided, half.forced
        self.discarded_generation = max(self.discarded_generation, half.held_at)
        if half.final_at >= 0 and self.committed_at < 0:
            self.committed_at = half.final_at
        if half.count or self.checked:
            self.checked[half.generation] = max(self.checked.get(half.generation, 0), half.count)
            self.count = self.checked.get(self.generation, 0)

    def end(self, kind: int, position: int) -> None:
        """Add a final op or a COMMITTED, in log order: the first one holds, and a COMMITTED ends nothing."""
        if self.final:
            return
        if kind == OpKind.COMMITTED:
            self.committed_at = position if self.committed_at < 0 else self.committed_at
        elif kind != OpKind.ROLLBACK or self.committed_at < 0:
            self.final = outcome_of(kind)

    def add_parked(self, entry: Parked) -> None:
        """Add a parked record, in log order: a CLOSED applies to those before it."""
        self.entry = open_entry(self.entry, entry)
        if entry.code == ParkCode.CLOSED:
            self.closed_generation = max(self.closed_generation, entry.generation)
        elif self.entry is entry:
            self.parked.append(entry)
            half = half_in(entry) if self.committed_at < 0 else None
            self.committed_at = half.final_at if half is not None else self.committed_at

    @property
    def state(self) -> str:
        """The state: committed, rolled back, parked, pending, or unknown where the half is gone.

        Until its owner has released it, a half with a COMMITTED is pending or parked, see `awaits_release`.
        """
        if self.final:
            return "committed" if self.final == OpKind.COMMIT else "rolled back"
        if self.is_parked:
            return "parked"
        return "pending" if self.is_pending else "unknown"

    @property
    def half(self) -> Half | None:
        """The newest copy that this txcore can read."""
        if len(self.halves) == 1:
            return self.halves[0]
        return max(self.halves, key=lambda half: half.generation, default=None)

    @property
    def generation(self) -> int:
        """The newest copy's generation; -1 when no half was found."""
        return max(self.half.generation if self.half is not None else -1, self.newer_generation)

    @property
    def born_ms(self) -> int:
        """The producer's wall clock, from the half or else from the id; 0 where no half is known."""
        if self.half is not None:
            return self.half.born_ms
        return born_ms(self.transaction_id) if self.newer_version else 0

    @property
    def decided(self) -> int:
        """COMMIT or ROLLBACK once that is journaled, in the op log or in a copy; else 0."""
        return OpKind.COMMIT if self.committed_at >= 0 else self.journaled or self.copied_decision

    @property
    def awaits_release(self) -> bool:
        """Whether it is committed, and its owner has not released it; it may be parked."""
        return self.committed_at >= 0 and not self.final

    def was_decided_at(self, position: int) -> bool:
        """Return whether a DECIDED in force comes before *position*, as far as ops and copies show."""
        if self.journaled or 0 <= self.committed_at <= position:
            return True
        return any(half.decided and half.folded_to <= position for half in self.halves)

    @property
    def is_parked(self) -> bool:
        """Whether it is discarded, not resumed and not finished; also when retention has left its entry alone."""
        is_open = self.entry is not None or self.discarded_generation > self.closed_generation
        return not self.final and is_open and self.discarded_generation >= self.generation

    @property
    def parked_as(self) -> Parked | None:
        """The record of its parking; None where it is not parked, or retention has removed the record."""
        return self.parked[-1] if self.is_parked and self.parked else None

    @property
    def is_newer(self) -> bool:
        """Whether its newest copy was written by a newer txcore, so that this one cannot judge it."""
        return self.newer_generation > (self.half.generation if self.half is not None else -1)

    @property
    def is_poison(self) -> bool:
        """Whether all that is known of it are parked bytes that were no half for whichever checker parked them."""
        if not self.parked or self.halves:
            return False
        entry = self.parked[-1]
        return entry.code in STRANGE_CODES or (bool(entry.half) and half_in(entry) is None and not is_newer(entry))

    @property
    def any_half(self) -> Half | None:
        """The newest half, or the one that was parked."""
        return self.half or (half_in(self.parked[-1]) if self.parked and not self.is_poison else None)

    @property
    def inner_half(self) -> Half | None:
        """The half that a poison entry holds, which has an id of its own; None for every other transaction.

        An older txcore parks a newer one's half under an id made of its bytes. Once this txcore is new enough, it reads
        it. A half of another group or partition stays poison: it belongs into another log.
        """
        half = half_in(self.parked[-1]) if self.is_poison else None
        if half is None or half.partition != self.partition or self.group not in {"", half.group}:
            return None
        return half

    @property
    def is_dismissible(self) -> bool:
        """Whether nothing is known that could be published: bytes that are no half, or none.

        A ROLLBACK ends that, or the COMMIT that is journaled.
        """
        if not self.parked or self.generation >= 0 or self.inner_half is not None:
            return False
        entry = self.parked[-1]
        return (self.is_poison or entry.code == ParkCode.LOST) and not is_newer(entry)

    @property
    def has_beginning(self) -> bool:
        """Whether the producer's own half is there, so that no op before it can be missing."""
        return any(half.generation == 0 and half.folded_to < 0 for half in self.halves)

    @property
    def request(self) -> Op | None:
        """The operator's newest request for a decision that is neither carried out nor refused."""
        if self.final or self.decided or self.is_parked:
            return None
        asked = [(position, op) for position, op in self.ops if _is_request(op)]
        return asked[-1][1] if asked and self._reply_at(asked[-1][0]) is None else None

    def reply_to(self, by: str) -> Op | None:
        """Return the owner's refusal of the newest request by an operator of this name, if there is one."""
        asked = max((position for position, op in self.ops if _is_request(op) and op.by == by), default=None)
        return None if asked is None else self._reply_at(asked)

    def _reply_at(self, asked: int) -> Op | None:
        """Return the reply to the request at position *asked*."""
        return next((op for position, op in self.replies if position > asked and is_reply_to(op, asked)), None)

    @property
    def is_pending(self) -> bool:
        """Whether it is undecided and in the checker's hands."""
        return not self.final and self.generation >= 0 and not self.is_parked


def _is_request(op: Op) -> bool:
    return op.kind == OpKind.FORCE and not op.token


def why_no_half(journey: Journey) -> str:
    """Return why nothing of this transaction can be resumed or decided by this txcore, and what to do."""
    if journey.is_newer:
        signed = " or, if the group signs, open the broker with its signing_keys"
        cure = f"upgrade the checkers and this txcore{signed if journey.newer_version == SIGNED_VERSION else ''}"
        return f"{NEWER_TEXT}, in wire version {journey.newer_version}; {cure}"
    if not journey.parked:
        return GONE_TEXT
    if journey.is_dismissible and journey.decided == OpKind.COMMIT:
        return LOST_COMMIT_TEXT
    return why_unreadable(journey.parked[-1])


def topics_of(half: Half) -> tuple[str, ...]:
    """Return the topics a half would publish to, sorted."""
    return tuple(sorted({message.topic for message in half.messages}))
