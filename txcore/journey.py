"""What a group's logs say about each transaction: pure reading, for operators, oracles and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from txcore import wire
from txcore.errors import TransactionStateError, WireFormatError
from txcore.ids import id_text
from txcore.records import (
    FINAL_KINDS,
    OWNED_KINDS,
    REASON_SIZE_MAX,
    Forced,
    Half,
    HalfRecord,
    LogRecord,
    Op,
    OpKind,
    ParkCode,
    Parked,
    Position,
    is_discard_in_force,
)


@dataclass(slots=True)
class Journey:
    """One transaction as its logs tell it: every copy of the half, every op in log order, what was parked."""

    transaction_id: bytes
    partition: int
    halves: list[Half] = field(default_factory=list)
    half_times_ms: list[int | None] = field(default_factory=list)
    ops: list[tuple[Position, Op]] = field(default_factory=list)
    op_times_ms: list[int | None] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    final: int = 0
    count: int = 0
    decided: int = 0
    discarded_generation: int = -1
    exhausted: set[int] = field(default_factory=set)  #: generations discarded, in force, for exhausted checks
    undeliverable_generation: int = -1  #: the highest one discarded, in force, because a target refuses
    overrides: int = 0  #: final ops and decisions in force that an operator made against the fence
    discarded_ms: int = 0  #: time of the newest DISCARD in force
    token_before: bytes = b""
    checked: dict[int, int] = field(default_factory=dict)  #: answered checks, in force, per generation

    def add_half(self, half: Half, appended_ms: int | None) -> None:
        """Take in a copy of the half; a carried or resumed one brings what its journal held."""
        self.halves.append(half)
        self.half_times_ms.append(appended_ms)
        self.decided = self.decided or half.decided
        if half.count or self.checked:
            self.checked[half.generation] = max(self.checked.get(half.generation, 0), half.count)
            self.count = self.checked.get(self.generation, 0)

    @property
    def half(self) -> Half | None:
        """The newest copy."""
        if len(self.halves) == 1:
            return self.halves[0]
        return max(self.halves, key=lambda half: half.generation, default=None)

    @property
    def generation(self) -> int:
        """The newest copy's generation; -1 when no half was found."""
        return self.half.generation if self.half is not None else -1

    @property
    def is_parked(self) -> bool:
        """Whether it is discarded, not resumed and not finished."""
        return not self.final and self.discarded_generation >= self.generation

    @property
    def is_poison(self) -> bool:
        """Whether all that is known of it are parked bytes that are no half."""
        return bool(self.parked) and not self.halves and half_in(self.parked[-1]) is None

    @property
    def has_beginning(self) -> bool:
        """Whether the producer's own half is there, so that no op before it can be missing."""
        return any(half.generation == 0 and half.folded_to < 0 for half in self.halves)

    @property
    def request(self) -> Op | None:
        """The operator's newest request for a decision that is neither carried out nor refused."""
        if self.final or self.decided or self.is_parked:
            return None
        forces = [op for _, op in self.ops if op.kind == OpKind.FORCE]
        return forces[-1] if forces and not forces[-1].token else None

    def reply_to(self, by: str) -> Op | None:
        """Return the owner's refusal of the newest request by an operator of this name, if there is one."""
        asked = max((n for n, (_, op) in enumerate(self.ops) if _is_request(op) and op.by == by), default=None)
        if asked is None:
            return None
        return next((op for _, op in self.ops[asked:] if op.kind == OpKind.FORCE and op.token), None)

    @property
    def is_pending(self) -> bool:
        """Whether it is undecided and in the checker's hands."""
        return not self.final and bool(self.halves) and not self.is_parked


class Journeys:
    """One partition's logs folded into a journey per transaction, record by record.

    Each log is given in its own order; the two may be interleaved in any way. What this version cannot read is
    skipped: poison in the half log is parked by the checker, and the parked log shows it.

    Args:
        token: The claim in force where the op log begins.
        wanted: Tells which transactions to fold; None for all.
    """

    def __init__(self, partition: int, token: bytes = b"", wanted: Callable[[bytes], bool] | None = None) -> None:
        self.found: dict[bytes, Journey] = {}
        self._partition = partition
        self._token = token
        self._wanted = wanted

    def read_half(self, record: LogRecord) -> Half | None:
        """Fold a record of the half log; returns the half, whether wanted or not."""
        try:
            half = wire.decode_half(record.body)
        except WireFormatError:
            return None
        found = self._journey(half.transaction_id)
        if found is not None:
            found.add_half(half, record.appended_ms)
        return half

    def read_ops(self, record: LogRecord) -> list[Op]:
        """Fold a record of the op log; returns all its ops."""
        try:
            ops = wire.decode_ops(record.body)
        except WireFormatError:
            return []
        for op in ops:
            if op.kind == OpKind.CLAIM:
                self._token = op.token
            elif op.kind != OpKind.TICK and (found := self._journey(op.transaction_id)) is not None:
                _fold(found, record, op, self._token)
        return ops

    def read_parked(self, record: LogRecord) -> Parked | None:
        """Fold a record of the parked log; returns it, whether wanted or not."""
        try:
            entry = wire.decode_parked(record.body)
        except WireFormatError:
            return None
        found = self._journey(entry.transaction_id)
        if found is not None:
            found.parked.append(entry)
        return entry

    def _journey(self, transaction_id: bytes) -> Journey | None:
        if self._wanted is not None and not self._wanted(transaction_id):
            return None
        found = self.found.get(transaction_id)
        if found is None:
            found = self.found[transaction_id] = Journey(transaction_id, self._partition)
        return found


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


def next_generation(journey: Journey, by: str, reason: str) -> HalfRecord:
    """Return the half to append for a resume: the same id, one generation on, a fresh check budget.

    Raises:
        TransactionStateError: there is no half to resume (poison).
    """
    half = journey.half or (half_in(journey.parked[-1]) if journey.parked else None)
    if half is None:
        raise TransactionStateError(f"{id_text(journey.transaction_id)} is no half that could be resumed (poison)")
    generation = max(journey.discarded_generation, half.generation) + 1
    copy = msgspec.structs.replace(
        half,
        generation=generation,
        immunity_ms=0,
        first_appended_ms=0,
        age_ms=0,
        count=0,
        folded_to=journey.ops[-1][0] if journey.ops else -1,
        decided=journey.decided,
        token=journey.token_before,
        reason=f"{by}: {reason}"[:REASON_SIZE_MAX],
        missing=list(journey.parked[-1].missing) if journey.parked else half.missing,
    )
    return HalfRecord(half.group, half.partition, half.transaction_id, generation, wire.encode_half(copy), ())


def force_op(journey: Journey, kind: OpKind, generation: int, by: str, at_ms: int, forced: int, reason: str) -> Op:
    """Return an operator's request for a decision."""
    return Op(
        OpKind.FORCE,
        journey.transaction_id,
        generation,
        by,
        at_ms,
        decision=kind,
        forced=forced,
        reason=reason[:REASON_SIZE_MAX],
    )


def _fold(journey: Journey, record: LogRecord, op: Op, token: bytes) -> None:
    journey.ops.append((record.position, op))
    journey.op_times_ms.append(record.appended_ms)
    journey.token_before = token
    if op.kind in OWNED_KINDS and op.token != token:
        return
    if op.kind in FINAL_KINDS | {OpKind.DECIDED} and op.forced == Forced.OVERRIDE:
        journey.overrides += 1
    if op.kind in FINAL_KINDS:
        journey.final = journey.final or op.kind
    elif op.kind == OpKind.DISCARD and is_discard_in_force(op, is_decided=bool(journey.decided)):
        journey.discarded_generation = max(journey.discarded_generation, op.generation)
        if op.reason == ParkCode.CHECKS_EXHAUSTED:
            journey.exhausted.add(op.generation)
        elif op.reason == ParkCode.UNDELIVERABLE:
            journey.undeliverable_generation = max(journey.undeliverable_generation, op.generation)
        journey.discarded_ms = max(journey.discarded_ms, op.at_ms if record.appended_ms is None else record.appended_ms)
    elif op.kind == OpKind.CHECKED:
        journey.checked[op.generation] = max(journey.checked.get(op.generation, 0), op.count)
        journey.count = journey.checked.get(journey.generation, 0)
    elif op.kind == OpKind.DECIDED:
        journey.decided = journey.decided or op.decision


def _is_request(op: Op) -> bool:
    return op.kind == OpKind.FORCE and not op.token


def half_in(parked: Parked) -> Half | None:
    """Return the half inside a parked record; None for poison."""
    try:
        return wire.decode_half(parked.half)
    except WireFormatError:
        return None


def topics_of(half: Half) -> tuple[str, ...]:
    """Return the topics a half would publish to, sorted."""
    return tuple(sorted({message.topic for message in half.messages}))
