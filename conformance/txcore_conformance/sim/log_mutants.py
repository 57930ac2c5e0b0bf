"""Rules of reading the two logs, switched off one by one: the holes of issue 19, part A; see `mutants`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from txcore import wire
from txcore.checker.check_steps import Judge
from txcore.checker.decide import Pending, terms_of
from txcore.checker.limits import NewerRecords
from txcore.checker.log_reader import Intake
from txcore.memory import MemoryBackend
from txcore.records import Half, LogRecord, Op, ParkCode

_read_halves = Intake.read_halves


@contextlib.contextmanager
def end_by_silence() -> Iterator[None]:
    """Treat a read without records as the end of the half log (hole 3)."""

    def read_halves(self: Intake) -> int:
        count = _read_halves(self)
        self.is_silent = not count  # type: ignore[attr-defined]
        return count

    def passed_end(self: Intake) -> int | None:
        is_silent = getattr(self, "is_silent", False)
        return self._tenure.state.op_read if is_silent else None

    with mock.patch.object(Intake, "read_halves", read_halves), mock.patch.object(Intake, "passed_end", passed_end):
        yield


def drop_orphans_at_once(self: Intake) -> None:
    """Drop ops without a half although their halves may follow."""
    state = self._tenure.state
    state.drop_orphans(-1 if state.op_read is None else state.op_read)


_look_back = Intake.look_back
_ops_in = Intake._ops_in  # noqa: SLF001


@contextlib.contextmanager
def stray_op_ends_looking_back() -> Iterator[None]:
    """Let stray bytes in the op log end the tenure of the owner that reads them in a look-back (hole 10)."""

    def look_back(self: Intake, copies: Sequence[Pending]) -> Any:
        self.is_looking_back = True  # type: ignore[attr-defined]
        try:
            yield from _look_back(self, copies)
        finally:
            self.is_looking_back = False  # type: ignore[attr-defined]

    def ops_in(self: Intake, record: LogRecord) -> Sequence[Op]:
        if getattr(self, "is_looking_back", False):
            return wire.decode_ops(record.body)
        return _ops_in(self, record)

    with mock.patch.object(Intake, "look_back", look_back), mock.patch.object(Intake, "_ops_in", ops_in):
        yield


_take_newer = Intake._take_newer  # noqa: SLF001


def park_newer(self: Intake, record: LogRecord, error: Any) -> None:
    """Park a record of a newer txcore although no setting allows that (hole 12)."""
    limits = self._context.limits
    was, limits.newer_records = limits.newer_records, NewerRecords.PARK
    try:
        _take_newer(self, record, error)
    finally:
        limits.newer_records = was


_pending = Intake._pending  # noqa: SLF001


def ignore_immunity(self: Intake, record: LogRecord, half: Half) -> Pending:
    """Check a half as soon as it is read."""
    pending = _pending(self, record, half)
    terms = pending.terms
    pending.terms = terms_of(0.0, terms.interval_ms, terms.check_max, terms.fenced)
    pending.due_ms = pending.immune_until_ms = pending.immune_until_ms - terms.immunity_ms
    return pending


_park = Judge._park  # noqa: SLF001


def park_undeliverable_undecided(self: Judge, pending: Pending, code: ParkCode, reason: str) -> Any:
    """Park a half that a target refuses without journaling its decision first."""
    was, pending.is_journaled = pending.is_journaled, True
    try:
        yield from _park(self, pending, code, reason)
    finally:
        pending.is_journaled = was


def close_without_flush(self: MemoryBackend, timeout_s: float = 10.0) -> Any:
    """Lose the ops that wait to be merged when the process ends (hole 14)."""
    del timeout_s
    self._queued.clear()
    self._closed = True
