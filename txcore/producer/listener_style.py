"""RocketMQ's style, for one transaction and for many at once: half first, then the listener's local transaction, then
its end.

Always with a half: when it is written, there is no database transaction that could hold the messages instead.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import msgspec

from txcore.errors import (
    BackendUnavailableError,
    FencedError,
    FenceMisuseError,
    NotSentError,
    TransactionStateError,
)
from txcore.fence import NO_DATABASE, AnyFence
from txcore.listener import Listener
from txcore.message import LocalTransactionState, Message
from txcore.message_table import Mode
from txcore.producer import finish as ending
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import (
    LocalTransaction,
    Phase,
    ProducerContext,
    current,
    half_template,
    make_half,
    publish,
)
from txcore.records import HalfRecord, OpKind, Outcome, Resolution
from txcore.results import EndResult, EndState, TransactionSendResult
from txcore.runtime.commands import Answered, Call, Calls, Each, Flow

TURN_S: Final = 0.02
"""Time, in seconds, of local transactions after which those that ran are released before the next ones run."""
_STATES: Final = {OpKind.COMMIT: LocalTransactionState.COMMIT, OpKind.ROLLBACK: LocalTransactionState.ROLLBACK}
_KINDS: Final = {state: kind for kind, state in _STATES.items()}


class Sending(msgspec.Struct):
    """One message of many on its way; in the end it has a result or an error.

    Attributes:
        began_s: Reading of the clock before its local transaction, for the observer.
        kind: The op with which it is being ended.
        end: The result of that end, as soon as it is known.
    """

    transaction: LocalTransaction
    message: Message
    arg: Any
    result: TransactionSendResult | None = None
    error: Exception | None = None
    began_s: float = 0.0
    kind: OpKind = OpKind.COMMIT
    end: EndResult | None = None


def send_in_transaction(
    transaction: LocalTransaction, listener: Listener[Any, Any], message: Message, arg: Any
) -> Flow[TransactionSendResult]:
    """Send one message.

    Raises: as `flow.prepare`; NotSentError if the identity of the fence's database cannot be read. An exception of the
        listener is not raised: the listener may have committed, so the state is UNKNOWN.
    """
    transaction.database = yield from _learn_database(transaction.context)
    _publish(transaction, message)
    half = make_half(transaction)
    began_s = transaction.context.clock.elapsed_s()
    outcome: Outcome = yield half
    flow.appended(transaction, outcome, began_s)
    ran = yield from _run_local(transaction, listener, message, arg)
    if isinstance(ran, TransactionSendResult):
        return ran
    result = yield from ending.end(transaction, _KINDS[ran])
    return TransactionSendResult(result.transaction_id, ran, result, transaction.notice)


def send_all(sendings: Sequence[Sending], listener: Listener[Any, Any]) -> Flow[None]:
    """Send many, at least one, of one producer; those that the broker answers together continue together. Never raises.

    The same steps as for one, with one command for many. A local transaction that takes long, or a half without an
    answer, holds up no other's end.
    """
    context = sendings[0].transaction.context
    try:
        database = yield from _learn_database(context)
    except Exception as error:  # noqa: BLE001 - nothing was sent of any
        for sending in sendings:
            sending.error = error
        return
    opened, halves = _opened(sendings, database)
    if halves:
        yield Each(halves, partial(_go_on, opened, listener, context.clock.elapsed_s()))


def _opened(sendings: Sequence[Sending], database: bytes) -> tuple[list[Sending], list[HalfRecord]]:
    """Return those whose half was made, and their halves; the others have their error."""
    opened, halves = [], []
    template = None
    for sending in sendings:
        transaction = sending.transaction
        transaction.database = database
        try:
            _publish(transaction, sending.message)
            template = template or half_template(transaction)
            halves.append(make_half(transaction, template))
        except Exception as error:  # noqa: BLE001 - nothing was sent of this one; the others are not affected
            sending.error = error
        else:
            opened.append(sending)
    return opened, halves


def _go_on(opened: Sequence[Sending], listener: Listener[Any, Any], began_s: float, answered: Answered) -> Flow[None]:
    """Run the local transactions of halves that were answered together, and release the ends that they chose."""
    left: deque[Sending] = deque()
    for indices, outcome in answered:
        for index in indices:
            sending = opened[index]
            try:
                flow.appended(sending.transaction, outcome, began_s)
            except Exception as error:  # noqa: BLE001 - this one's result
                sending.error = error
            else:
                left.append(sending)
    while left:
        ran = yield from _run_some(left, listener)
        yield from _release(ran)


def _run_some(left: deque[Sending], listener: Listener[Any, Any]) -> Flow[list[Sending]]:
    """Run local transactions for `TURN_S`, one at least; returns those that are to be ended."""
    context = left[0].transaction.context
    elapsed_s = context.clock.elapsed_s
    until_s = elapsed_s() + TURN_S
    answers = yield Calls(partial(_execute, listener.execute), left, lambda: elapsed_s() >= until_s)
    current.set(None)
    ran = []
    for state, error in answers:
        sending = left.popleft()
        transaction = sending.transaction
        judged = _judged(transaction, state, error, sending.began_s)
        if transaction.fenced:
            judged = yield from _fenced(transaction, judged)
        if isinstance(judged, TransactionSendResult):
            sending.result = judged
            continue
        sending.kind = _KINDS[judged]
        if ending.needs_tombstone(transaction, sending.kind):
            sending.end = yield from ending.tombstone(transaction)
        ran.append(sending)
    if context.fence is not None:
        yield from _look(ran, context.fence)
    return ran


def _execute(execute: Callable[[LocalTransaction, Message, Any], Any], sending: Sending) -> Any:
    """Run a local transaction, as the one that is under way on this thread."""
    transaction = sending.transaction
    current.set(transaction)
    sending.began_s = ending.now_s(transaction)
    return execute(transaction, sending.message, sending.arg)


def _look(ran: Sequence[Sending], fence: AnyFence) -> Flow[None]:
    """Set the end of those that committed by the answer of their listener, and not by their rows."""
    fenced = [each for each in ran if each.kind is OpKind.COMMIT and each.transaction.must_look]
    if fenced:
        settled = yield from ending.are_settled(fence, [each.transaction.identity for each in fenced])
        for sending in fenced:
            if sending.transaction.identity not in settled:
                sending.end = yield from ending.look_before_publishing(sending.transaction)


def _release(ran: Sequence[Sending]) -> Flow[None]:
    if not ran:
        return
    clock = ran[0].transaction.context.clock
    began_s, wall_ms = clock.elapsed_s(), clock.wall_ms()
    released: list[Sending] = []
    resolutions: list[Resolution] = []
    for sending in ran:
        resolution = None
        if sending.end is None:
            resolution, sending.end = ending.choose_end(sending.transaction, sending.kind, began_s, wall_ms)
        if resolution is None:
            _finish(sending, sending.end, began_s)
        else:
            released.append(sending)
            resolutions.append(resolution)
    if resolutions:
        yield Each(resolutions, partial(_released, released, began_s))


def _released(released: Sequence[Sending], began_s: float, answered: Answered) -> None:
    for indices, outcome in answered:
        for index in indices:
            sending = released[index]
            end = sending.end or ending.end_result(sending.transaction, sending.kind, outcome)
            _finish(sending, end, began_s)


def _finish(sending: Sending, end: EndResult | None, began_s: float) -> None:
    assert end is not None
    transaction, kind = sending.transaction, sending.kind
    ending.finish_end(transaction, kind, end, began_s)
    sending.result = TransactionSendResult(end.transaction_id, _STATES[kind], end, transaction.notice)


def _publish(transaction: LocalTransaction, message: Message) -> None:
    """Add the message, before the half is made."""
    context = transaction.context
    if context.mode is Mode.TABLE:
        raise TransactionStateError("the listener style needs a half, which mode table never writes")
    publish(transaction, message)
    if context.fence is not None:
        # The half is written before the listener runs: it may call `fence`, and forget it.
        transaction.fenced, transaction.may_lack_row = True, not context.listener_fences
    transaction.phase = Phase.PREPARING
    flow.require_joined(context)


def _learn_database(context: ProducerContext) -> Flow[bytes]:
    """Return the identity of the fence's database for halves, empty without a fence; it is read once.

    Raises:
        NotSentError: the database could not be asked.
    """
    if context.fence is None:
        return b""
    known = context.fence.known_database()
    if known is None:
        try:
            known = yield Call(context.fence.read_database, ())
        except BackendUnavailableError as error:
            raise NotSentError(
                f"the fence's database cannot be asked which it is: {error}; nothing was sent"
            ) from error
    return known or NO_DATABASE


def _run_local(
    transaction: LocalTransaction, listener: Listener[Any, Any], message: Message, arg: Any
) -> Flow[LocalTransactionState | TransactionSendResult]:
    """Run the local transaction; returns COMMIT or ROLLBACK, which is to be done, or the result where nothing is."""
    began_s = ending.now_s(transaction)
    state: Any = None
    error: Exception | None = None
    current.set(transaction)
    try:
        state = yield Call(listener.execute, (transaction, message, arg))
    except GeneratorExit:
        raise  # dropped, perhaps as garbage: in any thread, amid whatever it does, so that its `current` is not ours
    except BaseException as raised:  # whatever user code raises, it may have committed (R5)
        current.set(None)
        if not isinstance(raised, Exception):
            raise
        error = raised
    else:
        current.set(None)
    judged = _judged(transaction, state, error, began_s)
    return (yield from _fenced(transaction, judged)) if transaction.fenced else judged


def _judged(
    transaction: LocalTransaction, state: Any, error: Exception | None, began_s: float
) -> LocalTransactionState | TransactionSendResult:
    """Return what the listener's answer, or its error, asks for; see `_run_local`."""
    if not isinstance(state, LocalTransactionState):
        ended = "no state" if error is None else type(error).__name__
        if inspect.iscoroutine(state):
            state.close()
            error = TypeError("the listener is asynchronous; use AsyncTransactionProducer")
        elif error is None:
            error = TransactionStateError(f"the listener answered {state!r}; it must answer a LocalTransactionState")
        state = LocalTransactionState.UNKNOWN
    else:
        ended = state.value
    ending.ran_local(transaction, began_s, ended)
    if state is LocalTransactionState.UNKNOWN:
        return TransactionSendResult(transaction.transaction_id, state, None, error)
    return cast("LocalTransactionState", state)


def _fenced(
    transaction: LocalTransaction, judged: LocalTransactionState | TransactionSendResult
) -> Flow[LocalTransactionState | TransactionSendResult]:
    """Write the row that the listener of a fenced producer forgot before its COMMIT counts."""
    if judged is not LocalTransactionState.COMMIT or transaction.must_look:
        return judged
    refused = yield from _vouch(transaction)
    if refused is None:
        return judged
    transaction.phase, transaction.result = Phase.ENDED, refused
    return TransactionSendResult(transaction.transaction_id, judged, refused, transaction.notice)


def _vouch(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Write the row that a fenced producer's listener forgot; returns the result if the check was first.

    The lapse is reported each time: a crash before this step shows nothing.
    """
    context = transaction.context
    assert context.fence is not None
    transaction.notice = FenceMisuseError(
        "the listener answered COMMIT without transaction.fence(connection) in its database transaction. The message "
        "is sent all the same; had the process died before, only the answer of check_local_transaction could have "
        "shown that the database committed. Call transaction.fence(connection) first, in each transaction that "
        "commits; an AsyncTransactionListener awaits it, else it inserts nothing"
    )
    if context.forgot_fence is not None:
        context.forgot_fence(transaction.transaction_id)
    try:
        connection = yield Call(context.fence.begin, (None, transaction.identity, context.group))
        yield Call(context.fence.commit, (connection,))
    except FencedError as error:
        # After its tombstone the checker asks the listener, unless the half says that there is none to ask.
        state = EndState.TOO_LATE if transaction.may_lack_row else EndState.CONFLICT
        return EndResult(state, transaction.transaction_id, error)
    except Exception as error:  # noqa: BLE001 - the database's; the check decides
        return EndResult(EndState.UNKNOWN, transaction.transaction_id, error)
    return None
