"""All uses of the fold's own interface, so that the other modules need not change with it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final

from txcore import wire
from txcore.checker import look_back as looking
from txcore.checker import read_halves
from txcore.checker.checkpoint import checkpoint_of
from txcore.checker.decide import Pending, terms_of
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.history.copies import is_copy
from txcore.records import Checkpoint, Half, Op, OpKind, Position
from txcore.runtime.commands import Flow
from txcore_conformance.refine.whole import COMMITTED

NOTE_SIZE_MAX: Final = 0
_IS_TIMED: Final = "now_s" in inspect.signature(PartitionState.read_op).parameters
_LOOKS_AT_PLACES: Final = "position" in inspect.signature(PartitionState.look_back).parameters
_DROPS_BY_PLACE: Final = "op_read" in inspect.signature(PartitionState.drop_orphans).parameters
OpenState = tuple[int, int, int, Op | None]


def read_half(state: PartitionState, place: int, half: Half) -> None:
    """Read one half as the log reader does."""
    position = Position(place)
    record = (position, half.transaction_id, half.generation)
    if state.early_ops and state.read_ended(*record, may_be_committed=half.version >= wire.OWNER_VERSION):
        return
    if not is_copy(half) and state.holds(half.transaction_id):
        state.pass_over(position)  # the broker stored it twice
        return
    decided = half.decided
    pending = Pending(
        transaction_id=half.transaction_id,
        position=place,
        generation=half.generation,
        terms=terms_of(0.0, 1000.0, 3, fenced=False, is_by_owner=half.is_by_owner),
        count=half.count,
        decision=decided,
        is_journaled=bool(decided),
    )
    if half.final_at >= 0:
        pending.commit(half.final_at)
    if half.order_key:
        first = half.first_position if half.first_position >= 0 else place
        pending.note(order_key=half.order_key, first_position=first, held_at=half.held_at)
    state.read_half(position, pending, half.folded_to, half.token)


def read_ops(state: PartitionState, place: int, ops: Sequence[Op]) -> None:
    """Read one op record as the log reader does."""
    read: Any = state.read_op
    position = Position(place)
    for op in ops:
        if _IS_TIMED:
            read(position, op, 0.0)
        else:
            read(position, op)


def look_back(state: PartitionState, ops: Sequence[tuple[int, Sequence[Op]]]) -> None:
    """Look back, one by one, for every copy whose journal begins before the ops that were read.

    Args:
        ops: The op log; retention may have removed its beginning, and no claim is known there.
    """
    for pending in state.pending.values():
        if pending.extras.look_back is None:
            continue
        folded_to, token = pending.extras.look_back
        if not _LOOKS_AT_PLACES:
            pending.note(look_back=None)
        _look_back(state, pending, ops, folded_to, token)
        pending.note(look_back=None)
    hold_parked(state)


def hold_parked(state: PartitionState) -> None:
    """Close the halves that were read from copies of parked ones, as an owner does that has looked back."""
    for pending in state.pending.values():
        if pending.is_held:
            state.close(pending, OpKind.DISCARD)


def _look_back(
    state: PartitionState, pending: Pending, ops: Sequence[tuple[int, Sequence[Op]]], start: int, token: bytes
) -> None:
    fold_back: Any = state.look_back
    until = -1 if state.op_read is None else state.op_read
    if ops and start < ops[0][0]:
        token = b""
    for place, record in ops:
        if place > until:
            return
        for op in record if place >= start else ():
            if op.kind == OpKind.CLAIM:
                token = op.token
            elif op.transaction_id == pending.transaction_id:
                if _LOOKS_AT_PLACES:
                    fold_back(pending, op, place, token)
                else:
                    fold_back(pending, op, token)


def lose_ops(state: PartitionState) -> None:
    """Have the reader find that the op log has lost its beginning."""
    state.lose_ops()


def drop_orphans(state: PartitionState) -> None:
    """Drop the ops without a half: every half that was stored when they were read has been read."""
    drop: Any = state.drop_orphans
    if _DROPS_BY_PLACE:
        drop(-1 if state.op_read is None else state.op_read)


def checkpoint_now(state: PartitionState) -> Checkpoint:
    """Return the checkpoint that the state gives now."""
    return checkpoint_of(state, (), 0.0, NOTE_SIZE_MAX)


def open_states(state: PartitionState) -> dict[bytes, OpenState]:
    """Return the state of each undecided transaction, in the form of `whole.Truth.open_state`."""
    return {identity: state_of(pending) for identity, pending in state.pending.items()}


def order_in(state: PartitionState) -> dict[bytes, tuple[bytes, int]]:
    """Return order key and first position of each half that has a place in the order."""
    return dict(state.order._places)  # noqa: SLF001


def state_of(pending: Pending) -> OpenState:
    """Return the state of one half, in the same form."""
    decided = COMMITTED if pending.is_committed else pending.decision if pending.is_journaled else 0
    return pending.generation, pending.count, int(decided), None if decided else pending.extras.force


def difference(found: dict[bytes, OpenState], expected: dict[bytes, OpenState]) -> str:
    """Return the difference between the fold's states and the logs' states as text; "" if there is none."""
    ids = [] if found == expected else sorted(found.keys() | expected.keys())
    return "; ".join(
        f"{i[-1]} (generation, count, decided, request): the fold says {found.get(i)}, the logs {expected.get(i)}"
        for i in ids
        if found.get(i) != expected.get(i)
    )


def looking_back(tenure: Tenure) -> Iterator[Flow[None]]:
    """Yield the flow that looks back for every copy, if there are any."""
    copies = [pending for pending in tenure.state.pending.values() if pending.extras.look_back is not None]
    if copies:
        yield looking.look_back(tenure, copies)


@contextlib.contextmanager
def leaving_in(count: int) -> Iterator[None]:
    """Let states keep closed records only among the newest *count*, not among the newest 20,000."""
    before = read_halves.LEFT_IN_MAX
    read_halves.LEFT_IN_MAX = count  # type: ignore[misc]
    try:
        yield
    finally:
        read_halves.LEFT_IN_MAX = before  # type: ignore[misc]
