"""The meaning of ops that are read before their halves, and what an op leaves of a half that was parked before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.checker.decide import Pending, needs_copy
from txcore.checker.read_halves import ReadHalf
from txcore.op_rules import is_discard_in_force
from txcore.records import DECIDING_KINDS, FINAL_KINDS, Op, OpKind, Position

ENDS_OF_UNKNOWN: Final = FINAL_KINDS - {OpKind.ROLLBACK}
"""Final ops that end a half of which nothing else is known: a COMMITTED before it would make a ROLLBACK void."""


def is_early(op: Op, seen: ReadHalf) -> bool:
    """Return whether *op* is about a later half than *seen*, the newest that was read; a final op ends all of them."""
    if op.generation <= seen.generation or op.kind in DECIDING_KINDS or seen.closed_by in FINAL_KINDS:
        return False
    return seen.pending is None or op.kind != OpKind.DISCARD or needs_copy(op)


def end_in(ops: Sequence[tuple[int, Op]]) -> Op | None:
    """Return the op that ends a half whose ops are these, if the first of them decides it; else None."""
    first = ops[0][1]
    if first.kind != OpKind.COMMITTED:
        return first if first.kind in FINAL_KINDS else None
    ends = (op for _, op in ops if op.kind in FINAL_KINDS and op.kind != OpKind.ROLLBACK)
    return next(ends, None)


def committed_in(ops: Sequence[tuple[Position, Op]]) -> tuple[int, Position] | None:
    """Return generation and place of the COMMITTED that leaves a half with these ops undecided.

    None where it has ended, or is parked by one of them: its entry holds its messages.
    """
    deciding = [each for each in ops if each[1].kind in DECIDING_KINDS]
    if not deciding or deciding[0][1].kind != OpKind.COMMITTED or end_in(deciding) is not None:
        return None
    at, committed = deciding[0]
    discards = ((position, op) for position, op in ops if op.kind == OpKind.DISCARD)
    if any(is_discard_in_force(op, is_decided=at <= position) for position, op in discards):
        return None
    return committed.generation, at


def entry_left(op: Op, generation: int) -> int:
    """Return the generation of the entry that a half of this generation leaves when *op* ends it, or -1 for none.

    An owner's final op comes with the record that closes the entries of the generations before its own.
    """
    closed = op.generation - 1 if op.token else -1
    return generation - 1 if generation - 1 > closed else -1


def needs_order(pending: Pending, op: Op) -> bool:
    """Return whether a final op, or a COMMITTED, has to wait until the journal of a copy was read from its beginning.

    Of a half that its owner releases a ROLLBACK before a COMMITTED ends it, and one after it does not.
    """
    if pending.extras.look_back is None:
        return False
    return op.kind == OpKind.COMMITTED or (op.kind == OpKind.ROLLBACK and pending.terms.is_by_owner)
