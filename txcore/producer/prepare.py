"""The steps that make a transaction's messages durable before its database commits: a half, or the message table."""

from __future__ import annotations

from typing import Any

from txcore.errors import (
    HalfRefusedError,
    HalfUnknownError,
    MessageRejectedError,
    NotSentError,
    OutcomeUnknownError,
    UsageError,
    is_outage,
)
from txcore.fence import Fence, database_of
from txcore.ids import id_text
from txcore.message_table import Mode
from txcore.producer.transaction import LocalTransaction, Phase, make_half, table_rows
from txcore.records import HalfRecord, Outcome, Status
from txcore.runtime.circuit_breaker import Switch
from txcore.runtime.commands import Call, Flow, Timed


def put_into_table(transaction: LocalTransaction, connection: Any) -> Flow[None]:
    """Write the fence row and the messages into the caller's open transaction together.

    Raises: as `flow.prepare`.
    """
    context, identity = transaction.context, transaction.transaction_id
    fence = context.fence
    assert fence is not None
    transaction.connection, transaction.fenced, transaction.must_look = connection, True, True
    make_half(transaction)  # in the message table, too, nothing may be that the backend cannot take
    yield Call(fence.insert, (connection, identity, context.group, table_rows(transaction)))
    transaction.database = database_of(fence, connection)
    _is_in_table(transaction, "")


def or_roll_back(transaction: LocalTransaction, connection: Any, steps: Flow[None]) -> Flow[None]:
    """Run *steps* in the open transaction of *connection*; when they fail or are interrupted, roll it back.

    A step of the fence that fails has rolled back itself; one that was cancelled, or interrupted by Ctrl-C, may not.
    """
    fence = transaction.context.fence
    assert fence is not None
    try:
        yield from steps
    except GeneratorExit:
        raise
    except BaseException:
        transaction.phase = Phase.FAILED
        yield Call(fence.rollback, (connection,))
        raise


def keep(transaction: LocalTransaction) -> Flow[None]:
    """Make the messages durable, or as durable as the open database transaction.

    In mode auto a half that the broker has not certainly stored is no failure: the messages then travel in the same
    database transaction. A refusal of the message itself, such as an unknown topic, is a failure in every mode.

    Raises: as `flow.prepare`.
    """
    fence = transaction.context.fence
    assert fence is not None
    context, breaker = transaction.context, transaction.context.breaker
    has_joined = context.has_joined()  # asked once: a half made before is for no partition
    make_half(transaction)  # in the message table, too, nothing may be that the backend cannot take
    if context.mode is Mode.TABLE:
        yield from _enqueue(transaction, fence, "")
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


def _enqueue(transaction: LocalTransaction, fence: Fence, reason: str) -> Flow[None]:
    """Put the messages into the message table; with fence state 3 a half that turns up is not published, too."""
    identity, group = transaction.transaction_id, transaction.context.group
    yield Call(fence.enqueue, (transaction.connection, identity, group, table_rows(transaction)))
    _is_in_table(transaction, reason)


def _is_in_table(transaction: LocalTransaction, reason: str) -> None:
    transaction.is_via_table = True
    transaction.phase = Phase.PREPARED
    if transaction.context.observer is not None:
        transaction.context.observer.enqueued(transaction.transaction_id, reason)


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
    context = transaction.context
    if not context.has_joined():
        raise HalfRefusedError(f"the broker has not answered for group {context.group!r} yet; nothing was sent")
    return transaction.half or make_half(transaction)


def appended(transaction: LocalTransaction, outcome: Outcome, began_s: float) -> None:
    """Require that *outcome* is a certain ack (R2); the half was handed over at *began_s* or later.

    Raises: as `append`.
    """
    context = transaction.context
    if context.observer is not None:
        context.observer.prepared(transaction.transaction_id, began_s, outcome.status)
    if outcome.status is Status.DURABLE:
        transaction.give_way_s = began_s + transaction.immunity_s - context.margin_s
        transaction.phase = Phase.PREPARED
        return
    transaction.phase = Phase.FAILED
    identity = transaction.transaction_id
    if outcome.status is Status.UNKNOWN:
        raise HalfUnknownError(
            f"no certain answer to the half of {id_text(identity)}: it may be stored; do not commit, "
            "the check rolls it back",
            transaction_id=identity,
        ) from outcome.error
    if isinstance(outcome.error, MessageRejectedError) or type(outcome.error) is UsageError:
        raise outcome.error  # Not the broker's refusal: the message's own fault, or a backend from before a fork.
    raise HalfRefusedError(
        f"the broker refused the half of {id_text(identity)}: {outcome.error}; nothing was sent",
        transaction_id=identity,
    ) from outcome.error
