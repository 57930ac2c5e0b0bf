"""The owner's reading: both logs of a partition, decoded and folded into its state, in log order.

Bytes that are no record are stray: parked if they are in the half log, skipped in the op log, and counted. A record
of a newer txcore is neither: the reading stops there, unless the checker's settings say otherwise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from txcore import wire
from txcore.checker.checkpoint_note import NoteEntry, copy_age_of, decode_note
from txcore.checker.decide import Pending, terms_of
from txcore.checker.limits import NewerRecords
from txcore.checker.partition_session import Tenure
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    DataLossError,
    NewerRecordError,
    WireFormatError,
)
from txcore.fence import NO_DATABASE
from txcore.ids import ID_BYTES
from txcore.port import Reader
from txcore.records import MARK_KINDS, Checkpoint, Half, LogKind, LogRecord, Op, OpKind, ParkCode, Position
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow

ORPHANS_MAX: Final = 20_000
"""Number of halves with ops that were read before them at which no more ops are read."""
MERGED_COUNT: Final = 50
"""Number of ops that a record is assumed to hold until one was read."""
POISON_TERMS: Final = terms_of(0.0, 1000.0, 1, fenced=False)


@dataclass(frozen=True, slots=True)
class _End:
    """A question where the half log ends, and how far the op log was read when it was asked."""

    reader: Reader
    end: Future[Position]
    op_read: int

    @property
    def is_void(self) -> bool:
        """Whether the broker did not answer."""
        return self.end.done() and self.end.exception() is not None

    @property
    def is_passed(self) -> bool:
        """Whether every half was read that was stored when it was asked."""
        return self.end.done() and self.end.exception() is None and self.reader.passed >= self.end.result()


class Intake:
    """Reads for one tenure. `awaited` is the mark it looks out for; `is_back`: it was read, `mark_ms`: its time.

    All that reads raises NewerRecordError at a record that a newer txcore has written.
    """

    def __init__(self, tenure: Tenure, checkpoint: Checkpoint | None) -> None:
        self._tenure = tenure
        self._context = tenure.context
        self._halves: Reader = tenure.reader(LogKind.HALF, checkpoint.half if checkpoint else None)
        self._ops: Reader = tenure.reader(LogKind.OP, checkpoint.op if checkpoint else None)
        self._interval_ms = tenure.context.policy.interval_s * 1000
        self._merged_count = MERGED_COUNT
        self._gap_before_ms: float | None = None
        self._is_gap_open = False
        self._gap_found_s = 0.0
        self.awaited = b""
        self.is_back = False
        self.mark_ms: int | None = None
        self.is_claimed = False  #: the owner's claim is back
        self._is_replaying = True  #: halves may come that were stored before that
        self._claimed_end: Future[Position] | None = None
        self._end: _End | None = None  #: see `ask_end`
        self._note = checkpoint.note if checkpoint else b""
        self._noted = tenure.state.noted
        self._began_ms = tenure.now_ms()
        self._missing: dict[bytes, NoteEntry] = {}  #: see `has_missing`
        self._lost: list[Pending] = []  #: to be parked as LOST
        self._halves_from = 0  #: where the half log began when that was seen last
        self._is_probing = False

    def read(self) -> int:
        """Read the records that have arrived in both logs, halves first; returns their number.

        An op record holds many ops, so that in long logs these would run far ahead of their halves, and fill memory; as
        they would while the half log is silent. Once that was read to its end, ops that still wait are for no half.
        """
        count = self.read_halves()
        if self._room() <= 0:
            self.ask_end()
            self.drop_orphans()
        room = self._room()
        return count + (self.read_ops(min(room, self._context.limits.read_count_max)) if room > 0 else 0)

    def _room(self) -> int:
        """Return how many op records may be read before too many ops wait for halves."""
        waiting = self._tenure.state.orphan_count
        return max((ORPHANS_MAX - waiting) // self._merged_count, 0 if waiting else 1)

    def drop_orphans(self) -> None:
        """Forget ops without a half, once the half log has said that none is to come; not of one that is gone."""
        op_read = self.passed_end()
        dropped = 0 if op_read is None else self._tenure.state.drop_orphans(op_read, self._missing)
        if dropped:
            self._context.report.event(names.OP_WITHOUT_HALF, partition=self._tenure.partition, count=dropped)
        if self._tenure.state.orphan_count:
            self.ask_end()

    def claimed(self) -> None:
        """Note that the owner's claim is back; records that are stored from now on are new."""
        self.is_claimed = True
        self._tenure.state.begin_live()
        self._claimed_end = self._halves.end()

    def close(self) -> None:
        """Close both readers."""
        self._halves.close()
        self._ops.close()

    def read_halves(self) -> int:
        """Read the records that have arrived in the half log; returns their number."""
        try:
            records = self._halves.read(self._context.limits.read_count_max)
        except DataLossError as loss:
            self._halves.close()
            self._halves = self._reopened(LogKind.HALF, loss)
            self._halves_from = max(self._halves_from, loss.first or 0)
            self._end = None
            if self.is_claimed:
                self.claimed()
            self._missing.update((entry.transaction_id, entry) for entry in decode_note(self._note))
            self._note = b""
            return 0
        except BackendUnavailableError as error:
            self._report_unavailable(error)
            return 0
        for record in records:
            if not (self._tenure.state.orphan_count and self._take_ended(record)):
                self._take_half(record)
        if records:
            self._context.count("halves", len(records))
        if self._claimed_end is not None:
            self._look_for_claimed_end(self._claimed_end)
        return len(records)

    def _look_for_claimed_end(self, end: Future[Position]) -> None:
        if end.done() and end.exception() is not None:
            self._claimed_end = self._halves.end()
        elif end.done() and self._halves.passed >= end.result():
            self._is_replaying, self._claimed_end = False, None

    @property
    def has_missing(self) -> bool:
        """Whether the half log lost its beginning, and with it halves that the checkpoint names, as far as was read."""
        return bool(self._missing)

    def _found(self, identity: bytes, generation: int) -> None:
        """Note that a half was read; a copy of the same or a later generation is enough."""
        entry = self._missing.get(identity)
        if entry is not None and entry.generation <= generation:
            del self._missing[identity]

    def find_lost(self) -> Flow[None]:
        """Park each half that the checkpoint names as undecided and the half log, read to its end, no longer holds.

        An end in the op log closes such a half as any other.
        """
        if not (yield from self.read_to_end()):
            return
        state = self._tenure.state
        for entry in self._missing.values():
            position = Position(state.half_read or 0)
            pending = Pending(entry.transaction_id, position, entry.generation, POISON_TERMS, 0.0, 0.0, entry.count)
            self._lose(pending, "undecided at the last checkpoint, and gone from the half log since")
            state.read_half(position, pending)
        self._missing.clear()

    def ask_end(self) -> None:
        """Ask the half log where it ends, unless an earlier question is still open; see `passed_end`."""
        if self._end is None:
            self._end = self._ask_end()

    def _ask_end(self) -> _End:
        return _End(self._halves, self._halves.end(), self._tenure.state.op_read or 0)

    def passed_end(self) -> int | None:
        """Return how far the op log was read when `ask_end` was called, once all halves of that moment were read.

        Returns None until then, and when the broker did not answer: ask again.
        """
        asked = self._end
        if asked is None or not (asked.is_passed or asked.is_void):
            return None
        self._end = None
        return None if asked.is_void else asked.op_read

    def read_to_end(self) -> Flow[bool]:
        """Read both logs until every half that was stored before this call was read; False if that takes too long."""
        clock, limits = self._context.clock, self._context.limits
        asked = self._ask_end()
        deadline_s = clock.elapsed_s() + limits.mark_timeout_s
        while self._tenure.is_active and asked.reader is self._halves and not asked.is_void:
            if asked.is_passed:
                return True
            count = self.read()
            if count:
                deadline_s = clock.elapsed_s() + limits.mark_timeout_s
            elif clock.elapsed_s() > deadline_s:
                break
            yield 0.0 if count else limits.poll_s
        return False

    def _take_ended(self, record: LogRecord) -> bool:
        """Fold a half whose end is known already, so that only its id matters; returns whether it is such a half."""
        try:
            head = wire.decode_head(record.body)
        except WireFormatError:
            return False  # `_take_half` deals with it
        is_ours = head.group == self._context.group and head.partition == self._tenure.partition
        self._found(head.transaction_id, head.generation)
        return is_ours and self._tenure.state.read_ended(record.position, head.transaction_id, head.generation)

    def _take_half(self, record: LogRecord) -> None:
        try:
            half = wire.decode_half(record.body)
        except NewerRecordError as error:
            self._take_newer(record, error)
            return
        except WireFormatError as error:
            self._take_poison(record, error)
            return
        if half.group != self._context.group or half.partition != self._tenure.partition:
            self._take_poison(record, WireFormatError(f"a half of group {half.group!r}, partition {half.partition}"))
            return
        self._found(half.transaction_id, half.generation)
        self._context.bodies.keep((half.partition, record.position), record.body)
        self._tenure.state.read_half(record.position, self._pending(record, half), half.folded_to, half.token)

    def _pending(self, record: LogRecord, half: Half) -> Pending:
        now_ms = self._tenure.now_ms()
        if self._tenure.has_server_time:
            copied_ms = float(record.appended_ms or now_ms)
            start_ms = self._server_start_ms(half, copied_ms, now_ms)
        else:
            start_ms = now_ms - max(half.age_ms, self._tenure.state.ages_ms.get(half.transaction_id, 0))
            copied_ms, copy_age_ms = start_ms + half.age_ms, copy_age_of(self._noted, record.position)
            if copy_age_ms is not None:
                copied_ms = min(copied_ms, self._began_ms - copy_age_ms)
        # The checker may only lengthen an immunity that the half carries; a resumed one has had it.
        immunity_min_ms = 0.0 if half.generation else self._context.limits.immunity_min_s * 1000
        terms = terms_of(
            max(half.immunity_ms, immunity_min_ms),
            half.interval_ms or self._interval_ms,
            half.check_max or self._context.policy.check_max,
            half.fence_decides,
            half.database or (NO_DATABASE if half.may_lack_row else b""),
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
            was_replayed=self._is_replaying,
        )
        if copied_ms != start_ms:
            pending.note(copied_ms=copied_ms)
        if half.missing:
            pending.note(missing=tuple(half.missing))
        return pending

    def _server_start_ms(self, half: Half, copied_ms: float, now_ms: float) -> float:
        """Return when immunity began, where both logs carry the broker's time, though perhaps of different nodes.

        A half that the claimed owner reads for the first time was stored before now, whatever any clock says. Only for
        halves that an owner finds when it begins, and for copies, the append time counts, less the allowance for clocks
        that differ. A fenced half needs no such allowance: checked too early, it is at worst delivered twice.
        """
        skew_ms = 0.0 if half.fence_decides else self._context.backend.capabilities.clock_skew_max_s * 1000
        first_ms = (float(half.first_appended_ms) or copied_ms) + skew_ms
        if not self.is_claimed:
            return first_ms
        return now_ms if skew_ms and not half.first_appended_ms else min(first_ms, now_ms)

    def _take_poison(self, record: LogRecord, error: WireFormatError) -> None:
        """Make a pending of an undecodable record, so that it is parked with its bytes and blocks nothing."""
        name = hashlib.blake2b(record.body, digest_size=16, salt=record.position.to_bytes(16, "big")[-16:]).digest()
        self._context.report.event(names.LOG_POISON, partition=self._tenure.partition, position=record.position)
        pending = Pending(name, record.position, 0, POISON_TERMS, 0.0, 0.0)
        pending.note(poison=record.body, park=(ParkCode.POISON, f"position {record.position}: {error}"))
        self._tenure.state.read_half(record.position, pending)

    def _take_newer(self, record: LogRecord, error: NewerRecordError) -> None:
        """Stop at a half of a newer txcore; where the settings say so, have it parked under its own id instead."""
        is_ours = error.group == self._context.group and error.partition == self._tenure.partition
        if not is_ours or len(error.transaction_id) != ID_BYTES:
            self._take_poison(record, error)
            return
        if self._context.limits.newer_records is not NewerRecords.PARK:
            raise error
        self._found(error.transaction_id, error.generation)
        pending = Pending(error.transaction_id, record.position, error.generation, POISON_TERMS, 0.0, 0.0)
        pending.note(poison=record.body, park=(ParkCode.NEWER, f"position {record.position}: {error}"))
        self._tenure.state.read_half(record.position, pending)

    def read_ops(self, count_max: int) -> int:
        """Read at most *count_max* of the records that have arrived in the op log; returns their number."""
        try:
            records = self._ops.read(count_max)
        except DataLossError as loss:
            self._is_gap_open, self._gap_found_s = True, self._context.clock.elapsed_s()
            self._ops.close()
            self._ops = self._reopened(LogKind.OP, loss)
            return 0
        except BackendUnavailableError as error:
            self._report_unavailable(error)
            return 0
        for record in records:
            ops = self._ops_in(record)
            if not ops:
                continue
            if self._is_gap_open:
                self._is_gap_open = False
                self._gap_before_ms = float(record.appended_ms or 0)
            self._take_ops(record, ops)
            self._merged_count = max(len(ops), self._merged_count - 1)
            if not self._tenure.is_active:
                break
        return len(records)

    def _ops_in(self, record: LogRecord) -> Sequence[Op]:
        """Return the ops in a record; none in stray bytes, which are reported and counted."""
        try:
            return wire.decode_ops(record.body)
        except NewerRecordError as error:
            if self._context.limits.newer_records is not NewerRecords.PARK:
                raise
            reason = str(error)
        except WireFormatError as error:
            reason = str(error)
        self._context.count("stray")
        self._context.report.event(
            names.LOG_POISON, partition=self._tenure.partition, position=record.position, error=reason
        )
        return ()

    def _take_ops(self, record: LogRecord, ops: Sequence[Op]) -> None:
        state, position = self._tenure.state, record.position
        for op in ops:
            if not state.read_op(position, op):
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
            self.is_back, self.mark_ms = True, record.appended_ms
        elif op.kind == OpKind.CLAIM and self._is_foreign(op):
            self._tenure.stand_down("another checker's claim was read")

    def _is_foreign(self, op: Op) -> bool:
        """Return whether a CLAIM came after our own; those before it are our predecessors'."""
        return op.token != self._tenure.token and (self.awaited != self._tenure.token or self.is_back)

    def look_back(self, copies: Sequence[Pending]) -> Flow[None]:
        """Fold the op log from where the journals of *copies* begin up to where this owner has read (R8).

        Raises:
            TxcoreError: it could not be read to that place; the copies are still to be looked back for.
        """
        begins = {each.transaction_id: each.extras.look_back for each in copies if each.extras.look_back is not None}
        waiting = {pending.transaction_id: pending for pending in copies}
        starts = sorted(begins.values())
        (position, token), kept_from = starts[0], -1
        context, state = self._context, self._tenure.state
        until = -1 if state.op_read is None else state.op_read
        reader = self._tenure.reader(LogKind.OP, Position(position))
        deadline_s = context.clock.elapsed_s() + context.limits.mark_timeout_s
        try:
            while position < until and reader.passed <= until:
                try:
                    records = [each for each in reader.read(context.limits.read_count_max) if each.position <= until]
                except DataLossError as loss:
                    reader.close()
                    reader, records = self._reopened(LogKind.OP, loss), []
                    # The claim in force after the gap is not known before one is read, or a copy names it.
                    kept_from, token = until + 1 if loss.first is None else loss.first, b""
                    starts = [each for each in starts if each[0] >= kept_from]
                for record in records:
                    position = record.position
                    while starts and starts[0][0] <= position:
                        token = starts.pop(0)[1]
                    for op in self._ops_in(record):
                        if op.kind == OpKind.CLAIM:
                            token = op.token
                        elif (pending := waiting.get(op.transaction_id)) is not None:
                            state.look_back(pending, op, position, token)
                if records:
                    deadline_s = context.clock.elapsed_s() + context.limits.mark_timeout_s
                elif context.clock.elapsed_s() > deadline_s:
                    raise BackendTimeoutError(f"the op log could not be read again up to position {until}")
                yield 0.0 if records else context.limits.poll_s
        finally:
            reader.close()
        for pending in copies:
            pending.note(look_back=None)
            is_gap = begins[pending.transaction_id][0] < kept_from
            if is_gap and not pending.is_closed and not pending.terms.fenced:
                reason = "the op log no longer reaches back to where this copy was made"
                pending.note(park=(ParkCode.COVERAGE_GAP, reason))

    def half_of(self, pending: Pending) -> Flow[Half]:
        """Return the decoded half, read again if need be.

        Raises:
            TxcoreError: it could not be read; the half is put back.
        """
        if pending.half is None:
            yield from self.load([pending])
        if pending.half is None:
            if (yield from self._is_eaten(pending.position)):
                self._lose(pending, "undecided, and gone from the half log since it was read")
            raise DataLossError(pending.position, None)
        return pending.half

    def _is_eaten(self, position: int) -> Flow[bool]:
        """Return whether the half log begins after *position*; False where it does not answer in time."""
        if position < self._halves_from or self._is_probing:
            return position < self._halves_from
        clock, limits = self._context.clock, self._context.limits
        deadline_s = clock.elapsed_s() + limits.mark_timeout_s
        reader, self._is_probing = self._tenure.reader(LogKind.HALF, Position(position)), True
        try:
            while clock.elapsed_s() < deadline_s and not reader.read(1) and reader.passed <= position:
                yield limits.poll_s
        except DataLossError as loss:
            self._halves_from = position + 1 if loss.first is None else loss.first
        finally:
            self._is_probing = False
            reader.close()
        return position < self._halves_from

    def _lose(self, pending: Pending, reason: str) -> None:
        """Have a half parked as LOST; its database knows its outcome, and it has no messages any more."""
        pending.note(poison=b"", park=(ParkCode.LOST, f"{reason}; the database knows its outcome"))
        self._lost.append(pending)

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
        """Mark a half whose ops retention may have eaten: its end may be among the lost ones (R12).

        A fenced half needs no mark: its fence knows how it ended. Nor does a half that is younger than the retention of
        ops: only older ops were eaten.
        """
        if pending.extras.park is None and self._may_lack_ops(pending):
            reason = "the op log begins after this half was born, and no checkpoint covers it"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))

    def hides_gap(self) -> bool:
        """Return whether a checkpoint would hide lost records from the next owner: a half, or ops of an open one.

        A half that is gone has no place in the log; its entry must be stored before a checkpoint passes it.
        """
        self._lost = [pending for pending in self._lost if not pending.is_closed]
        if self._missing or self._lost:
            return True
        if self._is_gap_open or self._gap_before_ms is None:
            return self._is_gap_open
        return self._is_replaying or any(self._may_lack_ops(pending) for pending in self._tenure.state.pending.values())

    def _may_lack_ops(self, pending: Pending) -> bool:
        if self._gap_before_ms is None or pending.terms.fenced or pending.decision or pending.generation:
            return False
        if self._tenure.has_server_time:
            capabilities = self._context.backend.capabilities
            kept_s = capabilities.op_retention_s
            # Counted from the discovery of the gap: this owner has read all later records.
            found_ms = self._tenure.now_ms() + (self._gap_found_s - self._context.clock.elapsed_s()) * 1000
            kept_since_ms = math.inf if kept_s is None else found_ms - kept_s * 1000
            lost_before_ms = min(self._gap_before_ms, kept_since_ms) + capabilities.clock_skew_max_s * 1000
            return pending.was_replayed and min(pending.start_ms, pending.copied_ms) < lost_before_ms
        # Wall clocks of different machines cannot be compared, so every replayed half counts.
        return pending.was_replayed

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
