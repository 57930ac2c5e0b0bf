"""RocketMQ's style: half first, then the listener's local transaction, then its end. `listener_batch` has it for many.

Always with a half: when it is written, there is no database transaction that could hold the messages instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final, cast

from txcore.errors import (
    BackendUnavailableError,
    FencedError,
    FenceMisuseError,
    NotSentError,
    TransactionStateError,
)
from txcore.fence import NO_DATABASE
from txcore.listener import Listener
from txcore.message import LocalTransactionState, Message, refuse_delay, validate_message
from txcore.message_table import Mode
from txcore.producer import finish as ending
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import (
    LocalTransaction,
    Phase,
    ProducerContext,
    add,
    current,
    make_half,
    row_digest,
)
from txcore.records import OpKind, Outcome
from txcore.results import EndResult, EndState, TransactionSendResult
from txcore.runtime.commands import Call, Flow

_NO_DELAY: Final = "is for the database style or prepare(connection): a half, as of a listener, is published at once"
KINDS: Final = {LocalTransactionState.COMMIT: OpKind.COMMIT, LocalTransactionState.ROLLBACK: OpKind.ROLLBACK}
"""The end that each certain answer of a listener asks for."""


def send_in_transaction(
    transaction: LocalTransaction, listener: Listener[Any, Any], message: Message, arg: Any
) -> Flow[TransactionSendResult]:
    """Send one message.

    Raises: as `flow.prepare`; NotSentError if the identity of the fence's database cannot be read. An exception of the
        listener is not raised: the listener may have committed, so the state is UNKNOWN.
    """
    context = transaction.context
    database = yield from learn_database(context)
    require_half(context)
    take(transaction, message)
    transaction.phase = Phase.PREPARING
    if context.fence is not None:
        fence_later([transaction], database)
    half = make_half(transaction)
    began_s = context.clock.elapsed_s()
    outcome: Outcome = yield half
    flow.appended(transaction, outcome, began_s)
    ran = yield from _run_local(transaction, listener, message, arg)
    if isinstance(ran, TransactionSendResult):
        return ran
    result = yield from ending.end(transaction, KINDS[ran])
    return TransactionSendResult(result.transaction_id, ran, result, transaction.notice)


def take(transaction: LocalTransaction, message: Message) -> None:
    """Give *transaction* its message.

    Raises:
        MessageRejectedError, ConfigError: the message is invalid, delayed, or has an immunity that is too short.
    """
    if validate_message(message):
        refuse_delay(message, _NO_DELAY)
    add(transaction, message)


def require_half(context: ProducerContext) -> None:
    """Require that halves can be written.

    Raises:
        TransactionStateError: mode table.
        HalfRefusedError: the broker has never answered.
    """
    if context.mode is Mode.TABLE:
        raise TransactionStateError("the listener style needs a half, which mode table never writes")
    flow.require_joined(context)


def fence_later(transactions: Iterable[LocalTransaction], database: bytes) -> None:
    """Note that a listener may write the rows of *transactions* in the fence's *database*, and may forget it.

    Their halves are written before the listener runs.
    """
    for transaction in transactions:
        transaction.fenced, transaction.may_lack_row = True, not transaction.context.listener_fences
        transaction.database = database


def learn_database(context: ProducerContext) -> Flow[bytes]:
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
    chosen = judged(transaction, state, error, began_s)
    return (yield from vouched(transaction, chosen)) if transaction.fenced else chosen


def judged(
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


def vouched(
    transaction: LocalTransaction, chosen: LocalTransactionState | TransactionSendResult
) -> Flow[LocalTransactionState | TransactionSendResult]:
    """Write the row that the listener of a fenced producer forgot before its COMMIT counts."""
    if chosen is not LocalTransactionState.COMMIT or transaction.must_look:
        return chosen
    refused = yield from _vouch(transaction)
    if refused is None:
        return chosen
    transaction.phase, transaction.result = Phase.ENDED, refused
    return TransactionSendResult(transaction.transaction_id, chosen, refused, transaction.notice)


def _vouch(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Write the row that a fenced producer's listener forgot; returns the result if the check was first.

    The lapse is reported each time: a crash before this step shows nothing.
    """
    context = transaction.context
    assert context.fence is not None
    had_it_died = (
        "only the answer of check_local_transaction could have shown that the database committed"
        if transaction.may_lack_row
        else "the check would have dropped the message, because listener_fences=True promises the row"
    )
    transaction.notice = FenceMisuseError(
        "the listener answered COMMIT without transaction.fence(connection) in its database transaction. The message "
        f"is sent all the same; had the process died before, {had_it_died}. Call transaction.fence(connection) first, "
        "in each transaction that commits; an AsyncTransactionListener awaits it, else it inserts nothing"
    )
    if context.forgot_fence is not None:
        context.forgot_fence(transaction.transaction_id)
    try:
        row = (None, transaction.identity, context.group, row_digest(transaction))
        connection = yield Call(context.fence.begin, row)
        yield Call(context.fence.commit, (connection,))
    except FencedError as error:
        # After its tombstone the checker asks the listener, unless the half says that there is none to ask.
        state = EndState.TOO_LATE if transaction.may_lack_row else EndState.CONFLICT
        return EndResult(state, transaction.transaction_id, error)
    except Exception as error:  # noqa: BLE001 - the database's; the check decides
        return EndResult(EndState.UNKNOWN, transaction.transaction_id, error)
    return None
