"""The producer's side of the protocol, stated once, as generators: primitives and database style, and the steps that
make messages durable before the database commits: a half, or the message table. The end of all of them is in `finish`,
the listener style in `listener_style`.

A flow yields commands and receives their results; it never touches a backend, a thread or an event loop:

* a `HalfRecord`, or one that is `Timed`: append it; receives an `Outcome`
* a `Resolution`: release it; receives an `Outcome`
* a `Call`: call user or database code, awaiting the result if need be; receives its value or has its error raised
* an `Each` of halves or resolutions: the same for many at once; continue when all have continued
* a `Future`: wait for it; a number: wait that many seconds; a `Spawn`: run another flow beside this one

Every yield is a place where the process may die; `drivers` run flows for real, the simulator kills them there.
"""

from __future__ import annotations

from typing import Any

from txcore.connections import AsyncDatabaseConnection, DatabaseConnection
from txcore.errors import (
    CommitUnknownError,
    HalfRefusedError,
    HalfUnknownError,
    MessageRejectedError,
    NotSentError,
    OutcomeUnknownError,
    TransactionStateError,
    UsageError,
    is_outage,
)
from txcore.fence import AnyFence
from txcore.message import LocalTransactionState
from txcore.message_table import CancelState, Mode
from txcore.producer.finish import end, ran_local, require, resolution_of
from txcore.producer.table_rows import table_rows
from txcore.producer.transaction import LocalTransaction, Phase, ProducerContext, make_half, row_digest
from txcore.records import HalfRecord, OpKind, Outcome, Status
from txcore.results import EndResult
from txcore.runtime.circuit_breaker import Switch
from txcore.runtime.commands import Call, Flow, Timed


def prepare(
    transaction: LocalTransaction, connection: DatabaseConnection | AsyncDatabaseConnection | None = None
) -> Flow[None]:
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
    require(transaction, Phase.OPEN)
    if not transaction.messages:
        raise TransactionStateError("nothing was published in this transaction; there is nothing to prepare")
    is_table = context.mode is Mode.TABLE
    if connection is None and (is_table or transaction.delays):
        why = "mode table has no half" if is_table else "a delayed message waits in the message table"
        raise TransactionStateError(f"{why}: prepare(connection) with the open database transaction")
    if connection is None:
        transaction.phase = Phase.PREPARING
        yield from append(transaction)
        return
    if context.fence is None:
        raise TransactionStateError("prepare(connection) needs a producer with fence=SqlFence(…) or AsyncSqlFence(…)")
    transaction.phase = Phase.PREPARING
    put = _put_into_table if is_table and not transaction.delays else _fence_and_keep
    yield from _or_roll_back(transaction, context.fence, connection, put(transaction, context.fence, connection))


def _fence_and_keep(transaction: LocalTransaction, fence: AnyFence, connection: Any) -> Flow[None]:
    row = (connection, transaction.identity, transaction.context.group)
    yield Call(fence.insert, (*row, (), b"", row_digest(transaction)))
    transaction.connection, transaction.fenced, transaction.must_look = connection, True, True
    transaction.database = fence.database_of(connection)
    yield from _keep(transaction, fence)


def database_begin(transaction: LocalTransaction, engine: Any) -> Flow[Any]:
    """Open the database transaction with its fence row; the connection is the result.

    Raises:
        TransactionStateError: the producer has no fence.
        FencedError, FenceMisuseError: see `Fence.begin`.
    """
    fence = transaction.context.fence
    if fence is None:
        raise TransactionStateError(
            "the database style needs a producer with fence=SqlFence(…) or AsyncSqlFence(…); nothing was begun"
        )
    transaction.began_s = transaction.context.clock.elapsed_s()
    transaction.connection = yield Call(fence.begin, (engine, transaction.identity, transaction.context.group))
    transaction.fenced = True
    transaction.database = fence.database_of(transaction.connection)
    return transaction.connection


def database_finish(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """End a database-style block without an error: half, database COMMIT, targets, op; or the message table.

    Returns None when the block published nothing: then no half is written and the fence row is withdrawn.

    Raises: as `prepare`; then the database transaction was rolled back and nothing was sent, as after a
        NotSentError of the database's COMMIT that was certainly undone (try again); except:
        CommitUnknownError: the database's COMMIT failed and may have applied; check or relay deliver if it did.
    """
    fence, connection = transaction.context.fence, transaction.connection
    assert fence is not None
    if not transaction.messages:
        yield from _or_roll_back(transaction, fence, connection, _withdraw(transaction, fence))
        transaction.phase = Phase.ENDED
        yield Call(fence.commit, (connection,))
        return None
    transaction.phase = Phase.PREPARING
    yield from _or_roll_back(transaction, fence, connection, _verify_and_keep(transaction, fence))
    try:
        yield Call(fence.commit, (connection,))
    except Exception as error:
        # An error around COMMIT, whatever it is, may have applied (R5): no op is written, the check finds out. After
        # one that was certainly undone the half is for the check to close.
        is_undone = isinstance(error, NotSentError)
        transaction.phase = Phase.FAILED
        state = LocalTransactionState.ROLLBACK.value if is_undone else type(error).__name__
        ran_local(transaction, transaction.began_s, state)
        remedy = "the relay of the message table finds out, and delivers if it did"
        if not transaction.is_via_table:
            remedy = "the check will find out, and deliver if it did"
            yield resolution_of(transaction, OpKind.NUDGE, transaction.context.clock.wall_ms())
        if is_undone:
            raise
        raise CommitUnknownError(
            f"the database's COMMIT of {transaction.transaction_id} failed and may have applied; {remedy}",
            transaction_id=transaction.transaction_id,
        ) from (error.__cause__ if isinstance(error, CommitUnknownError) else error)
    transaction.connection = None
    ran_local(transaction, transaction.began_s, LocalTransactionState.COMMIT.value)
    return (yield from end(transaction, OpKind.COMMIT))


def _withdraw(transaction: LocalTransaction, fence: AnyFence) -> Flow[None]:
    yield Call(fence.withdraw, (transaction.connection, transaction.identity))


def _verify_and_keep(transaction: LocalTransaction, fence: AnyFence) -> Flow[None]:
    # Mode table writes the digest with the messages.
    digest = b"" if transaction.context.mode is Mode.TABLE else row_digest(transaction)
    yield Call(fence.verify, (transaction.connection, transaction.identity, digest))
    yield from _keep(transaction, fence)


def database_abort(transaction: LocalTransaction) -> Flow[None]:
    """End a database-style block after an error: roll back, whatever the block has called; nothing was sent."""
    fence, connection = transaction.context.fence, transaction.connection
    if fence is not None and connection is not None:
        transaction.phase, transaction.connection = Phase.FAILED, None
        yield Call(fence.rollback, (connection,))


def _put_into_table(transaction: LocalTransaction, fence: AnyFence, connection: Any) -> Flow[None]:
    """Write the fence row and the messages into the caller's open transaction together.

    Raises: as `prepare`.
    """
    identity, group = transaction.identity, transaction.context.group
    transaction.connection, transaction.fenced, transaction.must_look = connection, True, True
    make_half(transaction)  # in the message table, too, nothing may be that the backend cannot take
    yield Call(fence.insert, (connection, identity, group, table_rows(transaction), b"", row_digest(transaction)))
    transaction.database = fence.database_of(connection)
    _is_in_table(transaction, "")


def _or_roll_back(transaction: LocalTransaction, fence: AnyFence, connection: Any, steps: Flow[None]) -> Flow[None]:
    """Run *steps* in the open transaction of *connection*; when they fail or are interrupted, roll it back.

    A step of the fence that fails has rolled back itself; one that was cancelled, or interrupted by Ctrl-C, may not.
    """
    try:
        yield from steps
    except GeneratorExit:
        raise
    except BaseException:
        transaction.phase = Phase.FAILED
        yield Call(fence.rollback, (connection,))
        raise


def _keep(transaction: LocalTransaction, fence: AnyFence) -> Flow[None]:
    """Make the messages durable, or as durable as the open database transaction.

    In mode auto a half that the broker has not certainly stored is no failure: the messages then travel in the same
    database transaction. A refusal of the message itself, such as an unknown topic, is a failure in every mode.

    Raises: as `prepare`.
    """
    context, breaker = transaction.context, transaction.context.breaker
    has_joined = context.has_joined()  # asked once: a half made before is for no partition
    make_half(transaction)  # in the message table, too, nothing may be that the backend cannot take
    if context.mode is Mode.TABLE:
        yield from _enqueue(transaction, fence, "")
    elif transaction.delays:  # a half is published at once, so the transaction goes by the table as a whole (R16)
        yield from _enqueue(transaction, fence, "a message waits until it is due")
    elif breaker is None:
        yield from append(transaction)
    elif not breaker.may_try():
        yield from _enqueue(transaction, fence, "the circuit to the broker is open")
    elif not has_joined:
        _tell(transaction, breaker.failed(), "the broker has not answered yet")
        yield from _enqueue(transaction, fence, "the broker has not answered yet")
    else:
        try:
            yield from append(transaction, context.half_deadline_s)
        except (NotSentError, OutcomeUnknownError, UsageError) as error:
            # A target without room answers at once; its answer says nothing of the other targets.
            has_answered = isinstance(error, MessageRejectedError) or not is_outage(error)
            _tell(transaction, breaker.succeeded() if has_answered else breaker.failed(), str(error))
            if not is_outage(error):
                raise
            yield from _enqueue(transaction, fence, str(error))
        else:
            _tell(transaction, breaker.succeeded(), "")


def _tell(transaction: LocalTransaction, switch: Switch | None, reason: str) -> None:
    if switch is not None and transaction.context.observer is not None:
        transaction.context.observer.switched(is_open=switch.is_open, reason=reason if switch.is_open else "")


def _enqueue(transaction: LocalTransaction, fence: AnyFence, reason: str) -> Flow[None]:
    """Put the messages into the message table; with fence state 3 a half that turns up is not published, too."""
    identity, group, connection = transaction.identity, transaction.context.group, transaction.connection
    now_ms = 0
    if transaction.delays:
        now_ms = yield Call(fence.now_ms, (connection,))
    values = (identity, group, table_rows(transaction, now_ms), row_digest(transaction))
    yield Call(fence.enqueue, (connection, *values))
    _is_in_table(transaction, reason)


def _is_in_table(transaction: LocalTransaction, reason: str) -> None:
    transaction.is_via_table = True
    transaction.phase = Phase.PREPARED
    if transaction.context.observer is not None:
        transaction.context.observer.enqueued(transaction.transaction_id, reason)


def cancel(context: ProducerContext, identity: bytes, connection: Any) -> Flow[CancelState]:
    """Cancel the delayed messages of a transaction in the caller's open transaction; see `TransactionProducer.cancel`.

    Raises:
        TransactionStateError: the producer has no fence.
        FenceMisuseError: see `Fence.cancel`.
    """
    if context.fence is None:
        raise TransactionStateError("cancel needs a producer with fence=SqlFence(…) or AsyncSqlFence(…)")
    state: CancelState = yield Call(context.fence.cancel, (connection, identity, context.group))
    return state


def append(transaction: LocalTransaction, deadline_s: float | None = None) -> Flow[None]:
    """Append the half and require a certain ack (R2), within *deadline_s* where one is given.

    Raises:
        MessageRejectedError, HalfRefusedError: nothing was stored.
        UsageError: nothing was stored; the backend was opened before a fork.
        HalfUnknownError: the half may be stored.
    """
    half = half_of(transaction)
    began_s = transaction.context.clock.elapsed_s()
    outcome: Outcome = yield half if deadline_s is None else Timed(half, deadline_s)
    appended(transaction, outcome, began_s)


def half_of(transaction: LocalTransaction) -> HalfRecord:
    """Return the half to append.

    Raises:
        MessageRejectedError: the messages together are larger than the backend takes.
        HalfRefusedError: the broker has never answered, so the partition of a half is not known.
    """
    require_joined(transaction.context)
    return transaction.half or make_half(transaction)


def require_joined(context: ProducerContext) -> None:
    """Require that the number of partitions is known, so that a half can be written.

    Raises:
        HalfRefusedError: the broker has never answered.
    """
    if not context.has_joined():
        raise HalfRefusedError(f"the broker has not answered for group {context.group!r} yet; nothing was sent")


def stored(transaction: LocalTransaction, began_s: float) -> None:
    """Note that the half is durable; it was handed over at *began_s* or later."""
    transaction.give_way_s = began_s + transaction.immunity_s - transaction.context.margin_s
    transaction.phase = Phase.PREPARED


def appended(transaction: LocalTransaction, outcome: Outcome, began_s: float) -> None:
    """Require that *outcome* is a certain ack (R2); the half was handed over at *began_s* or later.

    Raises: as `append`.
    """
    context, status = transaction.context, outcome.status
    if context.observer is not None:
        context.observer.prepared(transaction.transaction_id, began_s, status)
    if status is Status.DURABLE:
        stored(transaction, began_s)
        return
    transaction.phase = Phase.FAILED
    identity = transaction.transaction_id
    if status is Status.UNKNOWN:
        raise HalfUnknownError(
            f"no certain answer to the half of {identity}: it may be stored; roll the database "
            "back, and the check drops the half",
            transaction_id=identity,
        ) from outcome.error
    if isinstance(outcome.error, MessageRejectedError) or type(outcome.error) is UsageError:
        raise outcome.error  # Not the broker's refusal: the message's own fault, or a backend from before a fork.
    raise HalfRefusedError(
        f"the broker refused the half of {identity}: {outcome.error}; nothing was sent",
        transaction_id=identity,
    ) from outcome.error
