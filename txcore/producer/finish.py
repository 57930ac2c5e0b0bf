"""The end of a prepared transaction: commit, rollback, or giving way to the checker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.columns import resolution
from txcore.errors import BackendUnavailableError, TransactionStateError, WrongDatabaseError
from txcore.fence import NO_DATABASE, AnyFence, FenceAnswer, FenceReading
from txcore.ids import id_text, known_id
from txcore.op_rules import outcome_of
from txcore.producer.transaction import LocalTransaction, Phase
from txcore.records import OpKind, Outcome, Resolution, Status
from txcore.results import EndResult, EndState
from txcore.runtime.commands import Call, Flow

_COMMITTED: Final = frozenset({FenceAnswer.COMMIT, FenceAnswer.VIA_TABLE, FenceAnswer.SENT})
_CERTAIN: Final = _COMMITTED | {FenceAnswer.NO_ANSWER}
"""The fence answers after which no check is needed: a database without an answer is not asked once more."""
FOR_OWNER: Final = {OpKind.COMMIT: OpKind.COMMITTED}
"""The kind of op that a producer writes where the partition's owner releases the half (R17).

COMMITTED takes the place of both target and COMMIT, and is settled only when it is durable.
"""
_NO_FENCE: Final = (
    "this transaction has a fence row, and the producer that ends it has no fence to ask; nothing was published here, "
    "the checker decides, or the message table's relay"
)
_PREPARE_FIRST: Final = (
    ": its messages are stored nowhere, and are not sent; call prepare(connection) before the "
    "database's commit, in asyncio with await. A `with producer.transaction(…)` block prepares and commits when it ends"
)


def end(transaction: LocalTransaction, kind: OpKind) -> Flow[EndResult]:
    """Commit or roll back a prepared transaction; idempotent.

    Raises:
        TransactionStateError: not prepared, or the fenced database transaction is still open.
    """
    if transaction.phase is Phase.ENDED:
        return _repeated(transaction, kind)
    require(transaction, Phase.PREPARED)
    fence, connection = transaction.context.fence, transaction.connection
    if connection is not None and fence is not None and fence.is_open(connection):
        raise TransactionStateError(
            "the prepared connection's transaction is still open; end it first, then repeat this call: nothing is "
            "published yet"
        )
    began_s = now_s(transaction)
    transaction.asked = kind
    # A caller that asks again while this end is under way, or after it was cancelled, reads that it is not certain.
    transaction.phase, transaction.result = Phase.ENDED, EndResult(EndState.UNKNOWN, transaction.transaction_id)
    result = None
    if needs_tombstone(transaction, kind):
        result = yield from tombstone(transaction)
    elif kind is OpKind.COMMIT and transaction.must_look:
        result = yield from look_before_publishing(transaction)
    if result is None:
        clock = transaction.context.clock
        resolution, result = choose_end(transaction, kind, clock.elapsed_s(), clock.wall_ms())
        if resolution is not None:
            outcome = yield resolution
            result = result or end_result(transaction.identity, kind, outcome)
    assert result is not None
    return finish_end(transaction, kind, result, began_s)


def choose_end(
    transaction: LocalTransaction, kind: OpKind, now_s: float, wall_ms: int
) -> tuple[Resolution | None, EndResult | None]:
    """Return the resolution to release now, and the result where it does not depend on how the release ends.

    The caller has just read both clocks, and hands the resolution over at once: a producer gives way by the clock.
    After a tombstone the fence has decided, so the release may take any time.
    """
    until_s = transaction.give_way_s
    if until_s is not None and now_s <= until_s and not transaction.is_via_table:
        return resolution_of(transaction, kind, wall_ms), None
    if transaction.is_via_table:  # a half that is there all the same is closed by the check
        state = EndState.VIA_TABLE if kind is OpKind.COMMIT else EndState.ACCEPTED
        return None, EndResult(state, transaction.transaction_id)
    if _must_give_way(transaction, now_s) and not needs_tombstone(transaction, kind):
        end = EndResult(EndState.TOO_LATE, transaction.transaction_id)
        return resolution_of(transaction, OpKind.NUDGE, wall_ms), end
    return resolution_of(transaction, kind, wall_ms), None


def end_result(transaction_id: bytes, kind: OpKind, outcome: Outcome) -> EndResult:
    """Return the result of the end for the outcome of its release."""
    identity = known_id(transaction_id)
    if outcome.status is Status.DURABLE:
        return EndResult(EndState.ACCEPTED, identity)
    if outcome.status is Status.SUPERSEDED:
        if outcome_of(outcome.decision) == kind:
            return EndResult(EndState.ALREADY_DONE, identity)
        late = outcome.decision == OpKind.DISCARD
        return EndResult(EndState.TOO_LATE if late else EndState.CONFLICT, identity, outcome.error)
    return EndResult(EndState.UNKNOWN, identity, outcome.error)


def finish_end(transaction: LocalTransaction, kind: OpKind, result: EndResult, began_s: float) -> EndResult:
    """Keep the result for a caller that asks again, and notify the observer."""
    transaction.asked, transaction.phase, transaction.result = kind, Phase.ENDED, result
    observer = transaction.context.observer
    if observer is not None:
        observer.ended(transaction.transaction_id, began_s, kind.name, result.state.value)
    return result


def now_s(transaction: LocalTransaction) -> float:
    """Return the reading of the clock for an observer; 0 where there is no observer."""
    context = transaction.context
    return 0.0 if context.observer is None else context.clock.elapsed_s()


def ran_local(transaction: LocalTransaction, began_s: float, state: str) -> None:
    """Notify the observer how the local transaction ended."""
    if transaction.context.observer is not None:
        transaction.context.observer.ran_local(transaction.transaction_id, began_s, state)


def resolution_of(transaction: LocalTransaction, kind: OpKind, wall_ms: int) -> Resolution:
    """Return the op of *kind*, with all targets if it commits."""
    assert transaction.half is not None
    if transaction.is_by_owner:
        kind = FOR_OWNER.get(kind, kind)
    return resolution(transaction.half, kind, transaction.context.by, wall_ms)


def needs_tombstone(transaction: LocalTransaction, kind: OpKind) -> bool:
    """Return whether the fence must first answer that nothing of *transaction* was committed (R5)."""
    return kind is OpKind.ROLLBACK and transaction.fenced


def tombstone(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Make the rollback certain on the fence; returns the result when it cannot be (R5)."""
    context, identity = transaction.context, transaction.transaction_id
    if context.fence is None:
        return EndResult(EndState.UNKNOWN, identity, TransactionStateError(_NO_FENCE))
    try:
        readings = yield _check(transaction)
    except Exception as error:  # noqa: BLE001 - no answer is no rollback
        return EndResult(EndState.UNKNOWN, identity, error)
    reading = readings[transaction.identity]
    if reading.answer is FenceAnswer.ROLLBACK:
        return None
    if reading.answer in _COMMITTED:
        return EndResult(
            EndState.CONFLICT,
            identity,
            TransactionStateError("the database committed the local transaction; it cannot be rolled back"),
        )
    return EndResult(EndState.UNKNOWN, identity, _no_answer(reading))


def look_before_publishing(transaction: LocalTransaction) -> Flow[EndResult | None]:
    """Verify that the row is committed, as another holder, or the caller on its connection, may have rolled back.

    Only a settled row counts: a dirty read, or a commit that is not on disk yet, may be undone.
    Returns the result where nothing may be published: CONFLICT after a tombstone, which is written where there is no
    row, or TOO_LATE where the checker asks the listener after it; UNKNOWN, and the checker is asked, where the fence
    does not answer.
    """
    context, identity = transaction.context, transaction.identity
    if context.fence is None:
        return (yield from _leave(transaction, EndState.TOO_LATE, TransactionStateError(_NO_FENCE)))
    try:
        readings = yield Call(context.fence.settled, ([identity], transaction.connection))
        if readings[identity].answer not in _CERTAIN:
            readings = yield _check(transaction)
    except Exception as error:  # noqa: BLE001 - no answer is no commit
        return (yield from _leave(transaction, EndState.UNKNOWN, error))
    reading = readings[identity]
    if reading.answer in _COMMITTED:  # of this id there is one row, wherever it is
        return None
    if reading.answer is not FenceAnswer.ROLLBACK:
        return (yield from _leave(transaction, EndState.UNKNOWN, _no_answer(reading)))
    why = "the fence has no committed row of it: it was rolled back; nothing was published"
    if not transaction.may_lack_row:
        return EndResult(EndState.CONFLICT, transaction.transaction_id, TransactionStateError(why))
    return (yield from _leave(transaction, EndState.TOO_LATE, TransactionStateError(f"{why}; the listener is asked")))


def are_settled(fence: AnyFence, transaction_ids: Sequence[bytes]) -> Flow[set[bytes]]:
    """Return those of *transaction_ids* that need no second look: their row is settled."""
    try:
        readings = yield Call(fence.settled, (transaction_ids,))
    except Exception:  # noqa: BLE001 - each is looked at by itself, and has its error
        return set()
    return {identity for identity, reading in readings.items() if reading.answer in _COMMITTED}


def _leave(transaction: LocalTransaction, state: EndState, error: Exception) -> Flow[EndResult]:
    """Publish nothing, and ask for a check soon; a relay publishes its messages without one, if it committed."""
    if not transaction.is_via_table:
        yield resolution_of(transaction, OpKind.NUDGE, transaction.context.clock.wall_ms())
    return EndResult(state, transaction.transaction_id, error)


def _check(transaction: LocalTransaction) -> Call:
    context, identity = transaction.context, transaction.identity
    assert context.fence is not None
    databases = ({identity: transaction.database},) if transaction.database not in {b"", NO_DATABASE} else ()
    return Call(context.fence.check, ([identity], context.group, *databases))


def _no_answer(reading: FenceReading) -> Exception:
    kind = WrongDatabaseError if reading.is_foreign else BackendUnavailableError
    return kind(f"the fence did not answer ({reading.reason or reading.answer.value}); the checker decides")


def require(transaction: LocalTransaction, phase: Phase) -> None:
    """Require that *transaction* is in *phase*.

    Raises:
        TransactionStateError: it is in another phase.
    """
    if transaction.phase is not phase:
        raise TransactionStateError(
            f"transaction {id_text(transaction.identity)} is {transaction.phase.value}, not {phase.value}"
            + (_PREPARE_FIRST if transaction.phase is Phase.OPEN else "")
        )


def _must_give_way(transaction: LocalTransaction, now_s: float) -> bool:
    """Return whether the checker may have decided by now, where only the clock keeps both apart (R6)."""
    context, until_s = transaction.context, transaction.give_way_s
    if context.store_arbitrates:
        if context.arbitrates_s is None:
            return False
        if until_s is not None:
            # A resolution is written after the half, and remembered for so long; the release takes the margin.
            until_s = max(until_s, until_s - transaction.immunity_s + context.arbitrates_s)
    return until_s is None or now_s > until_s


def _repeated(transaction: LocalTransaction, kind: OpKind) -> EndResult:
    first = transaction.result
    assert first is not None
    if transaction.asked is not kind:
        accepted = first.state in {EndState.ACCEPTED, EndState.ALREADY_DONE, EndState.VIA_TABLE}
        return EndResult(EndState.CONFLICT if accepted else first.state, first.transaction_id, first.error)
    if first.state is EndState.ACCEPTED:
        return EndResult(EndState.ALREADY_DONE, first.transaction_id)
    return first
