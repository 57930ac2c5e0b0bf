"""The rules of an owner's release, switched off one by one; see `mutants`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from unittest import mock

import msgspec

from txcore.checker import carrying, fence_check, finish
from txcore.checker.decide import Pending
from txcore.checker.log_reader import LogReader
from txcore.checker.partition_owner import PartitionOwner
from txcore.checker.partition_state import PartitionState
from txcore.checker.read_halves import ReadHalf
from txcore.checker.tenure import Tenure
from txcore.fence import FenceAnswer, FenceReading
from txcore.memory import MemoryBackend
from txcore.producer import finish as ending
from txcore.records import Half, Op, OpKind, Position
from txcore_conformance.sim.mutant import KAFKA, RABBITMQ, STEPPED, Mutant, op_first, replace

_end = PartitionState._end  # noqa: SLF001
_take = PartitionState._take  # noqa: SLF001
_close = PartitionState.close
_mark = PartitionOwner._mark  # noqa: SLF001
_copy_of = carrying.copy_of
_resolution_of = ending.resolution_of
_take_reading = fence_check._take_reading  # noqa: SLF001


def end_by_rollback(self: PartitionState, pending: Pending, op: Op, position: Position) -> None:
    """Let a ROLLBACK after a COMMITTED close the half."""
    if op.kind == OpKind.ROLLBACK:
        self.close(pending, op.kind)
    else:
        _end(self, pending, op, position)


def committed_is_delivered(self: PartitionState, pending: Pending, op: Op, position: Position) -> None:
    """Take a COMMITTED for the end of its half, as an older reader would."""
    if op.kind == OpKind.COMMITTED:
        self.close(pending, OpKind.COMMIT)
    else:
        _end(self, pending, op, position)


def close_parked_entry(self: PartitionState, seen: ReadHalf, position: Position, op: Op) -> None:
    """Let a COMMITTED take a parked half off the list."""
    if op.kind == OpKind.COMMITTED and seen.pending is None and seen.closed_by == OpKind.DISCARD:
        seen.closed_by = OpKind.COMMIT
        self.ended_parked.append((op.transaction_id, seen.generation))
        return
    _take(self, seen, position, op)


@contextlib.contextmanager
def committed_over_rollback() -> Iterator[None]:
    """Let a COMMITTED open a half again that a ROLLBACK has ended."""
    rolled_back: dict[bytes, Pending] = {}

    def close(self: PartitionState, pending: Pending, kind: int) -> None:
        if kind == OpKind.ROLLBACK:
            rolled_back[pending.transaction_id] = pending
        _close(self, pending, kind)

    def take(self: PartitionState, seen: ReadHalf, position: Position, op: Op) -> None:
        pending = rolled_back.pop(op.transaction_id, None) if op.kind == OpKind.COMMITTED else None
        if pending is not None and seen.closed_by == OpKind.ROLLBACK:
            seen.closed_by, pending.is_closed = 0, False
            self._open(seen, pending)
        _take(self, seen, position, op)

    with mock.patch.object(PartitionState, "close", close), mock.patch.object(PartitionState, "_take", take):
        yield


def copy_without_final(tenure: Tenure, half: Half, pending: Pending) -> Half:
    """Carry a committed half as if it were undecided."""
    return msgspec.structs.replace(_copy_of(tenure, half, pending), final_at=-1)


def buffered_decision(*arguments: Any) -> Any:
    """Hand a COMMITTED over as an op that may wait to be merged."""
    resolution = _resolution_of(*arguments)
    resolution.flush = False
    return resolution


def publish_what_is_sent(tenure: Tenure, pending: Pending, reading: FenceReading) -> None:
    """Take what the message table's relay has sent for a half that its owner is to publish."""
    is_sent = reading.answer is FenceAnswer.SENT
    _take_reading(tenure, pending, FenceReading(FenceAnswer.COMMIT) if is_sent else reading)


def judge_without_tick(self: PartitionOwner, logs: LogReader, kind: OpKind) -> Generator[Any, Any, bool]:
    """Judge halves, and release them again, before a mark shows that every earlier release has ended."""
    return True if kind is OpKind.TICK else (yield from _mark(self, logs, kind))


MUTANTS: Mapping[str, Mutant] = {
    "released_again_without_tick": Mutant(
        "R17",
        replace(PartitionOwner, "_mark", judge_without_tick),
        (KAFKA,),
        "a store that keeps resolutions unique refuses the second release; in steps it may be seen twice anyway",
    ),
    "published_before_read_back": Mutant("R17", replace(finish, "lacks_committed", lambda _: False)),
    "released_before_target": Mutant(
        "R17",
        replace(MemoryBackend, "_release_in_steps", op_first(frozenset({OpKind.RELEASED}))),
        STEPPED,
        "targets and op are one atomic release there",
    ),
    "buffered_decision": Mutant(
        "R17",
        replace(ending, "resolution_of", buffered_decision),
        (KAFKA, RABBITMQ),
        "ops do not wait to be merged there",
    ),
    "committed_over_rollback": Mutant(
        "R17",
        committed_over_rollback,
        (KAFKA, RABBITMQ),
        "a store with unique resolutions refuses the second one",
    ),
    "rollback_over_committed": Mutant(
        "R17",
        replace(PartitionState, "_end", end_by_rollback),
        (KAFKA, RABBITMQ),
        "a store with unique resolutions refuses the second one",
    ),
    "committed_closes_parked": Mutant(
        "R17",
        replace(PartitionState, "_take", close_parked_entry),
        (KAFKA, RABBITMQ),
        "a store with unique resolutions refuses a COMMITTED after a DISCARD",
    ),
    "owner_publishes_state_3": Mutant("R17", replace(fence_check, "_take_reading", publish_what_is_sent)),
    "committed_copy_judged": Mutant("R17", replace(carrying, "copy_of", copy_without_final)),
    "committed_is_delivered": Mutant("R17", replace(PartitionState, "_end", committed_is_delivered)),
}
