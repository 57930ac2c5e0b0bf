"""The producer's side of the protocol, stated once, as generators: primitives and database style here, the end of all
of them in `ending`, the listener style in `sending`.

A flow yields commands and receives their results; it never touches a backend, a thread or an event loop:

* a `HalfRecord`, or one that is `Timed`: append it; receives an `Outcome`
* a `Resolution`: release it; receives an `Outcome`
* a `Call`: call user or database code, awaiting the result if need be; receives its value or has its error raised
* an `Each` of halves or resolutions: the same for many at once; continue when all have continued
* a `Future`: wait for it; a number: wait that many seconds; a `Spawn`: run another flow beside this one

Every yield is a place where the process may die; `drivers` run flows for real, the simulator kills them there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txcore.errors import CommitUnknownError, NotSentError, TransactionStateError
from txcore.fence import database_of
from txcore.ids import id_text
from txcore.message import LocalTransactionState
from txcore.message_table import Mode
from txcore.producer import prepare as preparing
from txcore.producer.finish import end, ran_local, require, resolution_of
from txcore.producer.transaction import LocalTransaction, Phase
from txcore.records import OpKind
from txcore.results import EndResult
from txcore.runtime.commands import Call, Flow


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
    require(transaction, Phase.OPEN)
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
    is_table = context.mode is Mode.TABLE
    steps = preparing.put_into_table(transaction, connection) if is_table else _fence_and_keep(transaction, connection)
    yield from preparing.or_roll_back(transaction, connection, steps)


def _fence_and_keep(transaction: LocalTransaction, connection: Any) -> Flow[None]:
    fence = transaction.context.fence
    assert fence is not None
    yield Call(fence.insert, (connection, transaction.transaction_id, transaction.context.group))
    transaction.connection, transaction.fenced, transaction.must_look = connection, True, True
    transaction.database = database_of(fence, connection)
    yield from preparing.keep(transaction)


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
    transaction.database = database_of(fence, transaction.connection)
    return transaction.connection


def database_finish(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """End a database-style block without an error: half, database COMMIT, targets, op; or the message table.

    Returns None when the block published nothing: then no half is written and the fence row is withdrawn.

    Raises: as `prepare`; then the database transaction was rolled back and nothing was sent, as after a
        NotSentError of the database's COMMIT that was certainly undone (try again); except:
        CommitUnknownError: the database's COMMIT failed and may have applied; check or relay deliver if it did.
    """
    context, connection = transaction.context, transaction.connection
    assert context.fence is not None
    if not transaction.messages:
        yield from preparing.or_roll_back(transaction, connection, _ask(context.fence.withdraw, transaction))
        transaction.phase = Phase.ENDED
        yield Call(context.fence.commit, (connection,))
        return None
    transaction.phase = Phase.PREPARING
    yield from preparing.or_roll_back(transaction, connection, _verify_and_keep(transaction))
    try:
        yield Call(context.fence.commit, (connection,))
    except NotSentError:  # certainly undone, so the half is for the check to close
        transaction.phase = Phase.FAILED
        ran_local(transaction, transaction.began_s, LocalTransactionState.ROLLBACK.value)
        if not transaction.is_via_table:
            yield resolution_of(transaction, OpKind.NUDGE)
        raise
    except Exception as error:  # noqa: BLE001 - the database's, whatever it is
        # An error around COMMIT may have applied (R5): no op is written, the check finds out.
        transaction.phase = Phase.FAILED
        ran_local(transaction, transaction.began_s, type(error).__name__)
        remedy = "the relay of the message table finds out, and delivers if it did"
        if not transaction.is_via_table:
            remedy = "the check will find out, and deliver if it did"
            yield resolution_of(transaction, OpKind.NUDGE)
        raise CommitUnknownError(
            f"the database's COMMIT of {id_text(transaction.transaction_id)} failed and may have applied; {remedy}",
            transaction_id=transaction.transaction_id,
        ) from (error.__cause__ if isinstance(error, CommitUnknownError) else error)
    transaction.connection = None
    ran_local(transaction, transaction.began_s, LocalTransactionState.COMMIT.value)
    return (yield from end(transaction, OpKind.COMMIT))


def _ask(of_fence: Callable[..., Any], transaction: LocalTransaction) -> Flow[None]:
    """Call *of_fence* for the row of *transaction*."""
    yield Call(of_fence, (transaction.connection, transaction.transaction_id))


def _verify_and_keep(transaction: LocalTransaction) -> Flow[None]:
    fence = transaction.context.fence
    assert fence is not None
    yield from _ask(fence.verify, transaction)
    yield from preparing.keep(transaction)


def database_abort(transaction: LocalTransaction) -> Flow[None]:
    """End a database-style block after an error: roll back, whatever the block has called; nothing was sent."""
    fence, connection = transaction.context.fence, transaction.connection
    if fence is not None and connection is not None:
        transaction.phase, transaction.connection = Phase.FAILED, None
        yield Call(fence.rollback, (connection,))
