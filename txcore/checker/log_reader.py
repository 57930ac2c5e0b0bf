"""The owner's reading: both logs of a partition, decoded and folded into its state, in log order.

Bytes that are no record are stray: parked if they are in the half log, skipped in the op log, and counted. A record
of a newer txcore is neither: the reading stops there, unless the checker's settings say otherwise.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from txcore import wire
from txcore.checker import newer_records
from txcore.checker.checkpoint import noted_in
from txcore.checker.copy_proofs import UNPROVEN_REASON, CopyProofs, plain_of
from txcore.checker.coverage_gap import CoverageGap
from txcore.checker.decide import AT_ONCE_MS, Pending, unreadable
from txcore.checker.immunity import Beginnings, terms_for
from txcore.checker.log_end import AskedEnd
from txcore.checker.lost_halves import LostHalves
from txcore.checker.tenure import Tenure
from txcore.errors import BackendUnavailableError, DataLossError, NewerRecordError, UnsignedRecordError, WireFormatError
from txcore.history.copies import is_copy
from txcore.records import MARK_KINDS, Checkpoint, Half, LogKind, LogRecord, Op, OpKind, ParkCode, Position
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow

ORPHANS_MAX: Final = 20_000
"""Number of halves with ops that were read before them at which no more ops are read."""
MERGED_COUNT: Final = 50
"""Number of ops that a record is assumed to hold until one was read."""


class LogReader:
    """Reads for one tenure. `awaited` is the mark it looks out for; `is_back`: it was read, `mark_ms`: its time.

    All that reads raises NewerRecordError at a record that a newer txcore has written.
    """

    def __init__(self, tenure: Tenure, checkpoint: Checkpoint | None) -> None:
        self._tenure = tenure
        self._context = tenure.context
        half, op = (checkpoint.half, checkpoint.op) if checkpoint else (None, None)
        self._readers = {kind: tenure.reader(kind, at) for kind, at in ((LogKind.HALF, half), (LogKind.OP, op))}
        self._merged_count = MERGED_COUNT
        self.noted = noted_in(checkpoint)
        self._beginnings = Beginnings(tenure, self.noted)
        self._claimed_end: AskedEnd | None = None  #: of the halves that were stored before the owner's claim was back
        self._asked_end: AskedEnd | None = None  #: see `ask_end`
        self.awaited = b""
        self.is_back = False
        self.mark_ms: int | None = None
        self.gap = CoverageGap(tenure)
        self.lost = LostHalves(tenure, self.noted)
        self.proofs = CopyProofs(tenure, partial(self.fetch, LogKind.OP))
        self._coming: deque[LogRecord] = deque()  #: halves that were read and are not folded yet

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
        waiting = len(self._tenure.state.early_ops)
        return max((ORPHANS_MAX - waiting) // self._merged_count, 0 if waiting else 1)

    def drop_orphans(self) -> None:
        """Forget ops without a half, once the half log has said that none is to come; not of one that is gone."""
        op_read = self.passed_end()
        strange = 0 if op_read is None else self._tenure.state.drop_orphans(op_read, self.lost.missing)
        self.lost.park_strays()
        if strange:
            self._context.report.event(names.OP_WITHOUT_HALF, partition=self._tenure.partition, count=strange)
        if self._tenure.state.early_ops:
            self.ask_end()

    def claimed(self) -> None:
        """Note that the owner's claim is back; records that are stored from now on are new."""
        self._tenure.is_claimed = True
        self._tenure.state.begin_live()
        self._claimed_end = self._ask_end()

    def close(self) -> None:
        """Close both readers."""
        for reader in self._readers.values():
            reader.close()

    def _read(self, kind: LogKind, count_max: int) -> Sequence[LogRecord]:
        """Return records that have arrived; none, and a new reader, where the log has lost its beginning."""
        tenure, reader = self._tenure, self._readers[kind]
        try:
            return reader.read(count_max)
        except DataLossError as loss:
            reader.close()
            self._readers[kind] = tenure.reopened(kind, loss)
            if kind is LogKind.OP:
                self.gap.begin(loss.first)
                tenure.state.lose_ops()
                return ()
            self.lost.lose_beginning(loss.first)
            self._asked_end = None
            if tenure.is_claimed:
                self._claimed_end = self._ask_end()
        except BackendUnavailableError as error:
            tenure.failed(error)
        return ()

    def read_halves(self) -> int:
        """Read the records that have arrived in the half log; returns the number of those that were folded.

        The log waits at a copy until its proof was fetched.
        """
        if not self._coming:
            self.proofs.forget()
            self._coming.extend(self._read(LogKind.HALF, self._context.limits.read_count_max))
        count = 0
        while self._coming and self._take(self._coming[0]):
            self._coming.popleft()
            count += 1
        if count:
            self._context.counts["halves"] += count
        if (asked := self._claimed_end) is not None:
            if asked.is_void:
                self._claimed_end, self._tenure.may_judge = self._ask_end(), True
            elif self._has_passed(asked):
                self._tenure.is_replaying, self._tenure.may_judge, self._claimed_end = False, True, None
        return count

    def _has_passed(self, asked: AskedEnd) -> bool:
        return asked.is_passed and not self._coming

    def ask_end(self) -> None:
        """Ask the half log where it ends, unless an earlier question is still open; see `passed_end`."""
        if self._asked_end is None:
            self._asked_end = self._ask_end()

    def _ask_end(self) -> AskedEnd:
        return AskedEnd(self._readers[LogKind.HALF], self._readers[LogKind.HALF].end(), self._tenure.state.op_read or 0)

    def passed_end(self) -> int | None:
        """Return how far the op log was read when `ask_end` was called, once all halves of that moment were read.

        Returns None until then, and when the broker did not answer: ask again.
        """
        asked = self._asked_end
        if asked is None or not (self._has_passed(asked) or asked.is_void):
            return None
        self._asked_end = None
        return None if asked.is_void else asked.op_read

    def read_to_end(self) -> Flow[bool]:
        """Read both logs until every half that was stored before this call was read; False if that takes too long."""
        clock, limits = self._context.clock, self._context.limits
        asked = self._ask_end()
        deadline_s = clock.elapsed_s() + limits.mark_timeout_s
        while self._tenure.is_active and asked.reader is self._readers[LogKind.HALF] and not asked.is_void:
            if self._has_passed(asked):
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
        self.lost.found(head.transaction_id, head.generation)
        may_be_committed, place = head.version >= wire.OWNER_VERSION, (record.position, head.transaction_id)
        return is_ours and self._tenure.state.read_ended(*place, head.generation, may_be_committed=may_be_committed)

    def _take(self, record: LogRecord) -> bool:
        """Fold a half record; returns False before the proof of a copy was fetched."""
        if self._tenure.state.early_ops and self._take_ended(record):
            return True
        try:
            half = wire.decode_half(record.body)
        except WireFormatError as error:
            self._take_unreadable(record, error)
            return True
        if half.group != self._context.group or half.partition != self._tenure.partition:
            foreign = f"a half of group {half.group!r}, partition {half.partition}"
            self._take_unreadable(record, WireFormatError(foreign))
            return True
        if not is_copy(half):
            self._take_half(record, half, is_proven=False)
            return True
        is_proven = self.proofs.is_proven(half, self._coming)
        if is_proven:
            self._take_half(record, half, is_proven=True)
        elif is_proven is not None:
            self._take_unproven(record, half)
        return is_proven is not None

    def _take_half(self, record: LogRecord, half: Half, *, is_proven: bool) -> None:
        state = self._tenure.state
        self.lost.found(half.transaction_id, half.generation)
        if not is_proven and state.holds(half.transaction_id):
            state.pass_over(record.position)  # the broker stored it twice, or it is forged: the first one counts
            return
        self._context.bodies.keep((half.partition, record.position), record.body)
        state.read_half(record.position, self._pending(record, half), half.folded_to, half.token)

    def _take_unproven(self, record: LogRecord, half: Half) -> None:
        """Fold a copy without a proof, as if it said nothing; not at all where its half is known without it.

        A fence still decides such a half alone, unless the op log has its end. Any other one is parked under a name of
        its own: its listener may have answered already, and a half with its id may be parked.
        """
        state, identity = self._tenure.state, half.transaction_id
        is_known = state.knows(identity)
        if is_known or half.messages:  # else it changes nothing: perhaps another plugin's mark of the log's end
            self._context.report.event(names.HALF_UNPROVEN, transaction_id=identity, position=record.position)
        if is_known or not half.messages:
            state.pass_over(record.position)
            return
        plain = plain_of(half)
        if not half.fence_decides:
            self._park_bytes(record.position, ParkCode.POISON, UNPROVEN_REASON, wire.encode_half(plain))
            return
        self.lost.found(identity, half.generation)
        pending = self._pending(record, plain)
        pending.note(is_unproven=True)
        state.read_half(record.position, pending)

    def _take_unreadable(self, record: LogRecord, error: WireFormatError) -> None:
        """Make a pending of an undecodable record, so that it is parked with its bytes and blocks nothing."""
        body, position, pending = record.body, record.position, None
        if isinstance(error, NewerRecordError):
            pending = newer_records.newer_half(self._tenure, record, error)
        if pending is None:
            code = ParkCode.POISON
            if isinstance(error, UnsignedRecordError):
                code, body = ParkCode.UNSIGNED, error.body
            self._context.report.event(names.LOG_POISON, partition=self._tenure.partition, position=position, code=code)
            self._park_bytes(position, code, f"position {position}: {error}", body)
            return
        self.lost.found(pending.transaction_id, pending.generation)
        self._tenure.state.read_half(position, pending)

    def _park_bytes(self, position: Position, code: ParkCode, reason: str, body: bytes) -> None:
        """Have bytes parked under a name of their own, so that no transaction changes because of them."""
        name = hashlib.blake2b(body, digest_size=16, salt=position.to_bytes(16, "big")[-16:]).digest()
        self.lost.found(name, 0)
        self._tenure.state.read_half(position, unreadable(name, position, 0, code, reason, body))

    def _pending(self, record: LogRecord, half: Half) -> Pending:
        start_ms, copied_ms = self._beginnings.of(half, record)
        terms = terms_for(self._context, half)
        pending = Pending(
            transaction_id=half.transaction_id,
            position=record.position,
            generation=half.generation,
            terms=terms,
            immune_until_ms=start_ms + terms.immunity_ms,
            due_ms=AT_ONCE_MS if max(half.final_at, half.held_at) >= 0 else start_ms + terms.immunity_ms,
            count=half.count,
            decision=half.decided,
            is_journaled=bool(half.decided),
            was_replayed=self._tenure.is_replaying,
        )
        if copied_ms != start_ms:
            pending.note(copied_ms=copied_ms)
        if half.final_at >= 0:
            pending.commit(half.final_at, self._took_ms(record))
        self.gap.mark_copy(pending, half)
        if half.order_key:
            first = half.first_position if half.first_position >= 0 else record.position
            pending.note(order_key=half.order_key, first_position=first, held_at=half.held_at)
        if half.forced:
            pending.note(forced=half.forced)
        if half.missing:
            pending.note(missing=tuple(half.missing))
        return pending

    def read_ops(self, count_max: int) -> int:
        """Read at most *count_max* of the records that have arrived in the op log; returns their number."""
        records = self._read(LogKind.OP, count_max)
        for record in records:
            ops = ops_in(self._tenure, record)
            if not ops:
                continue
            self.gap.end(record.appended_ms)
            self._take_ops(record, ops)
            self._merged_count = max(len(ops), self._merged_count - 1)
            if not self._tenure.is_active:
                break
        return len(records)

    def _take_ops(self, record: LogRecord, ops: Sequence[Op]) -> None:
        state, position = self._tenure.state, record.position
        state.op_ms = self._took_ms(record)
        for op in ops:
            if not state.read_op(position, op):
                self._context.report.event(names.OP_STALE, transaction_id=op.transaction_id, kind=op.kind)
                self._context.counts["stale"] += 1
            if op.kind in MARK_KINDS:
                self._take_mark(record, op)
                if not self._tenure.is_active:
                    break
        while state.conflicts:
            first, op = state.conflicts.pop()
            self._context.report.event(
                names.OP_CONFLICT, transaction_id=op.transaction_id, first=first, second=op.kind, by=op.by
            )
            self._context.counts["conflicts"] += 1

    def _took_ms(self, record: LogRecord) -> float:
        """Return when the log took a record; where the broker gives no time, when it is read."""
        return self._tenure.now_ms() if record.appended_ms is None else record.appended_ms

    def _take_mark(self, record: LogRecord, op: Op) -> None:
        self.proofs.took_tick(op, record.position)
        if op.transaction_id == self.awaited:
            self.is_back, self.mark_ms = True, record.appended_ms
        elif op.kind == OpKind.CLAIM and self._is_foreign(op):
            self._tenure.stand_down("another checker's claim was read")

    def _is_foreign(self, op: Op) -> bool:
        """Return whether a CLAIM came after our own; those before it are our predecessors'."""
        return op.token != self._tenure.token and (self.awaited != self._tenure.token or self.is_back)

    def half_of(self, pending: Pending) -> Flow[Half]:
        """Return the decoded half, read again if need be.

        Raises:
            TxcoreError: it could not be read; the half is put back.
        """
        if pending.half is None:
            yield from self.load([pending])
        if pending.half is None:
            yield from self.lost.look_for(pending)
            raise DataLossError(pending.position, None)
        return pending.half

    def fetch(self, kind: LogKind, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """Read single records of a log again; see `Reader.fetch`."""
        return self._readers[kind].fetch(positions)

    def has_body(self, pending: Pending) -> bool:
        """Return whether `load` gives a half its record without a request."""
        return self._context.bodies.get((self._tenure.partition, pending.position)) is not None

    def load(self, pendings: Sequence[Pending]) -> Flow[None]:
        """Give halves in hand their records, all that were not read lately in one request; those gone have none.

        Raises:
            TxcoreError: the log could not be read.
        """
        partition, kept = self._tenure.partition, self._context.bodies
        bodies = {pending.position: kept.get((partition, pending.position)) for pending in pendings}
        missing = [Position(position) for position, body in bodies.items() if body is None]
        found: Mapping[Position, LogRecord] = (yield self.fetch(LogKind.HALF, missing)) if missing else {}
        for position, record in found.items():
            bodies[position] = record.body
            kept.keep((partition, position), record.body)
        for pending in pendings:
            body = bodies[pending.position]
            half = None if body is None else wire.half_or_none(body)
            # A log that lost its end may hold another record at a position that is known.
            if half is not None and half.transaction_id == pending.transaction_id:
                pending.half = plain_of(half) if pending.extras.is_unproven else half


def ops_in(tenure: Tenure, record: LogRecord) -> Sequence[Op]:
    """Return the ops in a record; none in stray bytes, which are reported and counted."""
    try:
        return wire.decode_ops(record.body)
    except NewerRecordError as error:
        newer_records.stop_unless_parked(tenure, error)
        reason = str(error)
    except WireFormatError as error:
        reason = str(error)
    context = tenure.context
    context.counts["stray"] += 1
    context.report.event(names.LOG_POISON, partition=tenure.partition, position=record.position, error=reason)
    return ()
