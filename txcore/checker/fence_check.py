"""The check of fenced halves: the fence is asked about many at a time, and its answer decides (R4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from txcore.checker import finish, in_hand, listener_check, retry_backoff
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.tenure import Tenure
from txcore.errors import sentence_of
from txcore.fence import FenceAnswer, FenceReading
from txcore.records import OpKind, ParkCode
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Call, Flow

_DECISIONS = {FenceAnswer.COMMIT: OpKind.COMMIT, FenceAnswer.ROLLBACK: OpKind.ROLLBACK, FenceAnswer.SENT: OpKind.COMMIT}


def check(tenure: Tenure, chunk: list[Pending]) -> Flow[None]:
    """Let the fence decide halves in hand; each one is then finished, or its listener asked, by a flow of its own."""
    tenure.context.asked(*(pending.transaction_id for pending in chunk))
    readings = yield from read_fence(tenure, chunk)
    decided, open_still = [], []
    for pending in chunk:
        reading = readings[pending.transaction_id]
        if tenure.may_write and not pending.is_closed:
            if reading.answer is FenceAnswer.ROLLBACK and not pending.terms.fenced:
                open_still.append(pending)  # the listener may have committed without the row
                continue
            _take_reading(tenure, pending, reading)
        if pending.decision:
            decided.append(pending)
        else:
            in_hand.give_back(tenure, pending)
    yield from in_hand.together(tenure, decided, finish.finish)
    yield from in_hand.together(tenure, open_still, listener_check.ask)


def read_fence(tenure: Tenure, chunk: Sequence[Pending]) -> Flow[dict[bytes, FenceReading]]:
    """Return a reading for each half; NO_ANSWER with its reason where the fence gave none."""
    context, reason, found = tenure.context, "this checker has no fence", dict[bytes, FenceReading]()
    ids = [pending.transaction_id for pending in chunk]
    if context.fence is not None:
        reason = "the fence left it out"
        databases = {each.transaction_id: each.terms.database for each in chunk if each.terms.names_database}
        try:
            found = yield call(tenure, context.fence.check, ids, databases)
        except Exception as error:  # noqa: BLE001 - the database's trouble is no answer
            reason = sentence_of(error)
    return {identity: found.get(identity, FenceReading(FenceAnswer.NO_ANSWER, reason)) for identity in ids}


def call(tenure: Tenure, question: Callable[..., Any], about: object, database: object) -> Call:
    """Return the call of a fence's method; a fence that knows no databases is called without one."""
    arguments = (about, tenure.context.group, *((database,) if database else ()))
    return Call(question, arguments, tenure.context.limits.check_deadline_s)


def _take_reading(tenure: Tenure, pending: Pending, reading: FenceReading) -> None:
    answer, report, identity = reading.answer, tenure.context.report, pending.transaction_id
    report.event(names.CHECK_ANSWERED, transaction_id=identity, answer=answer.value)
    if pending.is_settled:
        return  # an override or a COMMITTED was read back while the fence was asked
    if answer in _DECISIONS:
        pending.decision = _DECISIONS[answer]
        pending.note(failures=0, missing=() if answer is FenceAnswer.SENT else pending.extras.missing)
    elif answer is FenceAnswer.VIA_TABLE:
        retry_backoff.put_off(tenure, pending)  # closed once the relay has sent it
    elif answer is FenceAnswer.PRUNED:
        pending.note(park=(ParkCode.PRUNED, "no fence row, and the id lies below the horizon of the fence table"))
        pending.due_ms = AT_ONCE_MS
    else:
        event = names.CHECK_WRONG_DATABASE if reading.is_foreign else names.CHECK_NO_ANSWER
        report.event(event, transaction_id=identity, reason=reading.reason or answer.value)
        retry_backoff.put_off(tenure, pending, None, reading.retry_after_s)
