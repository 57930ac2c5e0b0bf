"""The owner's reading: both logs of a partition, decoded and folded into its state, in log order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from txcore import instrumentation as names
from txcore import wire
from txcore.commands import Flow
from txcore.decide import Pending, terms_of
from txcore.errors import BackendUnavailableError, DataLossError, WireFormatError
from txcore.port import Reader
from txcore.records import MARK_KINDS, Checkpoint, Half, LogKind, LogRecord, Op, OpKind, ParkCode, Position
from txcore.tenure import Tenure

ORPHANS_MAX: Final = 20_000
"""Ops wait for halves while there are more of them whose halves were not read yet,"""
CATCHING_UP_COUNT: Final = 100
"""and halves still come in such numbers; in fewer, it is not for them that ops wait."""
MERGED_COUNT: Final = 50
"""So many ops are taken to be in a record until one was read."""
POISON_TERMS: Final = terms_of(0.0, 1000.0, 1, fenced=False)


class Intake:
    """Reads for one tenure. `awaited` is the mark it looks out for, `is_back` whether that was read."""

    def __init__(self, tenure: Tenure, checkpoint: Checkpoint | None) -> None:
        self._tenure = tenure
        self._context = tenure.context
        self._halves: Reader = tenure.reader(LogKind.HALF, checkpoint.half if checkpoint else None)
        self._ops: Reader = tenure.reader(LogKind.OP, checkpoint.op if checkpoint else None)
        self._interval_ms = tenure.context.policy.interval_s * 1000
        self._merged_count = MERGED_COUNT
        self._gap_before_ms: float | None = None
        self._is_gap_open = False
        self.awaited = b""
        self.is_back = False
        self.is_claimed = False  #: set by the owner once its claim is back
        self.halves_are_read = False  #: the last read of halves brought nothing

    def read(self) -> int:
        """Read what has arrived in both logs, halves first; returns how many records that were.

        An op record holds many ops, so that in long logs these would run far ahead of their halves, and fill memory.
        """
        count, limits = self.read_halves(), self._context.limits
        if count < CATCHING_UP_COUNT:
            return count + self.read_ops(limits.read_count_max)
        room = (ORPHANS_MAX - self._tenure.state.orphan_count) // self._merged_count
        return count + (self.read_ops(min(room, limits.read_count_max)) if room > 0 else 0)

    def close(self) -> None:
        """Close both readers."""
        self._halves.close()
        self._ops.close()

    def read_halves(self) -> int:
        """Read what has arrived in the half log; returns how many records that were."""
        try:
            records = self._halves.read(self._context.limits.read_count_max)
        except DataLossError as loss:
            self._halves = self._reopened(LogKind.HALF, loss)
            return 0
        except BackendUnavailableError as error:
            self._report_unavailable(error)
            return 0
        for record in records:
            if not (self._tenure.state.orphan_count and self._take_ended(record)):
                self._take_half(record)
        self.halves_are_read = not records
        if records:
            self._context.count("halves", len(records))
        return len(records)

    def _take_ended(self, record: LogRecord) -> bool:
        """Take in a half whose end is known already, of which nothing but the id matters; says whether it is one."""
        try:
            head = wire.decode_head(record.body)
        except WireFormatError:
            return False
        is_ours = head.group == self._context.group and head.partition == self._tenure.partition
        return is_ours and self._tenure.state.read_ended(record.position, head.transaction_id, head.generation)

    def _take_half(self, record: LogRecord) -> None:
        try:
            half = wire.decode_half(record.body)
        except WireFormatError as error:
            self._take_poison(record, error)
            return
        if half.group != self._context.group or half.partition != self._tenure.partition:
            self._take_poison(record, WireFormatError(f"a half of group {half.group!r}, partition {half.partition}"))
            return
        self._context.bodies.keep((half.partition, record.position), record.body)
        self._tenure.state.read_half(record.position, self._pending(record, half), half.folded_to, half.token)

    def _pending(self, record: LogRecord, half: Half) -> Pending:
        now_ms = self._tenure.now_ms()
        if self._tenure.has_server_time:
            copied_ms = float(record.appended_ms or now_ms)
            start_ms = float(half.first_appended_ms) if half.first_appended_ms else copied_ms
        else:
            start_ms = now_ms - max(half.age_ms, self._tenure.state.ages_ms.get(half.transaction_id, 0))
            copied_ms = start_ms + half.age_ms
        # The checker may only lengthen an immunity that the half carries; a resumed one has had it.
        immunity_min_ms = 0.0 if half.generation else self._context.limits.immunity_min_s * 1000
        terms = terms_of(
            max(half.immunity_ms, immunity_min_ms),
            half.interval_ms or self._interval_ms,
            half.check_max or self._context.policy.check_max,
            half.fenced,
        )
        immune_until_ms = start_ms + terms.immunity_ms
        pending = Pending(
            half.transaction_id,
            record.position,
            half.generation,
            terms,
            immune_until_ms,
            immune_until_ms,
            half.count,
            half.decided,
            bool(half.decided),
            was_replayed=not self.is_claimed,
        )
        if copied_ms != start_ms:
            pending.note(copied_ms=copied_ms)
        if half.missing:
            pending.note(missing=tuple(half.missing))
        return pending

    def _take_poison(self, record: LogRecord, error: WireFormatError) -> None:
        """Make a pending of an undecodable record, so that it is parked with its bytes and blocks nothing."""
        name = hashlib.blake2b(record.body, digest_size=16, salt=record.position.to_bytes(16, "big")[-16:]).digest()
        self._context.report.event(names.LOG_POISON, partition=self._tenure.partition, position=record.position)
        pending = Pending(name, record.position, 0, POISON_TERMS, 0.0, 0.0)
        pending.note(poison=record.body, park=(ParkCode.POISON, f"position {record.position}: {error}"))
        self._tenure.state.read_half(record.position, pending)

    def read_ops(self, count_max: int) -> int:
        """Read at most *count_max* records of what has arrived in the op log; returns how many that were."""
        try:
            records = self._ops.read(count_max)
        except DataLossError as loss:
            self._is_gap_open = True
            self._ops = self._reopened(LogKind.OP, loss)
            return 0
        except BackendUnavailableError as error:
            self._report_unavailable(error)
            return 0
        now_s = self._context.clock.elapsed_s()
        for record in records:
            try:
                ops = wire.decode_ops(record.body)
            except WireFormatError as error:
                self._context.report.event(names.LOG_POISON, partition=self._tenure.partition, error=str(error))
                continue
            if self._is_gap_open:
                self._is_gap_open = False
                self._gap_before_ms = float(record.appended_ms or 0)
            self._take_ops(record, ops, now_s)
            self._merged_count = max(len(ops), self._merged_count - 1)
            if not self._tenure.is_active:
                break
        return len(records)

    def _take_ops(self, record: LogRecord, ops: Sequence[Op], now_s: float) -> None:
        state, position = self._tenure.state, record.position
        for op in ops:
            if not state.read_op(position, op, now_s):
                self._context.report.event(names.OP_STALE, transaction_id=op.transaction_id, kind=op.kind)
                self._context.count("stale")
            if op.kind in MARK_KINDS:
                self._take_mark(record, op)
                if not self._tenure.is_active:
                    break
        while state.conflicts:
            conflict = state.conflicts.pop()
            self._context.report.event(
                names.OP_CONFLICT,
                transaction_id=conflict.transaction_id,
                first=conflict.first,
                second=conflict.second.kind,
                by=conflict.second.by,
            )
            self._context.count("conflicts")

    def _take_mark(self, record: LogRecord, op: Op) -> None:
        if op.transaction_id == self.awaited:
            self.is_back = True
            if self._tenure.has_server_time and record.appended_ms is not None:
                self._tenure.offset_ms = record.appended_ms - self._context.clock.elapsed_s() * 1000
        elif op.kind == OpKind.CLAIM and self._is_foreign(op):
            self._tenure.stand_down("another checker's claim was read")

    def _is_foreign(self, op: Op) -> bool:
        """Return whether a CLAIM came behind our own; those before it are our predecessors'."""
        return op.token != self._tenure.token and (self.awaited != self._tenure.token or self.is_back)

    def look_back(self, pending: Pending) -> Flow[None]:
        """Read the op log from where a copy's journal was folded up to where this owner reads (R8)."""
        assert pending.extras.look_back is not None
        (asked, token), until = pending.extras.look_back, self._tenure.state.op_read
        pending.note(look_back=None)
        reader = self._tenure.reader(LogKind.OP, Position(asked))
        try:
            while until is not None and not pending.is_closed:
                records = reader.read(self._context.limits.read_count_max)
                for record in records:
                    for op in wire.decode_ops(record.body):
                        if op.kind == OpKind.CLAIM:
                            token = op.token
                        elif op.transaction_id == pending.transaction_id:
                            self._tenure.state.look_back(pending, op, token)
                if records and records[-1].position >= until:
                    return
                yield 0.0 if records else self._context.limits.poll_s
        except DataLossError:
            reason = "the op log no longer reaches back to where this copy was made"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))
        finally:
            reader.close()

    def half_of(self, pending: Pending) -> Flow[Half]:
        """Return the decoded half, read again if need be.

        Raises:
            TxcoreError: it could not be read; the half is put back.
        """
        if pending.half is None:
            yield from self.load([pending])
        if pending.half is None:
            raise DataLossError(pending.position, None)
        return pending.half

    def load(self, pendings: Sequence[Pending]) -> Flow[None]:
        """Give halves in hand their records, all that were not read lately in one request; those gone have none.

        Raises:
            TxcoreError: the log could not be read.
        """
        partition, kept = self._tenure.partition, self._context.bodies
        bodies = {pending.position: kept.get((partition, pending.position)) for pending in pendings}
        missing = [Position(position) for position, body in bodies.items() if body is None]
        found: Mapping[Position, LogRecord] = (yield self._halves.fetch(missing)) if missing else {}
        for position, record in found.items():
            bodies[position] = record.body
            kept.keep((partition, position), record.body)
        for pending in pendings:
            body = bodies[pending.position]
            half = None if body is None else _half_in(body)
            # A log that lost its end may hold another record at a position that is known.
            if half is not None and half.transaction_id == pending.transaction_id:
                pending.half = half

    def note_gap(self, pending: Pending) -> None:
        """Mark a half older than the op log's first record: its end may be among the lost ops (R12)."""
        if self._gap_before_ms is None or pending.extras.park is not None or pending.decision or pending.generation:
            return
        # Wall clocks of different machines cannot be compared, so without the broker's time every replayed half counts.
        is_older = pending.start_ms < self._gap_before_ms if self._tenure.has_server_time else pending.was_replayed
        if is_older:
            reason = "the op log begins after this half was born, and no checkpoint covers it"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))

    def _reopened(self, kind: LogKind, loss: DataLossError) -> Reader:
        self._context.report.event(
            names.LOG_TRUNCATED, partition=self._tenure.partition, log=kind.value, asked=loss.asked, first=loss.first
        )
        return self._tenure.reader(kind, None if loss.first is None else Position(loss.first))

    def _report_unavailable(self, error: BackendUnavailableError) -> None:
        self._context.report.event(names.CHECKER_ERROR, partition=self._tenure.partition, error=repr(error))


def _half_in(body: bytes) -> Half | None:
    try:
        return wire.decode_half(body)
    except WireFormatError:
        return None
