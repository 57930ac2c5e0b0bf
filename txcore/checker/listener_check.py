"""The check of halves without a fence: a listener is asked, and only an explicit answer counts (R10)."""

from __future__ import annotations

from typing import Final

from txcore.checker import op_writing, retry_backoff
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.tenure import Tenure
from txcore.errors import sentence_of
from txcore.ids import known_id
from txcore.listener import CheckListener, HalfView
from txcore.message import LocalTransactionState, Message
from txcore.records import OpKind
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Call, Flow

NO_LISTENER_REASON: Final = "no listener here takes these topics: give the checker a listener or a callback that does"
NO_ROW_REASON: Final = (
    "no fence row, and the producer's listener may have committed without one: give the checker a listener or a "
    "callback that takes these topics; or, if that listener always fences, make the producer with "
    "listener_fences=True, and decide what is pending now with txcore rollback or commit"
)


def ask(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Ask the listener, and write the answer: CHECKED for UNKNOWN, else DECIDED."""
    context, identity = tenure.context, pending.transaction_id
    half = yield from tenure.logs.half_of(pending)
    if pending.is_committed:
        return
    topics = {message.topic for message in half.messages}
    listener = next((each for each in context.listeners if _takes(each, topics)), None)
    if listener is None:
        context.report.event(
            names.CHECK_WRONG_LISTENER,
            group=context.group,
            topics=sorted(topics),
            reason=NO_ROW_REASON if pending.terms.asks_fence else NO_LISTENER_REASON,
            transaction_id=identity,
        )
        retry_backoff.put_off(tenure, pending)
        return
    messages = tuple(Message(m.topic, m.body, m.key, m.headers) for m in half.messages)
    view = HalfView(known_id(half.transaction_id), half.group, messages, pending.count, half.born_ms)
    call = Call(listener.check_local_transaction, (view,), context.limits.check_deadline_s)
    context.asked(identity)
    try:
        answer = yield call
    except Exception as error:  # noqa: BLE001 - user code; no answer is no answer, whatever it raised
        context.report.event(names.CHECK_NO_ANSWER, transaction_id=identity, error=sentence_of(error))
        retry_backoff.put_off(tenure, pending, None, getattr(error, "retry_after_s", 0.0))
        return
    if not tenure.may_write or pending.is_closed or pending.is_committed:
        return
    if not isinstance(answer, LocalTransactionState):
        context.report.event(names.CHECK_NO_ANSWER, transaction_id=identity, answer=repr(answer))
        retry_backoff.put_off(tenure, pending)
        return
    context.report.event(names.CHECK_ANSWERED, transaction_id=identity, answer=answer.value)
    pending.note(failures=0)
    if answer is not LocalTransactionState.UNKNOWN:
        yield from op_writing.journal_decision(tenure, pending, OpKind[answer.value])
        return
    count = pending.count + 1  # Not counted again where the record is read back before its outcome is known.
    if (yield from op_writing.write(tenure, pending, OpKind.CHECKED, count=count)):
        is_last = count >= pending.terms.check_max
        pending.due_ms = AT_ONCE_MS if is_last else tenure.now_ms() + pending.terms.interval_ms


def _takes(listener: CheckListener, topics: set[str]) -> bool:
    """Return whether *listener* declared all of these topics, or none at all."""
    declared = getattr(listener, "topics", None)
    return declared is None or all(topic in declared for topic in topics)
