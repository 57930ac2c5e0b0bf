"""Rules of reading the two logs, switched off one by one: the holes of issue 19, part A; see `mutants`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from msgspec import structs

from txcore import wire
from txcore.checker import copy_proofs, log_reader, look_back, newer_records, parking
from txcore.checker.coverage_gap import CoverageGap
from txcore.checker.decide import Pending, terms_of
from txcore.checker.limits import NewerRecords
from txcore.checker.log_reader import LogReader
from txcore.checker.tenure import Tenure
from txcore.memory import MemoryBackend
from txcore.records import Half, LogRecord, Op, ParkCode

_read_halves = LogReader.read_halves


@contextlib.contextmanager
def end_by_silence() -> Iterator[None]:
    """Treat a read without records as the end of the half log (hole 3)."""

    def read_halves(self: LogReader) -> int:
        count = _read_halves(self)
        self.is_silent = not count  # type: ignore[attr-defined]
        return count

    def passed_end(self: LogReader) -> int | None:
        is_silent = getattr(self, "is_silent", False)
        return self._tenure.state.op_read if is_silent else None

    with (
        mock.patch.object(LogReader, "read_halves", read_halves),
        mock.patch.object(LogReader, "passed_end", passed_end),
    ):
        yield


def drop_orphans_at_once(self: LogReader) -> None:
    """Drop ops without a half although their halves may follow."""
    state = self._tenure.state
    state.drop_orphans(-1 if state.op_read is None else state.op_read)


_look_back = look_back.look_back
_ops_in = log_reader.ops_in


@contextlib.contextmanager
def stray_op_ends_looking_back() -> Iterator[None]:
    """Let stray bytes in the op log end the tenure of the owner that reads them in a look-back (hole 10)."""

    def look(tenure: Tenure, copies: Sequence[Pending]) -> Any:
        tenure.is_looking_back = True  # type: ignore[attr-defined]
        try:
            yield from _look_back(tenure, copies)
        finally:
            tenure.is_looking_back = False  # type: ignore[attr-defined]

    def ops_in(tenure: Tenure, record: LogRecord) -> Sequence[Op]:
        if getattr(tenure, "is_looking_back", False):
            return wire.decode_ops(record.body)
        return _ops_in(tenure, record)

    with mock.patch.object(look_back, "look_back", look), mock.patch.object(log_reader, "ops_in", ops_in):
        yield


_newer_half = newer_records.newer_half


def park_newer(tenure: Tenure, record: LogRecord, error: Any) -> Pending | None:
    """Park a record of a newer txcore although no setting allows that (hole 12)."""
    limits = tenure.context.limits
    was, limits.newer_records = limits.newer_records, NewerRecords.PARK
    try:
        return _newer_half(tenure, record, error)
    finally:
        limits.newer_records = was


_pending = LogReader._pending  # noqa: SLF001


def ignore_immunity(self: LogReader, record: LogRecord, half: Half) -> Pending:
    """Check a half as soon as it is read."""
    pending = _pending(self, record, half)
    terms = pending.terms
    pending.terms = terms_of(0.0, terms.interval_ms, terms.check_max, terms.fenced)
    pending.due_ms = pending.immune_until_ms = pending.immune_until_ms - terms.immunity_ms
    return pending


_park = parking.park


def park_undeliverable_undecided(tenure: Tenure, pending: Pending, code: ParkCode, reason: str) -> Any:
    """Park a half that a target refuses without journaling its decision first."""
    was, pending.is_journaled = pending.is_journaled, True
    try:
        yield from _park(tenure, pending, code, reason)
    finally:
        pending.is_journaled = was


def close_without_flush(self: MemoryBackend, timeout_s: float = 10.0) -> Any:
    """Lose the ops that wait to be merged when the process ends (hole 14)."""
    del timeout_s
    self._queued.clear()
    self._closed = True


def ignore_gap(self: CoverageGap, pending: Pending) -> None:
    """Judge a half although retention may have removed its final op."""


_may_hide_ops_of = CoverageGap.may_hide_ops_of


def gap_without_fences(self: CoverageGap, pending: Pending) -> bool:
    """Park fenced halves for a gap, too, although their fence knows how they ended (hole 7)."""
    terms = pending.terms
    pending.terms = structs.replace(terms, fenced=False)
    try:
        return _may_hide_ops_of(self, pending)
    finally:
        pending.terms = terms


def take_unproven_copy(self: LogReader, record: LogRecord, half: Half) -> None:
    """Fold a copy without a proof although its half is known without it."""
    plain = copy_proofs.plain_of(half)
    self._tenure.state.read_half(record.position, self._pending(record, plain))
