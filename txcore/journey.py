"""What a group's logs say about each transaction: pure reading, for operators, oracles and the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from txcore import wire
from txcore.errors import TransactionStateError, WireFormatError
from txcore.ids import id_text
from txcore.records import (
    FINAL_KINDS,
    OWNED_KINDS,
    REASON_SIZE_MAX,
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
    parked: list[Parked] = field(default_factory=list)
    final: int = 0
    count: int = 0
    decided: int = 0
    discarded_generation: int = -1
    exhausted: set[int] = field(default_factory=set)  #: generations discarded, in force, for exhausted checks
    token_before: bytes = b""

    @property
    def half(self) -> Half | None:
        """The newest copy."""
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
    def is_pending(self) -> bool:
        """Whether it is undecided and in the checker's hands."""
        return not self.final and bool(self.halves) and not self.is_parked


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
    journeys: dict[bytes, Journey] = {}

    def journey(transaction_id: bytes) -> Journey | None:
        if only is not None and transaction_id != only:
            return None
        return journeys.setdefault(transaction_id, Journey(transaction_id, partition))

    for record in halves:
        try:
            half = wire.decode_half(record.body)
        except WireFormatError:
            continue  # Poison: the checker parks it, the parked log shows it.
        found = journey(half.transaction_id)
        if found is not None:
            found.halves.append(half)
            found.half_times_ms.append(record.appended_ms)
    for record in ops:
        for op in wire.decode_ops(record.body):
            if op.kind == OpKind.CLAIM:
                token = op.token
            elif op.kind != OpKind.TICK and (found := journey(op.transaction_id)) is not None:
                _fold(found, record.position, op, token)
    for record in parked:
        entry = wire.decode_parked(record.body)
        found = journey(entry.transaction_id)
        if found is not None:
            found.parked.append(entry)
    return journeys


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


def _fold(journey: Journey, position: Position, op: Op, token: bytes) -> None:
    journey.ops.append((position, op))
    journey.token_before = token
    if op.kind in OWNED_KINDS and op.token != token:
        return
    if op.kind in FINAL_KINDS:
        journey.final = journey.final or op.kind
    elif op.kind == OpKind.DISCARD and is_discard_in_force(op, is_decided=bool(journey.decided)):
        journey.discarded_generation = max(journey.discarded_generation, op.generation)
        if op.reason == ParkCode.CHECKS_EXHAUSTED:
            journey.exhausted.add(op.generation)
    elif op.kind == OpKind.CHECKED and op.generation == journey.generation:
        journey.count = max(journey.count, op.count)
    elif op.kind == OpKind.DECIDED:
        journey.decided = journey.decided or op.decision


def half_in(parked: Parked) -> Half | None:
    """Return the half inside a parked record; None for poison."""
    try:
        return wire.decode_half(parked.half)
    except WireFormatError:
        return None


def topics_of(half: Half) -> tuple[str, ...]:
    """Return the topics a half would publish to, sorted."""
    return tuple(sorted({message.topic for message in half.messages}))
