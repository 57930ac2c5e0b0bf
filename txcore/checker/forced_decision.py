"""An operator's request for a decision, and its execution: through the fence, or against it with an override (R11)."""

from __future__ import annotations

from txcore.checker import fence_check, finish, op_writing
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.tenure import Tenure
from txcore.errors import InMessageTableError, WrongDatabaseError, sentence_of
from txcore.fence import FenceAnswer
from txcore.history.force_rules import Consent, consent_of
from txcore.op_rules import reply_count
from txcore.records import FINAL_KINDS, Forced, OpKind
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow


def force(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Execute an operator's request."""
    request, at, context, terms = pending.extras.force, pending.extras.force_at, tenure.context, pending.terms
    assert request is not None
    assert at is not None
    wanted = OpKind(request.decision) if request.decision in FINAL_KINDS else OpKind.ROLLBACK
    is_override = request.forced == Forced.OVERRIDE and terms.asks_fence
    if is_override and context.fence is not None:
        database = terms.database if terms.names_database else b""
        try:
            yield fence_check.call(tenure, context.fence.force, pending.transaction_id, database)
        except (WrongDatabaseError, InMessageTableError) as error:  # state 4 would hold nothing up there
            yield from _refuse(tenure, pending, at[0], wanted, f"refused: {error}")
            return
        except Exception as error:  # noqa: BLE001 - an override is for exactly this case; it is recorded
            context.report.event(names.CHECK_NO_ANSWER, transaction_id=pending.transaction_id, error=sentence_of(error))
    elif terms.asks_fence and not is_override:
        refusal = yield from _ask_fence(tenure, pending, wanted)
        if refusal:
            yield from _refuse(tenure, pending, at[0], wanted, refusal)
            return
        if pending.decision:
            yield from finish.finish(tenure, pending)
            return
    if tenure.may_write and not (pending.is_closed or pending.is_committed):
        forced, reason = Forced.OVERRIDE if is_override else Forced.YES, f"{request.by}: {request.reason}"
        yield from op_writing.journal_decision(tenure, pending, wanted, forced=forced, reason=reason)


def _ask_fence(tenure: Tenure, pending: Pending, wanted: OpKind) -> Flow[str]:
    """Return why the fence does not allow *wanted*, or "": with the pending decided, if the fence decides it."""
    readings = yield from fence_check.read_fence(tenure, [pending])
    reading = readings[pending.transaction_id]
    if reading.answer is FenceAnswer.NO_ANSWER:
        return f"refused: the fence did not answer: {reading.reason}"
    consent = consent_of(reading.answer, wanted, fence_decides=pending.terms.fenced)
    if consent not in {Consent.AGREES, Consent.ABSTAINS}:
        return f"refused: the fence says {reading.answer.value}"
    if consent is Consent.AGREES and not pending.is_settled:
        pending.decision = wanted
        pending.note(forced=Forced.YES)
    return ""


def _refuse(tenure: Tenure, pending: Pending, position: int, wanted: OpKind, refusal: str) -> Flow[None]:
    """Answer the request at *position* with its refusal; it stays open until the reply was read back."""
    if not tenure.may_write or pending.is_closed:
        return
    count = reply_count(position)
    is_stored = yield from op_writing.write(tenure, pending, OpKind.FORCE, decision=wanted, count=count, reason=refusal)
    if is_stored and pending.extras.force_at is not None:
        is_newer = pending.extras.force_at[0] != position
        read_back_ms = tenure.context.limits.read_back_s * 1000
        pending.due_ms = AT_ONCE_MS if is_newer else tenure.now_ms() + read_back_ms
