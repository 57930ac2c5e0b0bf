"""One partition's logs folded into a journey per transaction, record by record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txcore import wire
from txcore.errors import NewerRecordError, WireFormatError
from txcore.history.journey import Journey
from txcore.ids import known_id
from txcore.op_rules import is_discard_in_force
from txcore.records import (
    DECIDING_KINDS,
    Forced,
    Half,
    LogRecord,
    Op,
    OpKind,
    ParkCode,
    Parked,
    is_in_force,
)


@dataclass(eq=False)
class Journeys:
    """One partition's logs folded into a journey per transaction, record by record.

    Each log is given in its own order; the two may be interleaved in any way. Records that this version cannot
    read are skipped: poison in the half log is parked by the checker, and the parked log shows it. Of a newer txcore's
    half only the existence is known.

    Args:
        token: The claim in force where the op log begins.
        wanted: Returns whether to fold a transaction; None for all.
        group: The group of the logs; "" where it does not matter.
    """

    partition: int
    token: bytes = b""
    wanted: Callable[[bytes], bool] | None = None
    group: str = ""
    found: dict[bytes, Journey] = field(default_factory=dict, init=False)

    def read_half(self, record: LogRecord) -> Half | None:
        """Fold a record of the half log; returns the half, whether wanted or not."""
        try:
            half = wire.decode_half(record.body)
        except NewerRecordError as newer:
            assert newer.transaction_id is not None  # noqa: PT017 - each version of a half begins with it
            found = self._journey(newer.transaction_id)
            if found is not None:
                found.newer_version = max(found.newer_version, newer.version)
                found.newer_generation = max(found.newer_generation, newer.generation)
            return None
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
                self.token = op.token
            elif op.kind != OpKind.TICK and (found := self._journey(op.transaction_id)) is not None:
                # Retention may have removed the claim under which the log begins: until the next one, its ops count.
                _fold(found, record, op, self.token or op.token)
        return ops

    def read_parked(self, record: LogRecord) -> Parked | None:
        """Fold a record of the parked log; returns it, whether wanted or not."""
        try:
            entry = wire.decode_parked(record.body)
        except WireFormatError:
            return None
        found = self._journey(entry.transaction_id)
        if found is not None:
            found.add_parked(entry)
        return entry

    def _journey(self, transaction_id: bytes) -> Journey | None:
        if self.wanted is not None and not self.wanted(transaction_id):
            return None
        found = self.found.get(transaction_id)
        if found is None:
            found = self.found[transaction_id] = Journey(known_id(transaction_id), self.partition, self.group)
        return found


def _fold(journey: Journey, record: LogRecord, op: Op, token: bytes) -> None:
    journey.ops.append((record.position, op))
    journey.op_times_ms.append(record.appended_ms)
    journey.token_before = token
    if not is_in_force(op, token):
        return
    if op.kind == OpKind.FORCE and op.token:
        journey.replies.append((record.position, op))
    if op.kind in DECIDING_KINDS | {OpKind.DECIDED} and op.forced:
        journey.forced += 1
        journey.overrides += op.forced == Forced.OVERRIDE
    if op.kind in DECIDING_KINDS:
        journey.end(op.kind, record.position)
    elif op.kind == OpKind.DISCARD and is_discard_in_force(op, is_decided=journey.was_decided_at(record.position)):
        journey.discarded_generation = max(journey.discarded_generation, op.generation)
        if op.reason == ParkCode.CHECKS_EXHAUSTED:
            journey.exhausted.add(op.generation)
        elif op.reason == ParkCode.UNDELIVERABLE:
            journey.undeliverable_generation = max(journey.undeliverable_generation, op.generation)
        journey.discarded_ms = max(journey.discarded_ms, op.at_ms if record.appended_ms is None else record.appended_ms)
    elif op.kind == OpKind.CHECKED:
        journey.checked[op.generation] = max(journey.checked.get(op.generation, 0), op.count)
        journey.count = journey.checked.get(journey.generation, 0)
    elif op.kind == OpKind.DECIDED and not journey.journaled:
        journey.journaled, journey.decided_by = op.decision, op.forced
