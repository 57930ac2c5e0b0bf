"""RocketMQ's style, for one transaction and for many at once: half first, then the listener's local transaction, then
its end.

Always with a half: when it is written, there is no database transaction that could hold the messages instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
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
    make_halves,
    row_digest,
)
from txcore.records import HalfRecord, OpKind, Outcome, Resolution, Status
from txcore.results import EndResult, EndState, TransactionSendResult
from txcore.runtime.commands import Answered, Call, Calls, Each, Flow

TURN_S: Final = 0.02
"""Time, in seconds, of local transactions after which those that ran are released before the next ones run."""
NO_DELAY: Final = "is for the database style or prepare(connection): a half, as of a listener, is published at once"
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_KINDS: Final = {_COMMIT: OpKind.COMMIT, _ROLLBACK: OpKind.ROLLBACK}


class Sendings(msgspec.Struct):
    """Messages of one producer that are sent together, in columns; in the end each has a result.

    Attributes:
        transactions: At least one.
        pairs: The message of each transaction, with the listener's argument.
        results: None for each, at first.
    """

    transactions: Sequence[LocalTransaction]
    pairs: Sequence[tuple[Message, Any]]
    results: list[TransactionSendResult | None]

    @property
    def context(self) -> ProducerContext:
        """The producer's."""
        return self.transactions[0].context

    def failed(self, index: int, error: Exception) -> None:
        """Set the result of a message whose half was not made, or is not certainly stored."""
        identity = self.transactions[index].transaction_id
        self.results[index] = TransactionSendResult(identity, LocalTransactionState.UNKNOWN, None, error)


class Ran(msgspec.Struct):
    """Local transactions that ran together and are to be ended.

    Attributes:
        states: The listener's answer to each, by its index: COMMIT or ROLLBACK.
        ends: The results of those whose end is known before the release.
    """

    states: dict[int, LocalTransactionState] = {}
    ends: dict[int, EndResult] = {}


def send_in_transaction(
    transaction: LocalTransaction, listener: Listener[Any, Any], message: Message, arg: Any
) -> Flow[TransactionSendResult]:
    """Send one message.

    Raises: as `flow.prepare`; NotSentError if the identity of the fence's database cannot be read. An exception of the
        listener is not raised: the listener may have committed, so the state is UNKNOWN.
    """
    context = transaction.context
    database = yield from _learn_database(context)
    _require_half(context)
    if validate_message(message):
        refuse_delay(message, NO_DELAY)
    add(transaction, message)
    _open([transaction], database)
    half = make_half(transaction)
    began_s = context.clock.elapsed_s()
    outcome: Outcome = yield half
    flow.appended(transaction, outcome, began_s)
    ran = yield from _run_local(transaction, listener, message, arg)
    if isinstance(ran, TransactionSendResult):
        return ran
    result = yield from ending.end(transaction, _KINDS[ran])
    return TransactionSendResult(result.transaction_id, ran, result, transaction.notice)


def send_all(sendings: Sendings, listener: Listener[Any, Any]) -> Flow[None]:
    """Send many; those that the broker answers together continue together. Never raises.

    The same steps as for one, with one command for many. A local transaction that takes long, or a half without an
    answer, holds up no other's end.
    """
    context = sendings.context
    try:
        database = yield from _learn_database(context)
        _require_half(context)
    except Exception as error:  # noqa: BLE001 - nothing was sent of any
        for index in range(len(sendings.pairs)):
            sendings.failed(index, error)
        return
    opened, halves = _opened(sendings, database)
    if halves:
        yield Each(halves, partial(_go_on, sendings, opened, listener, context.clock.elapsed_s()))


def _opened(sendings: Sendings, database: bytes) -> tuple[list[int], list[HalfRecord]]:
    """Make the halves; returns the indices of those that have one, and the halves."""
    transactions = sendings.transactions
    opened: list[int] = []
    for index, (message, _) in enumerate(sendings.pairs):
        try:
            if validate_message(message):
                refuse_delay(message, NO_DELAY)
            add(transactions[index], message)
        except Exception as error:  # noqa: BLE001 - nothing was sent of this one; the others are not affected
            sendings.failed(index, error)
        else:
            opened.append(index)
    valid = [transactions[index] for index in opened]
    _open(valid, database)
    halves, errors = make_halves(valid)
    if errors:
        for place, refused in errors.items():
            sendings.failed(opened[place], refused)
        opened = [index for place, index in enumerate(opened) if place not in errors]
    return opened, halves


def _go_on(
    sendings: Sendings, opened: Sequence[int], listener: Listener[Any, Any], began_s: float, answered: Answered
) -> Flow[None]:
    """Run the local transactions of halves that were answered together, and release the ends that they chose."""
    transactions, is_watched = sendings.transactions, sendings.context.observer is not None
    left: list[int] = []
    for places, outcome in answered:
        indices = [opened[place] for place in places]
        if outcome.status is Status.DURABLE and not is_watched:
            for index in indices:
                flow.stored(transactions[index], began_s)
            left += indices
            continue
        for index in indices:
            try:
                flow.appended(transactions[index], outcome, began_s)
            except Exception as error:  # noqa: BLE001 - this one's result
                sendings.failed(index, error)
            else:
                left.append(index)
    while left:
        count, ran = yield from _run_some(sendings, left, listener)
        left = left[count:]
        yield from _release(sendings, ran)


def _run_some(sendings: Sendings, left: Sequence[int], listener: Listener[Any, Any]) -> Flow[tuple[int, Ran]]:
    """Run local transactions for `TURN_S`, one at least; returns their number, and those that are to be ended."""
    context, transactions, pairs = sendings.context, sendings.transactions, sendings.pairs
    execute, set_current = listener.execute, current.set

    def run(index: int) -> Any:
        transaction, (message, arg) = transactions[index], pairs[index]
        set_current(transaction)
        return execute(transaction, message, arg)

    began_s = context.clock.elapsed_s()
    answers = yield Calls(run, left, TURN_S)
    set_current(None)
    ran, is_plain = Ran(), context.fence is None and context.observer is None
    states = ran.states
    for index, (state, error, ended_s) in zip(left, answers, strict=False):
        if is_plain and error is None and (state is _COMMIT or state is _ROLLBACK):
            states[index] = state
            continue
        transaction = transactions[index]
        judged = _judged(transaction, state, error, began_s)
        if transaction.fenced:
            judged = yield from _fenced(transaction, judged)
        if isinstance(judged, TransactionSendResult):
            sendings.results[index] = judged
        else:
            states[index] = judged
            if transaction.fenced and judged is _ROLLBACK:
                yield from _end_early(ran, index, ending.tombstone(transaction))
        began_s = ended_s
    if context.fence is not None:
        yield from _look(transactions, ran, context.fence)
    return len(answers), ran


def _look(transactions: Sequence[LocalTransaction], ran: Ran, fence: AnyFence) -> Flow[None]:
    """Set the end of those that committed by the answer of their listener, and not by their rows."""
    fenced = [index for index, state in ran.states.items() if state is _COMMIT and transactions[index].must_look]
    if fenced:
        settled = yield from ending.are_settled(fence, [transactions[index].identity for index in fenced])
        for index in fenced:
            if transactions[index].identity not in settled:
                yield from _end_early(ran, index, ending.look_before_publishing(transactions[index]))


def _end_early(ran: Ran, index: int, step: Flow[EndResult | None]) -> Flow[None]:
    """Set the end that *step* returns, if it does."""
    end = yield from step
    if end is not None:
        ran.ends[index] = end


def _release(sendings: Sendings, ran: Ran) -> Flow[None]:
    """End those that ran, all with one reading of the clocks."""
    transactions, clock, ends = sendings.transactions, sendings.context.clock, ran.ends
    began_s, wall_ms = clock.elapsed_s(), clock.wall_ms()
    released: list[int] = []
    resolutions: list[Resolution] = []
    for index, state in ran.states.items():
        if index in ends:
            sendings.results[index] = _finished(transactions[index], state, ends[index], began_s)
            continue
        resolution, end = ending.choose_end(transactions[index], _KINDS[state], began_s, wall_ms)
        assert resolution is not None  # a half was written
        if end is not None:
            ends[index] = end
        released.append(index)
        resolutions.append(resolution)
    if resolutions:
        yield Each(resolutions, partial(_released, sendings, ran, released, began_s))


def _released(sendings: Sendings, ran: Ran, released: Sequence[int], began_s: float, answered: Answered) -> None:
    transactions, states, ends, results = sendings.transactions, ran.states, ran.ends, sendings.results
    for places, outcome in answered:
        for place in places:
            index = released[place]
            transaction, state = transactions[index], states[index]
            end = ends.get(index) or ending.end_result(transaction.identity, _KINDS[state], outcome)
            results[index] = _finished(transaction, state, end, began_s)


def _finished(
    transaction: LocalTransaction, state: LocalTransactionState, end: EndResult, began_s: float
) -> TransactionSendResult:
    ending.finish_end(transaction, _KINDS[state], end, began_s)
    return TransactionSendResult(end.transaction_id, state, end, transaction.notice)


def _require_half(context: ProducerContext) -> None:
    """Require that halves can be written.

    Raises:
        TransactionStateError: mode table.
        HalfRefusedError: the broker has never answered.
    """
    if context.mode is Mode.TABLE:
        raise TransactionStateError("the listener style needs a half, which mode table never writes")
    flow.require_joined(context)


def _open(transactions: Sequence[LocalTransaction], database: bytes) -> None:
    """Prepare transactions with a message for their halves; *database* is their fence's."""
    for transaction in transactions:
        context = transaction.context
        transaction.phase = Phase.PREPARING
        if context.fence is not None:
            # The half is written before the listener runs: it may call `fence`, and forget it.
            transaction.fenced, transaction.may_lack_row = True, not context.listener_fences
            transaction.database = database


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
