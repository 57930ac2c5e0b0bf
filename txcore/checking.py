"""The checker's side of the protocol for one partition, as flows: claim, read, tick, check, finish, park, carry.

`PartitionOwner.run` is the owner's main flow; each half in hand has a flow of its own beside it, so that a slow,
failing or locked one delays no other. Whatever is written carries the owner's token. A half is judged only after
the owner's own TICK, written after the half was read, came back from the op log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from txcore import instrumentation as names
from txcore import wire
from txcore.clock import Clock, Randomness
from txcore.decide import Decision, Pending, decide
from txcore.errors import DataLossError, TxcoreError, WireFormatError
from txcore.fence import Fence, FenceAnswer, FenceReading
from txcore.flow import Call, Flow, Spawn
from txcore.fold import PartitionState
from txcore.instrumentation import Reporter
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.port import Backend, Reader
from txcore.port import Claim as ClaimPort
from txcore.records import (
    FINAL_KINDS,
    REASON_SIZE_MAX,
    Forced,
    Half,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    ParkCode,
    Parked,
    Position,
    Resolution,
    Status,
)


@dataclass(frozen=True, slots=True)
class HalfView:
    """What a listener is asked about.

    Attributes:
        check_times: Answered checks so far.
        born_ms: The producer's wall clock when the half was made.
    """

    transaction_id: bytes
    group: str
    messages: tuple[Message, ...]
    check_times: int
    born_ms: int


class CheckListener(Protocol):
    """What the checker asks of a listener. `topics`, where declared, are the only ones it is asked about."""

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Return what became of the local transaction."""


@dataclass(slots=True)
class Limits:
    """The checker's bounds; each is a number of seconds unless named otherwise."""

    replay_max: int = 20_000  #: half records a restart may read again before the oldest are carried forward
    read_count_max: int = 1_000
    batch_count_max: int = 500  #: halves in hand at once per partition
    fence_batch_count_max: int = 200
    poll_s: float = 0.005
    idle_poll_s: float = 0.2
    mark_timeout_s: float = 5.0
    read_back_s: float = 5.0
    retry_s: float = 0.2  #: first back-off after a check without an answer or a failed write; doubles
    retry_max_s: float = 30.0
    check_deadline_s: float = 10.0
    refusals_max: int = 8  #: releases that a target refused before the half is parked as undeliverable
    checkpoint_interval_s: float = 2.0
    orphan_keep_s: float = 60.0
    body_bytes_max: int = 64 << 20  #: bodies of waiting halves kept in memory per partition


@dataclass(slots=True)
class CheckContext:
    """What all owners of one checker share. `answers` is None where only the fence answers."""

    backend: Backend
    group: str
    clock: Clock
    randomness: Randomness
    claim: ClaimPort
    policy: CheckPolicy
    limits: Limits
    report: Reporter
    by: str
    listeners: Sequence[CheckListener] = ()
    fence: Fence | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter of this checker."""
        self.counts[name] = self.counts.get(name, 0) + number


TOKEN_BYTES: Final = 16


class PartitionOwner:
    """One partition in one checker's hands. Everything runs on the checker's loop."""

    def __init__(self, context: CheckContext, partition: int) -> None:
        self.context = context
        self.partition = partition
        self.token = b""
        self.is_active = True  #: False: stand down at once and write nothing more
        self.is_draining = False  #: True: start nothing new, finish what is in hand, checkpoint, give up
        self.has_ended = False
        self.wants_sweep = False  #: set by `Checker.run_once`; cleared once all that is due now is done and read back
        self.in_hand = 0
        self._state = PartitionState()
        self._halves: Reader | None = None
        self._ops: Reader | None = None
        self._awaited = b""
        self._is_back = False
        self._offset_ms = 0.0
        self._gap_before_ms: float | None = None
        self._is_gap_open = False
        self._body_bytes = 0
        self._checkpoint_at_s = 0.0
        self._stored: Any = None
        self._halves_are_read = False

    # -- main flow ---------------------------------------------------------------------------------------------------

    def run(self) -> Flow[None]:
        """Own the partition until told to stop or until another checker's CLAIM is read."""
        try:
            yield from self._open()
            if (yield from self._take_claim()):
                yield from self._work()
        except TxcoreError as error:
            self.context.report.event(names.CHECKER_ERROR, partition=self.partition, error=repr(error))
            yield self.context.limits.retry_s
        finally:
            self.is_active = False
            self.has_ended = True
            for reader in (self._halves, self._ops):
                if reader is not None:
                    reader.close()

    def _open(self) -> Flow[None]:
        context = self.context
        checkpoint = yield context.backend.load_checkpoint(context.group, self.partition)
        self._state = PartitionState(checkpoint)
        self._halves = self._reader(LogKind.HALF, checkpoint.half if checkpoint else None)
        self._ops = self._reader(LogKind.OP, checkpoint.op if checkpoint else None)

    def _reader(self, kind: LogKind, start: Position | None) -> Reader:
        return self.context.backend.read(self.context.group, kind, self.partition, start)

    def _take_claim(self) -> Flow[bool]:
        self.token = self._nonce()
        if not (yield from self._mark(OpKind.CLAIM, self.token)):
            return False
        self.context.report.event(names.CHECKER_CLAIMED, partition=self.partition)
        self.context.count("claims")
        self._checkpoint_at_s = self.context.clock.elapsed_s()
        return True

    def _work(self) -> Flow[None]:
        limits = self.context.limits
        idle_s = limits.poll_s
        while self.is_active:
            count = self._read_halves() + self._read_ops()
            if self.is_draining:
                if not self.in_hand:
                    break
            else:
                yield from self._carry_oldest()
                judged = yield from self._round()
                count += judged
                if self.wants_sweep and not count and not self.in_hand:
                    yield from self._end_sweep()
            yield from self._checkpoint(force=False)
            idle_s = limits.poll_s if count or self.in_hand else min(idle_s * 2, limits.idle_poll_s)
            yield self._pause_s(idle_s)
        if self.is_active:
            self._read_ops()
            yield from self._checkpoint(force=True)

    def _round(self) -> Flow[int]:
        """Judge what is due behind a tick of our own; returns how many halves were judged."""
        limits = self.context.limits
        now_ms = self._now_ms()
        room = limits.batch_count_max - self.in_hand
        due_ms = self._state.next_due_ms()
        if due_ms is None or due_ms > now_ms or room <= 0:
            return 0
        due = self._state.take_due(now_ms, room)
        is_caught_up = yield from self._mark(OpKind.TICK, self._nonce())
        for pending in due:
            pending.is_busy = False
        if not is_caught_up:
            for pending in due:
                self._later(pending, limits.retry_s * 1000)
            return 0
        yield from self._judge(due)
        return len(due)

    def _end_sweep(self) -> Flow[None]:
        """Read everything back behind one more tick; the sweep is over if that brought nothing new that is due."""
        if (yield from self._mark(OpKind.TICK, self._nonce())) and not self._read_halves():
            due_ms = self._state.next_due_ms()
            if due_ms is None or due_ms > self._now_ms():
                yield from self._checkpoint(force=True)
                self.wants_sweep = False

    def _judge(self, due: list[Pending]) -> Flow[None]:
        fenced = []
        now_ms = self._now_ms()
        for pending in due:
            if not self.is_active:
                return
            if pending.look_back is not None:
                yield from self._look_back(pending)
            self._note_gap(pending)
            decision = decide(pending, now_ms, must_carry=False)
            if decision is Decision.CHECK and pending.fenced:
                fenced.append(pending)
            elif decision is Decision.DONE:
                continue
            elif decision is Decision.WAIT:
                self._state.schedule(pending, max(pending.due_ms, pending.immune_until_ms))
            else:
                yield from self._start(pending, self._flow_for(pending, decision))
        size = self.context.limits.fence_batch_count_max
        for index in range(0, len(fenced), size):
            chunk = fenced[index : index + size]
            for pending in chunk:
                pending.is_busy = True
            self.in_hand += len(chunk)
            yield Spawn(self._check_fence(chunk))

    def _flow_for(self, pending: Pending, decision: Decision) -> Flow[None]:
        if decision is Decision.FINISH:
            return self._finish(pending)
        if decision is Decision.DISCARD:
            reason = f"{pending.count} checks were answered UNKNOWN"
            return self._park(pending, ParkCode.CHECKS_EXHAUSTED, reason)
        if decision is Decision.PARK:
            assert pending.park is not None
            return self._park(pending, *pending.park)
        if decision is Decision.FORCE:
            return self._force(pending)
        if decision is Decision.CARRY:
            return self._carry(pending)
        assert decision is Decision.CHECK
        return self._ask(pending)

    def _start(self, pending: Pending, flow: Flow[None]) -> Flow[None]:
        pending.is_busy = True
        self.in_hand += 1
        yield Spawn(self._held(pending, flow))

    def _held(self, pending: Pending, flow: Flow[None]) -> Flow[None]:
        """Run *flow* for a half in hand; whatever it ends with, the half is put back."""
        try:
            yield from flow
        except TxcoreError as error:
            self._fail(pending, error)
        finally:
            self._put_back(pending)

    def _put_back(self, pending: Pending) -> None:
        self.in_hand -= 1
        pending.is_busy = False
        if not pending.is_closed:
            self._state.schedule(pending, pending.due_ms)

    # -- one half: check -----------------------------------------------------------------------------------------------

    def _ask(self, pending: Pending) -> Flow[None]:
        """Ask the listener; only an explicit answer counts (R10)."""
        context = self.context
        half = yield from self._half_of(pending)
        if half is None:
            return
        listener = self._listener_for(half)
        if listener is None:
            topics = sorted({message.topic for message in half.messages})
            context.report.event(names.CHECK_WRONG_LISTENER, group=context.group, topics=topics)
            self._fail(pending, None)
            return
        call = Call(listener.check_local_transaction, (_view(half, pending),), context.limits.check_deadline_s)
        context.count("asked")
        try:
            answer = yield call
        except Exception as error:  # noqa: BLE001 - user code; no answer is no answer, whatever it raised
            context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, error=repr(error))
            self._fail(pending, None)
            return
        if not self.is_active or pending.is_closed:
            return
        if not isinstance(answer, LocalTransactionState):
            context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, answer=repr(answer))
            self._fail(pending, None)
            return
        context.report.event(names.CHECK_ANSWERED, transaction_id=pending.transaction_id, answer=answer.value)
        pending.failures = 0
        if answer is LocalTransactionState.UNKNOWN:
            yield from self._count_check(pending)
        else:
            yield from self._journal_decision(pending, OpKind[answer.value], Forced.NO, "")

    def _count_check(self, pending: Pending) -> Flow[None]:
        outcome = yield self._op(pending, OpKind.CHECKED, count=pending.count + 1)
        if self._went_well(pending, outcome):
            is_last = pending.count + 1 >= pending.check_max
            pending.due_ms = self._now_ms() + (0 if is_last else pending.interval_ms)

    def _journal_decision(self, pending: Pending, decision: OpKind, forced: Forced, reason: str) -> Flow[None]:
        """Write DECIDED before anything is done with an answer that no fence holds (R4); acted upon once read back."""
        outcome = yield self._op(pending, OpKind.DECIDED, decision=decision, forced=forced, reason=reason)
        if self._went_well(pending, outcome):
            pending.due_ms = self._now_ms()

    def _check_fence(self, chunk: list[Pending]) -> Flow[None]:
        """Let the fence decide a batch; each one is then finished by a flow of its own."""
        fence, context = self.context.fence, self.context
        readings: Mapping[bytes, FenceReading] = {}
        reason = "this checker has no fence"
        context.count("asked", len(chunk))
        if fence is not None:
            ids = [pending.transaction_id for pending in chunk]
            try:
                readings = yield Call(fence.check, (ids, context.group), context.limits.check_deadline_s)
            except Exception as error:  # noqa: BLE001 - the database's trouble is no answer
                reason = repr(error)
        for pending in chunk:
            reading = readings.get(pending.transaction_id, FenceReading(FenceAnswer.NO_ANSWER, reason))
            if self.is_active and not pending.is_closed:
                self._take_reading(pending, reading)
            self._put_back(pending)
            if pending.is_closed or not self.is_active or not (pending.decision or pending.park):
                continue
            if pending.decision:
                yield from self._start(pending, self._finish(pending))

    def _take_reading(self, pending: Pending, reading: FenceReading) -> None:
        answer = reading.answer
        self.context.report.event(names.CHECK_ANSWERED, transaction_id=pending.transaction_id, answer=answer.value)
        if answer is FenceAnswer.COMMIT or answer is FenceAnswer.ROLLBACK:
            pending.failures = 0
            pending.decision = OpKind[answer.value]
        elif answer is FenceAnswer.PRUNED:
            pending.park = (ParkCode.PRUNED, "no fence row, and the id lies below the horizon of the fence table")
            pending.due_ms = self._now_ms()
        else:
            reason = reading.reason or answer.value
            self.context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, reason=reason)
            self._fail(pending, None)

    def _force(self, pending: Pending) -> Flow[None]:
        """Execute an operator's request: through the fence, or against it only with an override (R11)."""
        request = pending.force
        assert request is not None
        context = self.context
        wanted = OpKind(request.decision) if request.decision in FINAL_KINDS else OpKind.ROLLBACK
        if pending.fenced and request.forced != Forced.OVERRIDE:
            refusal = yield from self._ask_fence(pending, wanted)
            if refusal:
                yield self._op(pending, OpKind.FORCE, decision=wanted, reason=refusal)
                pending.force = None
            else:
                yield from self._finish(pending)
            return
        if pending.fenced and context.fence is not None:
            try:
                yield Call(
                    context.fence.force, (pending.transaction_id, context.group), context.limits.check_deadline_s
                )
            except Exception as error:  # noqa: BLE001 - an override is for exactly this case; it is recorded
                context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, error=repr(error))
        forced = Forced.OVERRIDE if pending.fenced else Forced.YES
        yield from self._journal_decision(pending, wanted, forced, f"{request.by}: {request.reason}")

    def _ask_fence(self, pending: Pending, wanted: OpKind) -> Flow[str]:
        """Return why the fence does not allow *wanted*, or "" with the pending decided."""
        fence, identity = self.context.fence, pending.transaction_id
        if fence is None:
            return "refused: this checker has no fence"
        try:
            readings = yield Call(fence.check, ([identity], self.context.group), self.context.limits.check_deadline_s)
            reading: FenceReading = readings[identity]
        except Exception as error:  # noqa: BLE001 - see _check_fence
            return f"refused: the fence did not answer: {error!r}"
        if reading.answer.value != wanted.name:
            return f"refused: the fence says {reading.answer.value} {reading.reason}".rstrip()
        pending.decision, pending.forced = wanted, Forced.YES
        return ""

    # -- one half: end -------------------------------------------------------------------------------------------------

    def _finish(self, pending: Pending) -> Flow[None]:
        """Publish a committed half's targets, or none, and write its final op."""
        half = yield from self._half_of(pending)
        if half is None or not self.is_active or pending.is_closed:
            return
        kind = OpKind(pending.decision)
        targets: Sequence[int] = ()
        if kind is OpKind.COMMIT:
            targets = range(len(half.messages)) if pending.missing is None else pending.missing
        outcome = yield self._op(pending, kind, half=half, targets=targets, forced=pending.forced)
        status = outcome.status
        if status is Status.DURABLE:
            pending.missing = ()
            pending.due_ms = self._now_ms() + self.context.limits.read_back_s * 1000
            self.context.report.event(names.HALF_FINISHED, transaction_id=pending.transaction_id, end=kind.name)
            self.context.count(kind.name.lower())
        elif status is Status.REFUSED and kind is OpKind.COMMIT and outcome.missing:
            yield from self._refused(pending, outcome)
        else:
            self._went_well(pending, outcome)
            if status is Status.UNKNOWN and kind is OpKind.COMMIT:
                pending.missing = outcome.missing

    def _refused(self, pending: Pending, outcome: Outcome) -> Flow[None]:
        """Retry what a target refused by itself; at last park it as undeliverable, its decision journaled (R9)."""
        pending.missing = outcome.missing
        pending.refusals += 1
        self.context.report.event(
            names.RELEASE_REFUSED, transaction_id=pending.transaction_id, error=repr(outcome.error)
        )
        if pending.refusals < self.context.limits.refusals_max:
            self._fail(pending, None)
            return
        if not pending.is_journaled:
            yield from self._journal_decision(pending, OpKind.COMMIT, Forced(pending.forced), "")
        pending.park = (ParkCode.UNDELIVERABLE, f"targets {list(outcome.missing)} refuse: {outcome.error}")
        pending.due_ms = self._now_ms()

    def _park(self, pending: Pending, code: ParkCode, reason: str) -> Flow[None]:
        """Confirm the parked record, then write DISCARD (R3, R11)."""
        if code is ParkCode.UNDELIVERABLE and not pending.is_journaled:
            yield from self._journal_decision(pending, OpKind.COMMIT, Forced(pending.forced), "")
            return
        half = None
        if pending.poison is None:
            half = yield from self._half_of(pending)
            if half is None:
                return
        context = self.context
        parked = Parked(
            wire.VERSION,
            pending.transaction_id,
            pending.generation,
            code,
            reason[:REASON_SIZE_MAX],
            pending.count,
            context.by,
            context.clock.wall_ms(),
            self.token,
            pending.poison or (wire.encode_half(half) if half else b""),
            list(pending.missing or ()),
        )
        if not self.is_active or pending.is_closed:
            return
        outcome = yield self._op(pending, OpKind.DISCARD, half=half, parked=wire.encode_parked(parked), reason=code)
        if self._went_well(pending, outcome):
            pending.due_ms = self._now_ms() + context.limits.read_back_s * 1000
            context.report.event(names.HALF_PARKED, transaction_id=pending.transaction_id, code=code, reason=reason)
            context.report.discard(half, reason)
            context.count("parked")

    def _carry(self, pending: Pending) -> Flow[None]:
        """Append a copy with the journal folded in, so that the old one may be forgotten (R8)."""
        half = yield from self._half_of(pending)
        if half is None or not self.is_active:
            return
        now_ms = self._now_ms()
        generation = pending.generation + pending.is_outdone
        copy = Half(
            half.version,
            half.transaction_id,
            half.group,
            half.partition,
            generation,
            half.born_ms,
            half.immunity_ms,
            half.interval_ms,
            half.check_max,
            half.fenced,
            half.by,
            half.messages,
            round(pending.start_ms) if self._has_server_time else half.first_appended_ms,
            max(round(now_ms - pending.start_ms), 0),
            pending.count,
            -1 if self._state.op_read is None else self._state.op_read,
            pending.decision if pending.is_journaled else 0,
            self._state.token,
            half.reason,
            list(pending.missing or ()),
        )
        pending.carry_again_ms = now_ms + self.context.limits.read_back_s * 1000
        if pending.is_outdone:
            pending.due_ms = pending.carry_again_ms
        outcome = yield HalfRecord(
            half.group, self.partition, half.transaction_id, generation, wire.encode_half(copy), ()
        )
        if outcome.status is Status.DURABLE:
            self.context.report.event(names.HALF_CARRIED, transaction_id=pending.transaction_id)
            self.context.count("carried")

    def _carry_oldest(self) -> Flow[None]:
        limits = self.context.limits
        retention_s = self.context.backend.capabilities.half_retention_s
        if retention_s is None and self._state.replay_count <= limits.replay_max:
            return
        now_ms = self._now_ms()
        for behind, pending in list(_first(self._state.oldest_open(), limits.batch_count_max)):
            is_old = retention_s is not None and now_ms - pending.copied_ms > retention_s * 500
            must_carry = (is_old or behind > limits.replay_max) and pending.poison is None
            if not must_carry and behind <= limits.replay_max:
                break
            if pending.is_busy or self.in_hand >= limits.batch_count_max:
                continue
            if decide(pending, now_ms, must_carry=must_carry) is Decision.CARRY:
                yield from self._start(pending, self._carry(pending))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _op(
        self,
        pending: Pending,
        kind: OpKind,
        *,
        half: Half | None = None,
        targets: Sequence[int] = (),
        parked: bytes = b"",
        count: int = 0,
        decision: int = 0,
        forced: int = Forced.NO,
        reason: str = "",
    ) -> Resolution:
        context = self.context
        op = Op(
            kind,
            pending.transaction_id,
            pending.generation,
            context.by,
            context.clock.wall_ms(),
            self.token,
            count,
            decision,
            forced,
            reason[:REASON_SIZE_MAX],
        )
        messages = half.messages if half is not None else ()
        record = HalfRecord(context.group, self.partition, pending.transaction_id, pending.generation, b"", messages)
        return Resolution(record, op, targets, parked, context.by, flush=True)

    def _went_well(self, pending: Pending, outcome: Outcome) -> bool:
        """Return whether *outcome* is DURABLE; deal with every other one."""
        status = outcome.status
        if status is Status.DURABLE:
            return True
        if status is Status.SUPERSEDED:
            if pending.decision and outcome.decision in FINAL_KINDS and outcome.decision != pending.decision:
                self.context.report.event(
                    names.OP_CONFLICT, transaction_id=pending.transaction_id, first=outcome.decision
                )
            if outcome.decision == OpKind.DISCARD and pending.is_journaled:
                pending.is_outdone, pending.due_ms = True, self._now_ms()
            else:
                self._state.close(pending, outcome.decision)
        elif status is Status.FENCED:
            self.stand_down("fenced")
        else:
            self._fail(pending, outcome.error)
        return False

    def _fail(self, pending: Pending, error: TxcoreError | None) -> None:
        """Put a half back after no answer or a failed write: counts nothing, backs off (R10)."""
        limits = self.context.limits
        backoff_s = min(limits.retry_s * 2 ** min(pending.failures, 20), limits.retry_max_s)
        pending.failures += 1
        pending.due_ms = self._now_ms() + min(backoff_s * 1000, max(pending.interval_ms, limits.retry_s * 1000))
        if error is not None:
            self.context.report.event(names.RELEASE_UNKNOWN, transaction_id=pending.transaction_id, error=repr(error))

    def _later(self, pending: Pending, delay_ms: float) -> None:
        if not pending.is_closed:
            self._state.schedule(pending, self._now_ms() + delay_ms)

    def _mark(self, kind: OpKind, nonce: bytes) -> Flow[bool]:
        """Append a CLAIM or TICK and read the op log until it is back; False when it does not come in time."""
        context, limits = self.context, self.context.limits
        self._awaited, self._is_back = nonce, False
        op = Op(kind, nonce, 0, context.by, context.clock.wall_ms(), self.token)
        deadline_s = context.clock.elapsed_s() + limits.mark_timeout_s
        try:
            outcome: Outcome = yield context.backend.mark(context.group, self.partition, op, context.claim)
        except TxcoreError as error:
            context.report.event(names.CHECKER_ERROR, partition=self.partition, error=repr(error))
            return False
        if outcome.status is Status.FENCED:
            self.stand_down("fenced")
            return False
        while self.is_active:
            count = self._read_halves() + self._read_ops()
            if self._is_back:
                return True
            if not count:
                if context.clock.elapsed_s() > deadline_s:
                    return False
                yield limits.poll_s
        return False

    def _checkpoint(self, *, force: bool) -> Flow[None]:
        context = self.context
        now_s = context.clock.elapsed_s()
        if not force and now_s < self._checkpoint_at_s:
            return
        self._checkpoint_at_s = now_s + context.limits.checkpoint_interval_s
        dropped = 0
        if self._halves_are_read:
            dropped = self._state.drop_orphans(now_s, context.limits.orphan_keep_s)
        if dropped:
            context.report.event(names.OP_WITHOUT_HALF, partition=self.partition, count=dropped)
        checkpoint = self._state.checkpoint(self._now_ms(), context.backend.capabilities.note_size_max)
        if checkpoint.half is None or (not force and checkpoint == self._stored):
            return
        try:
            yield context.claim.checkpoint(self.partition, checkpoint)
            self._stored = checkpoint
        except TxcoreError as error:
            # A checkpoint is only a lower bound: the old one holds, a restart reads more.
            context.report.event(names.CHECKER_ERROR, partition=self.partition, error=repr(error))

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read_halves(self) -> int:
        assert self._halves is not None
        try:
            records = self._halves.read(self.context.limits.read_count_max)
        except DataLossError as loss:
            self._lost(LogKind.HALF, loss)
            self._halves = self._reader(LogKind.HALF, Position(loss.first))
            return 0
        for record in records:
            self._take_half(record)
        self._halves_are_read = not records
        return len(records)

    def _take_half(self, record: LogRecord) -> None:
        try:
            half = wire.decode_half(record.body)
        except WireFormatError as error:
            self._take_poison(record, error)
            return
        if half.group != self.context.group or half.partition != self.partition:
            self._take_poison(record, WireFormatError(f"a half of group {half.group!r}, partition {half.partition}"))
            return
        pending = self._pending(record, half)
        self._body_bytes += len(record.body)
        if self._body_bytes > self.context.limits.body_bytes_max:
            pending.half = None
        self._state.read_half(record.position, pending, half)

    def _pending(self, record: LogRecord, half: Half) -> Pending:
        policy = self.context.policy
        now_ms = self._now_ms()
        if self._has_server_time:
            start_ms = float(half.first_appended_ms or record.appended_ms or now_ms)
            copied_ms = float(record.appended_ms or now_ms)
        else:
            start_ms = now_ms - max(half.age_ms, self._state.ages_ms.get(half.transaction_id, 0))
            copied_ms = start_ms + half.age_ms
        # The checker may only lengthen an immunity that the half carries.
        immunity_ms = float(half.immunity_ms)
        return Pending(
            half.transaction_id,
            record.position,
            half.generation,
            half,
            start_ms,
            immunity_ms,
            half.interval_ms or policy.interval_s * 1000,
            half.check_max or policy.check_max,
            half.fenced,
            start_ms + immunity_ms,
            copied_ms,
            half.count,
            half.decided,
            bool(half.decided),
            missing=tuple(half.missing) or None,
        )

    def _take_poison(self, record: LogRecord, error: WireFormatError) -> None:
        """Make a pending of an undecodable record, so that it is parked with its bytes and blocks nothing."""
        name = hashlib.blake2b(record.body, digest_size=16, salt=record.position.to_bytes(16, "big")[-16:]).digest()
        self.context.report.event(names.LOG_POISON, partition=self.partition, position=record.position)
        pending = Pending(name, record.position, 0, None, 0.0, 0.0, 1000.0, 1, fenced=False, due_ms=0.0)
        pending.poison = record.body
        pending.park = (ParkCode.POISON, f"position {record.position}: {error}")
        self._state.read_half(record.position, pending, None)

    def _read_ops(self) -> int:
        assert self._ops is not None
        try:
            records = self._ops.read(self.context.limits.read_count_max)
        except DataLossError as loss:
            self._lost(LogKind.OP, loss)
            self._is_gap_open = True
            self._ops = self._reader(LogKind.OP, Position(loss.first))
            return 0
        for record in records:
            try:
                ops = wire.decode_ops(record.body)
            except WireFormatError as error:
                self.context.report.event(names.LOG_POISON, partition=self.partition, error=str(error))
                continue
            if self._is_gap_open:
                self._is_gap_open = False
                self._gap_before_ms = float(record.appended_ms or min(op.at_ms for op in ops))
            for op in ops:
                self._take_op(record, op)
                if not self.is_active:
                    return len(records)
        return len(records)

    def _take_op(self, record: LogRecord, op: Op) -> None:
        if not self._state.read_op(record.position, op, self.context.clock.elapsed_s()):
            self.context.report.event(names.OP_STALE, transaction_id=op.transaction_id, kind=op.kind)
            self.context.count("stale")
        while self._state.conflicts:
            conflict = self._state.conflicts.pop()
            self.context.report.event(
                names.OP_CONFLICT,
                transaction_id=conflict.transaction_id,
                first=conflict.first,
                second=conflict.second.kind,
                by=conflict.second.by,
            )
            self.context.count("conflicts")
        if op.transaction_id == self._awaited and op.kind in {OpKind.CLAIM, OpKind.TICK}:
            self._is_back = True
            if self._has_server_time and record.appended_ms is not None:
                self._offset_ms = record.appended_ms - self.context.clock.elapsed_s() * 1000
        elif op.kind == OpKind.CLAIM and self._is_foreign(op):
            self.stand_down("another checker's claim was read")

    def _is_foreign(self, op: Op) -> bool:
        """Return whether a CLAIM came behind our own; those before it are our predecessors'."""
        return op.token != self.token and (self._awaited != self.token or self._is_back)

    def _look_back(self, pending: Pending) -> Flow[None]:
        """Read the op log from where a copy's journal was folded up to where this owner reads (R8)."""
        assert pending.look_back is not None
        asked, until = pending.look_back, self._state.op_read
        pending.look_back = None
        token = pending.half.token if pending.half is not None else b""
        reader = self._reader(LogKind.OP, Position(asked))
        try:
            while until is not None and not pending.is_closed:
                records = reader.read(self.context.limits.read_count_max)
                for record in records:
                    for op in wire.decode_ops(record.body):
                        if op.kind == OpKind.CLAIM:
                            token = op.token
                        elif op.transaction_id == pending.transaction_id:
                            self._state.look_back(pending, op, token)
                if records and records[-1].position >= until:
                    return
                if not records:
                    yield self.context.limits.poll_s
        except DataLossError:
            pending.park = (ParkCode.COVERAGE_GAP, "the op log no longer reaches back to where this copy was made")
        finally:
            reader.close()

    def _half_of(self, pending: Pending) -> Flow[Half | None]:
        """Return the decoded half, fetched again if it was put aside; None puts the pending back."""
        if pending.half is not None:
            return pending.half
        assert self._halves is not None
        position = Position(pending.position)
        try:
            found: Mapping[Position, LogRecord] = yield self._halves.fetch([position])
        except TxcoreError as error:
            self._fail(pending, error)
            return None
        if position not in found:
            self._fail(pending, DataLossError(position, position))
            return None
        return wire.decode_half(found[position].body)

    def _note_gap(self, pending: Pending) -> None:
        """A half older than the op log's first record cannot be judged: its end may be among the lost ops (R12)."""
        if self._gap_before_ms is None or pending.park is not None or pending.half is None or pending.decision:
            return
        born_ms = pending.start_ms if self._has_server_time else pending.half.born_ms
        if born_ms < self._gap_before_ms and pending.half.generation == 0:
            reason = "the op log begins after this half was born, and no checkpoint covers it"
            pending.park = (ParkCode.COVERAGE_GAP, reason)

    def _lost(self, kind: LogKind, loss: DataLossError) -> None:
        self.context.report.event(
            names.LOG_TRUNCATED, partition=self.partition, log=kind.value, asked=loss.asked, first=loss.first
        )

    # -- small things --------------------------------------------------------------------------------------------------

    def stand_down(self, reason: str) -> None:
        """Write nothing more under this token; the claim is made again only after a new assignment (R13)."""
        if self.is_active:
            self.is_active = False
            self.context.report.event(names.CHECKER_STOOD_DOWN, partition=self.partition, reason=reason)
            self.context.count("stood_down")

    @property
    def pending_count(self) -> int:
        """How many undecided halves this owner knows."""
        return len(self._state.pending)

    def next_due_s(self) -> float | None:
        """Return in how many seconds the next half is due, or None."""
        due_ms = self._state.next_due_ms()
        return None if due_ms is None else max(due_ms - self._now_ms(), 0.0) / 1000

    @property
    def _has_server_time(self) -> bool:
        return self.context.backend.capabilities.server_time

    def _now_ms(self) -> float:
        return self.context.clock.elapsed_s() * 1000 + self._offset_ms

    def _pause_s(self, idle_s: float) -> float:
        due_s = self.next_due_s()
        return idle_s if due_s is None else max(min(idle_s, due_s), 0.001)

    def _nonce(self) -> bytes:
        return self.context.randomness.getrandbits(TOKEN_BYTES * 8).to_bytes(TOKEN_BYTES, "big")

    def _listener_for(self, half: Half) -> CheckListener | None:
        for listener in self.context.listeners:
            topics = getattr(listener, "topics", None)
            if topics is None or all(message.topic in topics for message in half.messages):
                return listener
        return None


def _view(half: Half, pending: Pending) -> HalfView:
    messages = tuple(Message(m.topic, m.body, m.key, m.headers) for m in half.messages)
    return HalfView(half.transaction_id, half.group, messages, pending.count, half.born_ms)


def _first(iterator: Any, count: int) -> Any:
    for _, item in zip(range(count), iterator, strict=False):
        yield item
