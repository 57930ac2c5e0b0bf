"""Mended holes (corrected errors), opened again one by one: a machine that does not find them proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from txcore import wire
from txcore.checker import carrying, log_reader, look_back
from txcore.checker import partition_state as fold
from txcore.checker.decide import Pending
from txcore.checker.log_reader import LogReader
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.records import FINAL_KINDS, OWNED_KINDS, HalfRecord, LogRecord, Op, OpKind, Position
from txcore.runtime.commands import Flow

Patch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mended hole, opened again."""

    rule: str
    patch: Patch


def _replace(owner: object, name: str, new: Any) -> Patch:
    return lambda: mock.patch.object(owner, name, new)


_read_op = PartitionState.read_op
_read_halves = LogReader.read_halves
_merge = PartitionState._merge  # noqa: SLF001
_look_back = look_back.look_back


def _drop_early(self: PartitionState, position: Position, op: Op) -> bool:
    """Fold an op, but drop an op about a generation that was not read yet."""
    known = self._known(op.transaction_id)
    if known is not None and op.generation > known.generation and op.kind not in FINAL_KINDS:
        self.op_read = position
        return True
    return _read_op(self, position, op)


def _never_early(*_: object) -> bool:
    return False


def _always(*_: object) -> bool:
    return True


def _journal_in_force(op: Op, token: bytes) -> bool:
    return op.token == token or op.kind not in OWNED_KINDS


def _carry_closed(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Carry a half without checking whether it was closed meanwhile."""
    half = yield from tenure.logs.half_of(pending)
    if not tenure.is_active:
        return
    again_ms = tenure.now_ms() + tenure.context.limits.read_back_s * 1000
    pending.note(carry_again_ms=again_ms)
    copy = yield from tenure.logs.proofs.prove(carrying.copy_of(tenure, half, pending))
    if copy is None:
        return
    yield HalfRecord(half.group, tenure.partition, half.transaction_id, copy.generation, wire.encode_half(copy), ())


def _read_halves_noting(self: LogReader) -> int:
    count = _read_halves(self)
    if count:
        self.__dict__["heard_s"] = self._context.clock.elapsed_s()
    return count


def _passed_by_silence(self: LogReader) -> int | None:
    """Report a half log as read to its end after a minute without records."""
    now_s = self._context.clock.elapsed_s()
    heard_s = self.__dict__.setdefault("heard_s", now_s)
    return self._tenure.state.op_read if now_s - heard_s > SILENT_S else None


SILENT_S: Final = 60.0


class _Silence:
    """The patch that concludes the end of the half log from silence."""

    def __init__(self) -> None:
        self._patches = (
            mock.patch.object(LogReader, "read_halves", _read_halves_noting),
            mock.patch.object(LogReader, "passed_end", _passed_by_silence),
        )

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()


def _take_at_once(self: PartitionState, seen: Any, position: Position, op: Op) -> None:
    """Fold an op into a copy before the look-back has read the earlier ops."""
    self._note_op(seen, position)
    if seen.pending is not None:
        self._fold(seen.pending, op, position)
    elif op.kind in FINAL_KINDS and seen.closed_by == OpKind.DISCARD:
        seen.closed_by = op.kind


def _merge_dropping(self: PartitionState, known: Any, seen: Any, new: Pending) -> None:
    """Merge a copy, but forget its place as soon as an earlier record of its half was read."""
    new.note(copied_from=None, look_back=known.pending and known.pending.extras.look_back)
    _merge(self, known, seen, new)


def _ops_or_error(_: Tenure, record: LogRecord) -> Sequence[Op]:
    return wire.decode_ops(record.body)


def _look_back_strictly(tenure: Tenure, copies: Sequence[Pending]) -> Flow[None]:
    """Look back, and raise an error at bytes that are not a record."""
    flow, value = _look_back(tenure, copies), None
    while True:
        try:
            with mock.patch.object(log_reader, "ops_in", _ops_or_error):
                command = flow.send(value)
        except StopIteration:
            return
        value = yield command


MUTANTS: Final = {
    "1 early ops dropped": Mutant(
        "an op that is read before the half of its generation waits for it",
        _replace(PartitionState, "read_op", _drop_early),
    ),
    "1 early ops folded": Mutant(
        "an op about a later generation is not folded into an earlier one", _replace(fold, "is_early", _never_early)
    ),
    "2 closed half carried": Mutant(
        "a half that was closed meanwhile is not carried", _replace(carrying, "carry", _carry_closed)
    ),
    "3 end from silence": Mutant("the end of the half log is known from the log", _Silence),
    "5 reply to any request": Mutant(
        "a reply answers the request that it names, and no other", _replace(fold, "is_reply_to", _always)
    ),
    "5 reply under any claim": Mutant(
        "a reply counts under the claim in force at its place", _replace(fold, "is_in_force", _journal_in_force)
    ),
    "9 look-back after newer ops": Mutant(
        "old ops are folded before newer ones", _replace(PartitionState, "_take", _take_at_once)
    ),
    "7 place of a copy dropped": Mutant(
        "after ops were lost, a copy's journal is read from the place and the claim that it names",
        _replace(PartitionState, "_merge", _merge_dropping),
    ),
    "10 stray op in a look-back": Mutant(
        "bytes that are no record are skipped wherever ops are read",
        _replace(look_back, "look_back", _look_back_strictly),
    ),
}
