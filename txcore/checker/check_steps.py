"""The owner's steps for one half: ask, finish, refuse, park, carry. Each half in hand has a flow of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from txcore import wire
from txcore.checker.context import listener_for, view_of
from txcore.checker.decide import AT_ONCE_MS, Decision, Pending, decide
from txcore.checker.log_reader import Intake
from txcore.checker.partition_session import Tenure
from txcore.errors import BackendTimeoutError, WrongDatabaseError
from txcore.fence import FenceAnswer, FenceReading
from txcore.history.force_rules import Consent, consent_of
from txcore.history.parked_entries import closed_record
from txcore.message import LocalTransactionState
from txcore.records import (
    FINAL_KINDS,
    REASON_SIZE_MAX,
    Forced,
    HalfRecord,
    OpKind,
    Outcome,
    ParkCode,
    Parked,
    Status,
    reply_count,
)
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Call, Flow, Spawn

CARRY_DISTANCE: Final = 2
"""Number of records after a half, for each undecided one, that do not count as holding the checkpoint back."""
NO_LISTENER_REASON: Final = "no listener here takes these topics: give the checker a listener or a callback that does"
NO_ROW_REASON: Final = (
    "no fence row, and the producer's listener may have committed without one: give the checker a listener or a "
    "callback that takes these topics; or, if that listener always fences, make the producer with "
    "listener_fences=True, and decide what is pending now with txcore rollback or commit"
)
_DECISIONS = {FenceAnswer.COMMIT: OpKind.COMMIT, FenceAnswer.ROLLBACK: OpKind.ROLLBACK, FenceAnswer.SENT: OpKind.COMMIT}


class Judge:
    """Judges the halves of one tenure, after ticks that the owner has read back."""

    def __init__(self, tenure: Tenure, intake: Intake) -> None:
        self._tenure = tenure
        self._context = tenure.context
        self._intake = intake

    def judge(self, due: list[Pending]) -> Flow[None]:
        """Judge halves that were due before a tick which has come back."""
        fenced, read = [], []
        due = yield from self._look_back(due)
        now_ms = self._tenure.now_ms()
        for pending in due:
            if not self._tenure.may_write:
                return
            self._intake.note_gap(pending)
            decision = decide(pending, now_ms, must_carry=False)
            if decision is Decision.CHECK and pending.terms.asks_fence:
                fenced.append(pending)
            elif decision in {Decision.CHECK, Decision.FINISH}:
                read.append(pending)
            elif decision is Decision.WAIT:
                self._tenure.state.schedule(pending, max(pending.due_ms, pending.immune_until_ms))
            elif decision is not Decision.DONE:
                yield from self._start(pending, self._flow_for(pending, decision))
        for chunk in self._chunks(fenced):
            yield Spawn(self._check_fence(chunk))
        for chunk in self._chunks(read):
            yield Spawn(self._together(chunk, self._go_on))

    def _look_back(self, halves: list[Pending]) -> Flow[list[Pending]]:
        """Learn the journals of copies from before this owner's reading; returns the halves whose journal is known."""
        copies = [pending for pending in halves if pending.extras.look_back is not None]
        if not copies:
            return halves
        try:
            yield from self._intake.look_back(copies)
        except BackendTimeoutError as error:
            for pending in copies:
                self._fail(pending, error)
                self._tenure.state.schedule(pending, pending.due_ms)
        return [pending for pending in halves if pending.extras.look_back is None]

    def _chunks(self, halves: list[Pending]) -> Iterator[list[Pending]]:
        """Take halves in hand, in chunks of the size that one question or one reading may have."""
        size = self._context.limits.fence_batch_count_max
        for index in range(0, len(halves), size):
            chunk = halves[index : index + size]
            for pending in chunk:
                pending.is_busy = True
            self._tenure.in_hand += len(chunk)
            yield chunk

    def carry_oldest(self) -> Flow[None]:
        """Carry forward halves that retention would soon eat, or that hold the checkpoint back too far (R8)."""
        limits, state = self._context.limits, self._tenure.state
        retention_s = self._context.backend.capabilities.half_retention_s
        # A restart reads the undecided ones in any case; if each copy made others be carried, it would never end.
        far = limits.replay_max + CARRY_DISTANCE * state.pending_count
        if retention_s is None and state.replay_count <= far:
            return
        state.pass_closed()
        now_ms = self._tenure.now_ms()
        chosen: list[Pending] = []
        for after_count, pending in islice(state.oldest_open(), limits.batch_count_max):
            is_old = retention_s is not None and now_ms - pending.copied_ms > retention_s * 500
            must_carry = (is_old or after_count > far) and pending.extras.poison is None
            if not must_carry and after_count <= far:
                break
            if self._tenure.in_hand + len(chosen) >= limits.batch_count_max:
                break
            if pending.is_busy or pending.extras.is_outdone:
                continue
            if decide(pending, now_ms, must_carry=must_carry) is Decision.CARRY:
                chosen.append(pending)
                # Not at every turn, if the log does not answer.
                pending.note(carry_again_ms=now_ms + limits.retry_s * 1000)
        chosen = [each for each in (yield from self._look_back(chosen)) if not (each.is_closed or each.is_busy)]
        for chunk in self._chunks(chosen):
            yield Spawn(self._together(chunk, self._carry))

    def later(self, pending: Pending, delay_ms: float) -> None:
        """Look at a half again after *delay_ms*."""
        if not pending.is_closed:
            self._tenure.state.schedule(pending, self._tenure.now_ms() + delay_ms)

    def _flow_for(self, pending: Pending, decision: Decision) -> Flow[None]:
        if decision is Decision.DISCARD:
            reason = f"{pending.count} checks were answered UNKNOWN"
            return self._park(pending, ParkCode.CHECKS_EXHAUSTED, reason)
        if decision is Decision.PARK:
            assert pending.extras.park is not None
            return self._park(pending, *pending.extras.park)
        if decision is Decision.FORCE:
            return self._force(pending)
        assert decision is Decision.CARRY
        return self._carry(pending)

    def _go_on(self, pending: Pending) -> Flow[None]:
        """Finish the decided halves, ask about the others."""
        return self._finish(pending) if pending.decision else self._ask(pending)

    def _together(self, chunk: list[Pending], step: Callable[[Pending], Flow[None]]) -> Flow[None]:
        """Read the records of halves in hand in one go; each then takes *step* in a flow of its own."""
        try:
            yield from self._intake.load(chunk)
        except Exception as error:  # noqa: BLE001 - they are put back, as one whose own flow fails
            for pending in chunk:
                self._fail(pending, error)
                self._put_back(pending)
            return
        for pending in chunk:
            if self._tenure.may_write and not pending.is_closed:
                yield Spawn(self._held(pending, step(pending)))
            else:
                self._put_back(pending)

    def _start(self, pending: Pending, flow: Flow[None]) -> Flow[None]:
        pending.is_busy = True
        self._tenure.in_hand += 1
        yield Spawn(self._held(pending, flow))

    def _held(self, pending: Pending, flow: Flow[None]) -> Flow[None]:
        """Run *flow* for a half in hand; whatever it ends with, the half is put back."""
        try:
            yield from flow
        except Exception as error:  # noqa: BLE001 - one half's trouble, whatever it is, must not stop the others (R9)
            self._fail(pending, error)
        finally:
            self._put_back(pending)

    def _put_back(self, pending: Pending) -> None:
        self._tenure.in_hand -= 1
        pending.is_busy = False
        pending.half = None
        if not pending.is_closed:
            self._tenure.state.schedule(pending, pending.due_ms)

    def _ask(self, pending: Pending) -> Flow[None]:
        """Ask the listener; only an explicit answer counts (R10)."""
        context = self._context
        half = yield from self._intake.half_of(pending)
        listener = listener_for(self._context.listeners, half)
        if listener is None:
            topics = sorted({message.topic for message in half.messages})
            reason = NO_ROW_REASON if pending.terms.asks_fence else NO_LISTENER_REASON
            context.report.event(names.CHECK_WRONG_LISTENER, group=context.group, topics=topics, reason=reason)
            self._fail(pending, None)
            return
        call = Call(listener.check_local_transaction, (view_of(half, pending.count),), context.limits.check_deadline_s)
        context.asked(pending.transaction_id)
        try:
            answer = yield call
        except Exception as error:  # noqa: BLE001 - user code; no answer is no answer, whatever it raised
            context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, error=repr(error))
            self._fail(pending, None, getattr(error, "retry_after_s", 0.0))
            return
        if not self._tenure.may_write or pending.is_closed:
            return
        if not isinstance(answer, LocalTransactionState):
            context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, answer=repr(answer))
            self._fail(pending, None)
            return
        context.report.event(names.CHECK_ANSWERED, transaction_id=pending.transaction_id, answer=answer.value)
        pending.note(failures=0)
        if answer is LocalTransactionState.UNKNOWN:
            yield from self._count_check(pending)
        else:
            yield from self._journal_decision(pending, OpKind[answer.value], Forced.NO, "")

    def _count_check(self, pending: Pending) -> Flow[None]:
        count = pending.count + 1  # Not counted again where the record is read back before its outcome is known.
        outcome = yield self._tenure.resolution(pending, OpKind.CHECKED, count=count)
        if self._went_well(pending, outcome):
            is_last = count >= pending.terms.check_max
            pending.due_ms = AT_ONCE_MS if is_last else self._tenure.now_ms() + pending.terms.interval_ms

    def _journal_decision(self, pending: Pending, decision: OpKind, forced: Forced, reason: str) -> Flow[None]:
        """Write DECIDED before anything is done with an answer that no fence holds (R4); acted upon once read back."""
        outcome = yield self._tenure.resolution(
            pending, OpKind.DECIDED, decision=decision, forced=forced, reason=reason
        )
        if self._went_well(pending, outcome):
            pending.due_ms = AT_ONCE_MS

    def _check_fence(self, chunk: list[Pending]) -> Flow[None]:
        """Let the fence decide a batch; each one is then finished, or its listener asked, by a flow of its own."""
        self._context.asked(*(pending.transaction_id for pending in chunk))
        readings = yield from self._read_fence(chunk)
        decided, open_still = [], []
        for pending in chunk:
            reading = readings[pending.transaction_id]
            if self._tenure.may_write and not pending.is_closed:
                if reading.answer is FenceAnswer.ROLLBACK and not pending.terms.fenced:
                    open_still.append(pending)  # the listener may have committed without the row
                    continue
                self._take_reading(pending, reading)
            if pending.decision:
                decided.append(pending)
            else:
                self._put_back(pending)
        yield from self._together(decided, self._finish)
        yield from self._together(open_still, self._ask)

    def _read_fence(self, chunk: list[Pending]) -> Flow[dict[bytes, FenceReading]]:
        """Return a reading for each half; NO_ANSWER with its reason where the fence gave none."""
        context, reason, found = self._context, "this checker has no fence", dict[bytes, FenceReading]()
        ids = [pending.transaction_id for pending in chunk]
        if context.fence is not None:
            reason = "the fence left it out"
            known = {each.transaction_id: each.terms.database for each in chunk}
            databases = {identity: database for identity, database in known.items() if database.strip(b"\0")}
            arguments = (ids, context.group, databases) if databases else (ids, context.group)
            try:
                found = yield Call(context.fence.check, arguments, context.limits.check_deadline_s)
            except Exception as error:  # noqa: BLE001 - the database's trouble is no answer
                reason = repr(error)
        return {identity: found.get(identity, FenceReading(FenceAnswer.NO_ANSWER, reason)) for identity in ids}

    def _take_reading(self, pending: Pending, reading: FenceReading) -> None:
        answer = reading.answer
        self._context.report.event(names.CHECK_ANSWERED, transaction_id=pending.transaction_id, answer=answer.value)
        if pending.is_journaled:
            return  # an override was read back while the fence was asked
        if answer in _DECISIONS:
            pending.decision = _DECISIONS[answer]
            pending.note(failures=0, missing=() if answer is FenceAnswer.SENT else pending.extras.missing)
        elif answer is FenceAnswer.VIA_TABLE:
            self._fail(pending, None)  # closed once the relay has sent it
        elif answer is FenceAnswer.PRUNED:
            reason = "no fence row, and the id lies below the horizon of the fence table"
            pending.note(park=(ParkCode.PRUNED, reason))
            pending.due_ms = AT_ONCE_MS
        else:
            reason = reading.reason or answer.value
            event = names.CHECK_WRONG_DATABASE if reading.is_foreign else names.CHECK_NO_ANSWER
            self._context.report.event(event, transaction_id=pending.transaction_id, reason=reason)
            self._fail(pending, None, reading.retry_after_s)

    def _force(self, pending: Pending) -> Flow[None]:
        """Execute an operator's request: through the fence, or against it only with an override (R11)."""
        request, at, context = pending.extras.force, pending.extras.force_at, self._context
        assert request is not None
        assert at is not None
        wanted = OpKind(request.decision) if request.decision in FINAL_KINDS else OpKind.ROLLBACK
        if pending.terms.asks_fence and request.forced != Forced.OVERRIDE:
            refusal = yield from self._ask_fence(pending, wanted)
            if refusal:
                yield from self._refuse_force(pending, at[0], wanted, refusal)
                return
            if pending.decision:
                yield from self._finish(pending)
                return
        elif pending.terms.asks_fence and context.fence is not None:
            database = pending.terms.database
            arguments = (pending.transaction_id, context.group, *((database,) if database.strip(b"\0") else ()))
            try:
                yield Call(context.fence.force, arguments, context.limits.check_deadline_s)
            except WrongDatabaseError as error:  # state 4 says nothing in a database that decides nothing of it
                yield from self._refuse_force(pending, at[0], wanted, f"refused: {error}")
                return
            except Exception as error:  # noqa: BLE001 - an override is for exactly this case; it is recorded
                context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, error=repr(error))
        if not self._tenure.may_write or pending.is_closed:
            return
        is_override = request.forced == Forced.OVERRIDE and pending.terms.asks_fence
        forced = Forced.OVERRIDE if is_override else Forced.YES
        yield from self._journal_decision(pending, wanted, forced, f"{request.by}: {request.reason}")

    def _refuse_force(self, pending: Pending, position: int, wanted: OpKind, refusal: str) -> Flow[None]:
        """Answer the operator's request at *position* with its refusal; it stays open until the reply was read back."""
        if not self._tenure.may_write or pending.is_closed:
            return
        count = reply_count(position)
        outcome = yield self._tenure.resolution(pending, OpKind.FORCE, decision=wanted, count=count, reason=refusal)
        if self._went_well(pending, outcome) and pending.extras.force_at is not None:
            is_newer = pending.extras.force_at[0] != position
            read_back_ms = self._context.limits.read_back_s * 1000
            pending.due_ms = AT_ONCE_MS if is_newer else self._tenure.now_ms() + read_back_ms

    def _ask_fence(self, pending: Pending, wanted: OpKind) -> Flow[str]:
        """Return why the fence does not allow *wanted*, or "": with the pending decided, if the fence decides it."""
        readings = yield from self._read_fence([pending])
        reading = readings[pending.transaction_id]
        if reading.answer is FenceAnswer.NO_ANSWER:
            return f"refused: the fence did not answer: {reading.reason}"
        consent = consent_of(reading.answer, wanted, fence_decides=pending.terms.fenced)
        if consent not in {Consent.AGREES, Consent.ABSTAINS}:
            return f"refused: the fence says {reading.answer.value}"
        if consent is Consent.AGREES and not pending.is_journaled:
            pending.decision = wanted
            pending.note(forced=Forced.YES)
        return ""

    def _finish(self, pending: Pending) -> Flow[None]:
        """Publish a committed half's targets, or none, and write its final op."""
        half = yield from self._intake.half_of(pending)
        if not self._tenure.may_write or pending.is_closed:
            return
        kind, began_s = OpKind(pending.decision), self._context.clock.elapsed_s()
        targets: Sequence[int] = ()
        if kind is OpKind.COMMIT:
            missing = pending.extras.missing
            targets = range(len(half.messages)) if missing is None else missing
        closed = b""
        if pending.generation:  # it was parked before: its entry must not come back once retention has eaten the ops
            context, identity = self._context, pending.transaction_id
            wall_ms = context.clock.wall_ms()
            # Not up to its own generation: should this release fail, the half may be parked under that one.
            closed = closed_record(identity, pending.generation - 1, context.by, wall_ms, self._tenure.token)
        outcome = yield self._tenure.resolution(
            pending, kind, half=half, targets=targets, parked=closed, forced=pending.extras.forced
        )
        status = outcome.status
        if status is Status.DURABLE:
            pending.note(missing=())
            pending.due_ms = self._tenure.now_ms() + self._context.limits.read_back_s * 1000
            self._context.finished(half, kind.name, began_s)
        elif status is Status.REFUSED and kind is OpKind.COMMIT and outcome.missing:
            self._refused(pending, outcome)
        else:
            self._went_well(pending, outcome)
            if status is Status.UNKNOWN and kind is OpKind.COMMIT:
                pending.note(missing=outcome.missing)

    def _refused(self, pending: Pending, outcome: Outcome) -> None:
        """Retry a release that a target itself refused; after `refusals_max`, park the half as undeliverable (R9)."""
        pending.note(missing=outcome.missing, refusals=pending.extras.refusals + 1)
        self._context.report.event(
            names.RELEASE_REFUSED, transaction_id=pending.transaction_id, error=repr(outcome.error)
        )
        if pending.extras.refusals < self._context.limits.refusals_max:
            self._fail(pending, None)
            return
        reason = f"targets {list(outcome.missing)} refuse: {outcome.error}"
        pending.note(park=(ParkCode.UNDELIVERABLE, reason))
        pending.due_ms = AT_ONCE_MS

    def _park(self, pending: Pending, code: ParkCode, reason: str) -> Flow[None]:
        """Confirm the parked record, then write DISCARD (R3, R11); an undeliverable half's decision comes first."""
        if code is ParkCode.UNDELIVERABLE and not pending.is_journaled:
            yield from self._journal_decision(pending, OpKind.COMMIT, Forced(pending.extras.forced), "")
            return
        context = self._context
        half = None if pending.extras.poison is not None else (yield from self._intake.half_of(pending))
        parked = Parked(
            wire.VERSION,
            pending.transaction_id,
            pending.generation,
            code,
            reason[:REASON_SIZE_MAX],
            pending.count,
            context.by,
            context.clock.wall_ms(),
            self._tenure.token,
            pending.extras.poison or (wire.encode_half(half) if half else b""),
            list(pending.extras.missing or ()),
        )
        if not self._tenure.may_write or pending.is_closed:
            return
        if not context.backend.capabilities.atomic_release:
            self._tenure.state.note_entry(pending.transaction_id, pending.generation)
        outcome = yield self._tenure.resolution(
            pending, OpKind.DISCARD, half=half, parked=wire.encode_parked(parked), reason=code
        )
        if self._went_well(pending, outcome):
            pending.due_ms = self._tenure.now_ms() + context.limits.read_back_s * 1000
            context.report.event(names.HALF_PARKED, transaction_id=pending.transaction_id, code=code, reason=reason)
            context.report.discard(half, reason)
            context.count("parked")

    def _carry(self, pending: Pending) -> Flow[None]:
        """Append a copy with the journal folded in, so that the old one may be forgotten (R8).

        Not of a half that was closed meanwhile: the copy would say that its journal is folded to a place after its end.
        """
        half = yield from self._intake.half_of(pending)
        if not self._tenure.may_write or pending.is_closed:
            return
        now_ms = self._tenure.now_ms()
        again_ms = now_ms + self._context.limits.read_back_s * 1000
        pending.note(carry_again_ms=again_ms)
        if pending.extras.is_outdone:
            pending.due_ms = again_ms
        copy = self._tenure.carried(half, pending)
        outcome = yield HalfRecord(
            half.group, self._tenure.partition, half.transaction_id, copy.generation, wire.encode_half(copy), ()
        )
        if outcome.status is Status.DURABLE:
            self._context.report.event(names.HALF_CARRIED, transaction_id=pending.transaction_id)
            self._context.count("carried")

    def _went_well(self, pending: Pending, outcome: Outcome) -> bool:
        """Return whether *outcome* is DURABLE; deal with every other one."""
        status = outcome.status
        if status is Status.DURABLE:
            return True
        if status is Status.SUPERSEDED:
            if pending.decision and outcome.decision in FINAL_KINDS and outcome.decision != pending.decision:
                self._context.report.event(
                    names.OP_CONFLICT, transaction_id=pending.transaction_id, first=outcome.decision
                )
            if outcome.decision == OpKind.DISCARD and _lacks_ops(pending):
                self._tenure.state.close(pending, outcome.decision)  # it is parked already; the op itself was eaten
            elif outcome.decision == OpKind.DISCARD:
                # Only the log shows whether it is in force. If the half is still open after the next tick, it is not.
                pending.note(is_outdone=True)
                pending.due_ms = AT_ONCE_MS
            else:
                self._tenure.state.close(pending, outcome.decision)
        elif status is Status.FENCED:
            self._tenure.stand_down("fenced")
        else:
            self._fail(pending, outcome.error)
        return False

    def _fail(self, pending: Pending, error: Exception | None, retry_after_s: float = 0.0) -> None:
        """Put a half back after no answer or a failed write: counts nothing, backs off (R10)."""
        limits = self._context.limits
        backoff_s = min(limits.retry_s * 2 ** min(pending.extras.failures, 20), limits.retry_max_s)
        pending.note(failures=pending.extras.failures + 1)
        backoff_ms = min(backoff_s * 1000, max(pending.terms.interval_ms, limits.retry_s * 1000))
        pending.due_ms = self._tenure.now_ms() + max(backoff_ms, retry_after_s * 1000)
        if error is not None:
            self._context.report.event(names.RELEASE_UNKNOWN, transaction_id=pending.transaction_id, error=repr(error))


def _lacks_ops(pending: Pending) -> bool:
    """Return whether ops of a half are gone, so that the log holds nothing more of it."""
    return pending.extras.park is not None and pending.extras.park[0] is ParkCode.COVERAGE_GAP
