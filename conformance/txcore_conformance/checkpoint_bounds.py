"""S11, against whole logs: the records that a checkpoint passes, and the journals of the copies that it relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from txcore import wire
from txcore.errors import WireFormatError
from txcore.ids import id_text
from txcore.op_rules import is_discard_in_force, is_reply_to
from txcore.records import (
    FINAL_KINDS,
    Checkpoint,
    Half,
    LogRecord,
    Op,
    OpKind,
    is_in_force,
)

T = TypeVar("T")


def judge_checkpoint(checkpoint: Checkpoint, halves: Iterable[LogRecord], ops: Iterable[LogRecord]) -> str:
    """Return why *checkpoint* breaks S11 against whole logs, given in log order, or "".

    A copy that it relies on must hold all of its journal up to where it says that this was folded.
    """
    return judge_bounds(checkpoint, list(_decoded(halves, wire.decode_half)), list(_decoded(ops, wire.decode_ops)))


def _decoded(records: Iterable[LogRecord], decode: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    for record in records:
        try:
            yield record.position, decode(record.body)
        except WireFormatError:
            continue  # stray bytes say nothing


def judge_bounds(
    checkpoint: Checkpoint, halves: Sequence[tuple[int, Half]], ops: Sequence[tuple[int, Sequence[Op]]]
) -> str:
    """Return why *checkpoint* breaks S11 against decoded logs, given as (position, record); see `judge_checkpoint`."""
    closed, journals, token_at = _closings(ops, checkpoint)
    if checkpoint.op is not None and token_at != checkpoint.token:
        return f"token {checkpoint.token.hex()} is not the one in force at op {checkpoint.op}"
    known_to = ops[-1][0] if ops else -1
    newest: dict[bytes, int] = {}
    copies: dict[bytes, list[tuple[int, Half]]] = {}
    for position, half in halves:
        newest[half.transaction_id] = max(newest.get(half.transaction_id, -1), half.generation)
        copies.setdefault(half.transaction_id, []).append((position, half))
    for identity, places in copies.items():
        final, discarded = closed.get(identity, (False, -1))
        kept = [half for position, half in places if checkpoint.half is None or position >= checkpoint.half]
        if not final and newest[identity] > discarded and newest[identity] not in {half.generation for half in kept}:
            return f"half bound {checkpoint.half} passes undecided {id_text(identity)}"
        # A copy names the op position to go back to; only a first half must find all its ops at or after the bound.
        is_first_kept = any(half.folded_to < 0 for half in kept)
        journal = journals.get(identity, ())
        if is_first_kept and journal and checkpoint.op is not None and journal[0][0] < checkpoint.op:
            return f"op bound {checkpoint.op} passes the first op {journal[0][0]} of {id_text(identity)}"
        for half in kept if journal else ():
            # A copy whose journal reaches further than these logs cannot be judged.
            if 0 <= half.folded_to <= known_to and (text := judge_copy(half, journal)):
                return f"half bound {checkpoint.half} relies on a copy of {id_text(identity)} that {text}"
    return ""


def judge_copy(copy: Half, journal: Sequence[tuple[int, Op]]) -> str:
    """Return the fault of a carried or resumed copy that lacks a part of its journal, or "".

    A checker that reads the copy alone reads the op log from `folded_to` on, that place included.

    Args:
        journal: The ops of this transaction that count, in log order, as (position, op).
    """
    count, decided, request, requested_at, committed_at, is_parked = 0, 0, False, -1, -1, False
    for position, op in journal:
        if position > copy.folded_to:
            break
        is_current = op.generation == copy.generation
        if op.kind == OpKind.COMMITTED or (op.kind == OpKind.ROLLBACK and committed_at >= 0):
            committed_at = position if committed_at < 0 else committed_at
        elif op.kind == OpKind.DISCARD and op.generation == copy.held_at:
            is_parked = True
        elif op.kind in FINAL_KINDS or (op.kind == OpKind.DISCARD and op.generation >= copy.generation):
            if op.kind in FINAL_KINDS or is_discard_in_force(op, is_decided=bool(decided) or committed_at >= 0):
                return f"is folded to op {copy.folded_to}; {OpKind(op.kind).name} at op {position} closed it"
        elif op.kind == OpKind.FORCE and is_current:
            if not op.token:
                request, requested_at = True, position
            elif is_reply_to(op, requested_at):
                request = False
        elif op.kind == OpKind.CHECKED and is_current and position < copy.folded_to:
            count = max(count, op.count)
        elif op.kind == OpKind.DECIDED:
            decided = decided or op.decision
    lacks = f"is folded to op {copy.folded_to} and lacks"
    if copy.held_at >= 0 and not is_parked:
        return f"{lacks} the DISCARD of generation {copy.held_at}, at which it is held"
    if copy.count < count:
        return f"{lacks} a check: it counts {copy.count} of {count}"
    if 0 <= committed_at < copy.folded_to and copy.final_at != committed_at:
        return f"{lacks} the COMMITTED at op {committed_at}"
    if decided and copy.final_at < 0 and copy.decided != decided and not _is_decided_at(journal, copy.folded_to):
        return f"{lacks} the decision {OpKind(decided).name}"
    if request and requested_at < copy.folded_to and not decided and committed_at < 0:
        return f"{lacks} the request at op {requested_at}"
    return ""


def _is_decided_at(journal: Sequence[tuple[int, Op]], place: int) -> bool:
    """Whether the first DECIDED is at *place* itself, from where a copy is read."""
    first = next((position for position, op in journal if op.kind == OpKind.DECIDED), None)
    return first == place


def _closings(
    ops: Sequence[tuple[int, Sequence[Op]]], checkpoint: Checkpoint
) -> tuple[dict[bytes, tuple[bool, int]], dict[bytes, list[tuple[int, Op]]], bytes]:
    """Return per id (final?, highest DISCARD in force), the ops that count, and the token in force at the bound."""
    closed: dict[bytes, tuple[bool, int]] = {}
    decided: set[bytes] = set()
    committed: set[bytes] = set()
    journals: dict[bytes, list[tuple[int, Op]]] = {}
    token = token_at = b""
    for position, record in ops:
        if checkpoint.op is not None and position < checkpoint.op:
            token_at = token
        for op in record:
            if op.kind == OpKind.CLAIM:
                token = op.token
                if checkpoint.op is not None and position < checkpoint.op:
                    token_at = token
                continue
            if op.kind == OpKind.TICK or not is_in_force(op, token):
                continue
            identity = op.transaction_id
            journals.setdefault(identity, []).append((position, op))
            final, discarded = closed.get(identity, (False, -1))
            if op.kind == OpKind.COMMITTED and not final:
                committed.add(identity)
            elif op.kind in FINAL_KINDS and not (op.kind == OpKind.ROLLBACK and identity in committed):
                closed[identity] = (True, discarded)
            elif op.kind == OpKind.DECIDED:
                decided.add(identity)
            elif op.kind == OpKind.DISCARD and is_discard_in_force(op, is_decided=identity in decided | committed):
                closed[identity] = (final, max(discarded, op.generation))
    return closed, journals, token_at
