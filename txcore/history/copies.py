"""Copies and their proofs in the logs: a copy counts only if the op log has the TICK whose id is made of it (R8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from txcore import wire
from txcore.errors import WireFormatError
from txcore.records import Half, LogRecord, OpKind, Position

FETCH_COUNT_MAX: Final = 100
"""Most proofs to fetch at once: they may be far apart in the op log, and a broker has a time for each fetch."""


def is_copy(half: Half) -> bool:
    """Return whether *half* says what only a copy says, so that it needs a proof; a producer's own half does not."""
    is_plain = half.folded_to < 0 and not (half.generation or half.decided or half.count or half.missing)
    return not is_plain or half.is_carried or max(half.final_at, half.first_position, half.held_at) >= 0


def copies_in(records: Iterable[LogRecord]) -> Iterator[Half]:
    """Yield the halves among *records* that need a proof."""
    halves = (wire.half_or_none(record.body) for record in records)
    return (half for half in halves if half is not None and is_copy(half))


def places_of(copies: Iterable[Half]) -> list[Position]:
    """Return the op positions that *copies* name for their proofs, in order."""
    return sorted({Position(copy.proved_at) for copy in copies if copy.proved_at >= 0})


def ticks_in(record: LogRecord | None) -> frozenset[bytes]:
    """Return the ids of the ticks in a record of the op log; none in stray bytes, nor where there is no record."""
    try:
        ops = wire.decode_ops(record.body) if record is not None else []
    except WireFormatError:
        return frozenset()
    return frozenset(op.transaction_id for op in ops if op.kind == OpKind.TICK)


def is_proven(copy: Half, found: Mapping[Position, LogRecord]) -> bool:
    """Return whether the op log proves *copy*, by the records *found* at the places that copies name."""
    return copy.proved_at >= 0 and wire.proof_of(copy) in ticks_in(found.get(Position(copy.proved_at)))
