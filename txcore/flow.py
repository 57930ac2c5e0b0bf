"""The producer's side of the protocol, stated once, as generators.

A flow yields what it wants done and receives the result; it never touches a backend, a thread or an event loop:

* a `HalfRecord`, or one that is `Timed`: append it; receives an `Outcome`
* a `Resolution`: release it; receives an `Outcome`
* a `Call`: call user or database code, awaiting the result if need be; receives its value or has its error raised
* a `Future`: wait for it; a number: wait so many seconds; a `Spawn`: run another flow beside this one

Every yield is a place where the process may die; `drivers` run flows for real, the simulator kills them there.
"""

from __future__ import annotations

from typing import Any, Protocol

from txcore import preparing
from txcore.commands import Call, Flow
from txcore.errors import CommitUnknownError, FencedError, TransactionStateError
from txcore.fence import FenceAnswer
from txcore.ids import id_text
from txcore.message import LocalTransactionState, Message
from txcore.records import Op, OpKind, Outcome, Resolution, Status
from txcore.results import EndResult, EndState, TransactionSendResult
from txcore.table import Mode
from txcore.transaction import LocalTransaction, Phase, current, publish


class Listener(Protocol):
    """What the listener style asks of user code; `TransactionListener` and its async twin have this shape."""

    def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        """Run the local transaction."""


def prepare(transaction: LocalTransaction, connection: Any = None) -> Flow[None]:
    """Make the half durable, with the fence row in the caller's open transaction first if *connection* is given.

    In mode table, and in mode auto when the broker has no certain ack for it, the messages go into the message table
    in that open transaction instead.

    Raises:
        TransactionStateError: prepared before, nothing was published, or mode table without a connection.
        FenceMisuseError, FencedError: the fence refused; nothing was sent, the database transaction is rolled back.
        MessageRejectedError, HalfRefusedError: nothing was sent; a fenced connection was rolled back.
        HalfUnknownError: the half may exist; a fenced connection was rolled back, so the check says ROLLBACK.
        NotSentError: the message table's database failed; rolled back.
    """
    context = transaction.context
    _require(transaction, Phase.OPEN)
    if not transaction.messages:
        raise TransactionStateError("nothing was published in this transaction; there is nothing to prepare")
    if connection is None and context.mode is Mode.TABLE:
        raise TransactionStateError("mode table has no half: prepare(connection) with the open database transaction")
    if connection is not None and context.fence is None:
        raise TransactionStateError("prepare(connection) needs a producer made with fence=SqlFence(engine)")
    transaction.phase = Phase.PREPARING
    if connection is None or context.fence is None:
        yield from preparing.append(transaction)
        return
    try:
        yield Call(context.fence.insert, (connection, transaction.transaction_id, context.group))
    except BaseException:
        transaction.phase = Phase.FAILED
        raise
    transaction.connection, transaction.fenced = connection, True
    yield from preparing.keep_or_roll_back(transaction)


def end(transaction: LocalTransaction, kind: OpKind) -> Flow[EndResult]:
    """Commit or roll back a prepared transaction; idempotent.

    Raises:
        TransactionStateError: not prepared, or the fenced database transaction is still open.
    """
    if transaction.phase is Phase.ENDED:
        return _repeated(transaction, kind)
    _require(transaction, Phase.PREPARED)
    context = transaction.context
    if (
        transaction.connection is not None
        and context.fence is not None
        and context.fence.is_open(transaction.connection)
    ):
        raise TransactionStateError("the prepared connection's transaction is still open; end it first")
    began_s = 0.0 if context.observer is None else context.clock.elapsed_s()
    transaction.asked = kind
    # Whoever asks again while this end is under way, or after it was cancelled, learns that it is not certain.
    identity, result = transaction.transaction_id, None
    _ended(transaction, EndResult(EndState.UNKNOWN, identity))
    if kind is OpKind.ROLLBACK and transaction.fenced:
        result = yield from _tombstone(transaction)
    elif not transaction.is_via_table and _must_give_way(transaction):
        yield _resolution(transaction, OpKind.NUDGE)
        result = EndResult(EndState.TOO_LATE, identity)
    if result is None and transaction.is_via_table:  # a half that is there all the same is closed by the check
        result = EndResult(EndState.VIA_TABLE if kind is OpKind.COMMIT else EndState.ACCEPTED, identity)
    if result is None:
        result = _end_result(identity, kind, (yield _resolution(transaction, kind)))
    _ended(transaction, result)
    if context.observer is not None:
        context.observer.ended(identity, began_s, kind.name, result.state.value)
    return result


def send_in_transaction(
    transaction: LocalTransaction, listener: Listener, message: Message, arg: Any
) -> Flow[TransactionSendResult]:
    """RocketMQ's style: half first, then the listener's local transaction, then its end.

    Always with a half: when it is written, there is no database transaction that could hold the messages instead.

    Raises: as `prepare`. What the listener raises is not raised: it may have committed, so the state is UNKNOWN.
    """
    if transaction.context.mode is Mode.TABLE:
        raise TransactionStateError("the listener style needs a half, which mode table never writes")
    publish(transaction, message)
    transaction.fenced = transaction.context.fence is not None
    transaction.phase = Phase.PREPARING
    yield from preparing.append(transaction)
    state, error = yield from _run_local(transaction, listener, message, arg)
    identity = transaction.transaction_id
    if state is LocalTransactionState.UNKNOWN:
        return TransactionSendResult(identity, state, None, error)
    if state is LocalTransactionState.COMMIT and transaction.fenced and transaction.connection is None:
        conflict = yield from _vouch(transaction)
        if conflict is not None:
            return TransactionSendResult(identity, state, _ended(transaction, conflict))
    transaction.connection = None
    kind = OpKind.COMMIT if state is LocalTransactionState.COMMIT else OpKind.ROLLBACK
    return TransactionSendResult(identity, state, (yield from end(transaction, kind)))


def database_begin(transaction: LocalTransaction, engine: Any) -> Flow[Any]:
    """Open the database transaction with its fence row; the connection is the result.

    Raises:
        TransactionStateError: the producer has no fence.
        FencedError, FenceMisuseError: see `Fence.begin`.
    """
    fence = transaction.context.fence
    if fence is None:
        raise TransactionStateError("the database style needs a producer made with fence=SqlFence(engine)")
    transaction.began_s = transaction.context.clock.elapsed_s()
    transaction.connection = yield Call(fence.begin, (engine, transaction.transaction_id, transaction.context.group))
    transaction.fenced = True
    return transaction.connection


def database_finish(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Leave a database-style block without an error: half, database COMMIT, targets, op; or the message table.

    Returns None when the block published nothing: then no half is written and the fence row is withdrawn.

    Raises: as `prepare`; then the database transaction was rolled back and nothing was sent, except:
        CommitUnknownError: the database's COMMIT failed and may have applied; check or relay deliver if it did.
    """
    context, connection = transaction.context, transaction.connection
    assert context.fence is not None
    if not transaction.messages:
        yield Call(context.fence.withdraw, (connection, transaction.transaction_id))
        transaction.phase = Phase.ENDED
        yield Call(context.fence.commit, (connection,))
        return None
    transaction.phase = Phase.PREPARING
    try:
        yield Call(context.fence.verify, (connection, transaction.transaction_id))
    except BaseException:
        transaction.phase = Phase.FAILED
        raise
    yield from preparing.keep_or_roll_back(transaction)
    try:
        yield Call(context.fence.commit, (connection,))
    except Exception as error:  # noqa: BLE001 - the database's, whatever it is
        # An error around COMMIT may have applied (R5): no op is written, the check finds out.
        transaction.phase = Phase.FAILED
        _ran_local(transaction, transaction.began_s, type(error).__name__)
        who = "the relay of the message table finds out, and delivers if it did"
        if not transaction.is_via_table:
            who = "the check will find out, and deliver if it did"
            yield _resolution(transaction, OpKind.NUDGE)
        raise CommitUnknownError(
            f"the database's COMMIT of {id_text(transaction.transaction_id)} failed and may have applied; {who}",
            transaction_id=transaction.transaction_id,
        ) from (error.__cause__ if isinstance(error, CommitUnknownError) else error)
    transaction.connection = None
    _ran_local(transaction, transaction.began_s, LocalTransactionState.COMMIT.value)
    return (yield from end(transaction, OpKind.COMMIT))


def database_abort(transaction: LocalTransaction) -> Flow[None]:
    """Leave a database-style block after an error: roll back; nothing was sent."""
    fence = transaction.context.fence
    if fence is not None and transaction.connection is not None and transaction.phase is Phase.OPEN:
        transaction.phase = Phase.FAILED
        yield Call(fence.rollback, (transaction.connection,))


def _must_give_way(transaction: LocalTransaction) -> bool:
    """Return whether the checker may be deciding by now, with nobody but the clock to keep both apart (R6)."""
    if transaction.context.store_arbitrates:
        return False
    return transaction.give_way_s is None or transaction.context.clock.elapsed_s() > transaction.give_way_s


def _resolution(transaction: LocalTransaction, kind: OpKind) -> Resolution:
    assert transaction.half is not None
    context = transaction.context
    op = Op(kind, transaction.transaction_id, transaction.half.generation, context.by, context.clock.wall_ms())
    targets = range(len(transaction.half.messages)) if kind is OpKind.COMMIT else ()
    return Resolution(transaction.half, op, targets, b"", context.by)


def _run_local(
    transaction: LocalTransaction, listener: Listener, message: Message, arg: Any
) -> Flow[tuple[LocalTransactionState, BaseException | None]]:
    observer, clock = transaction.context.observer, transaction.context.clock
    began_s = 0.0 if observer is None else clock.elapsed_s()
    current.set(transaction)
    try:
        state = yield Call(listener.execute_local_transaction, (message, arg))
    except Exception as error:  # noqa: BLE001 - whatever user code raises, it may have committed (R5)
        _ran_local(transaction, began_s, type(error).__name__)
        return LocalTransactionState.UNKNOWN, error
    finally:
        current.set(None)
    _ran_local(transaction, began_s, state.value if isinstance(state, LocalTransactionState) else "no state")
    if not isinstance(state, LocalTransactionState):
        return LocalTransactionState.UNKNOWN, TransactionStateError(
            f"execute_local_transaction answered {state!r}; it must answer a LocalTransactionState"
        )
    return state, None


def _ran_local(transaction: LocalTransaction, began_s: float, state: str) -> None:
    if transaction.context.observer is not None:
        transaction.context.observer.ran_local(transaction.transaction_id, began_s, state)


def _vouch(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Write the row that a fenced producer's listener forgot; returns a conflict if the check was first."""
    context = transaction.context
    assert context.fence is not None
    try:
        connection = yield Call(context.fence.begin, (None, transaction.transaction_id, context.group))
        yield Call(context.fence.commit, (connection,))
    except FencedError as error:
        return EndResult(EndState.CONFLICT, transaction.transaction_id, error)
    except Exception as error:  # noqa: BLE001 - the database's; the check decides
        return EndResult(EndState.UNKNOWN, transaction.transaction_id, error)
    return None


def _tombstone(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Make the rollback certain on the fence; returns the result when it cannot be (R5)."""
    context, identity = transaction.context, transaction.transaction_id
    assert context.fence is not None
    try:
        readings = yield Call(context.fence.check, ([identity], context.group))
    except Exception as error:  # noqa: BLE001 - no answer is no rollback
        return EndResult(EndState.UNKNOWN, identity, error)
    answer = readings[identity].answer
    if answer is FenceAnswer.ROLLBACK:
        return None
    if answer in {FenceAnswer.COMMIT, FenceAnswer.VIA_TABLE, FenceAnswer.SENT}:
        return EndResult(EndState.CONFLICT, identity, TransactionStateError("the local transaction is committed"))
    return EndResult(EndState.UNKNOWN, identity)


def _end_result(identity: bytes, kind: OpKind, outcome: Outcome) -> EndResult:
    if outcome.status is Status.DURABLE:
        return EndResult(EndState.ACCEPTED, identity)
    if outcome.status is Status.SUPERSEDED:
        if outcome.decision == kind:
            return EndResult(EndState.ALREADY_DONE, identity)
        late = outcome.decision == OpKind.DISCARD
        return EndResult(EndState.TOO_LATE if late else EndState.CONFLICT, identity, outcome.error)
    return EndResult(EndState.UNKNOWN, identity, outcome.error)


def _ended(transaction: LocalTransaction, result: EndResult) -> EndResult:
    transaction.phase, transaction.result = Phase.ENDED, result
    return result


def _repeated(transaction: LocalTransaction, kind: OpKind) -> EndResult:
    first = transaction.result
    assert first is not None
    if transaction.asked is not kind:
        accepted = first.state in {EndState.ACCEPTED, EndState.ALREADY_DONE, EndState.VIA_TABLE}
        return EndResult(EndState.CONFLICT if accepted else first.state, first.transaction_id, first.error)
    if first.state is EndState.ACCEPTED:
        return EndResult(EndState.ALREADY_DONE, first.transaction_id)
    return first


def _require(transaction: LocalTransaction, phase: Phase) -> None:
    if transaction.phase is not phase:
        raise TransactionStateError(
            f"transaction {id_text(transaction.transaction_id)} is {transaction.phase.value}, not {phase.value}"
        )
