"""How a prepared transaction ends: commit, rollback, or giving way to the checker."""

from __future__ import annotations

from txcore.commands import Call, Flow
from txcore.errors import TransactionStateError
from txcore.fence import FenceAnswer
from txcore.ids import id_text
from txcore.records import Op, OpKind, Outcome, Resolution, Status
from txcore.results import EndResult, EndState
from txcore.transaction import LocalTransaction, Phase


def end(transaction: LocalTransaction, kind: OpKind) -> Flow[EndResult]:
    """Commit or roll back a prepared transaction; idempotent.

    Raises:
        TransactionStateError: not prepared, or the fenced database transaction is still open.
    """
    if transaction.phase is Phase.ENDED:
        return _repeated(transaction, kind)
    require(transaction, Phase.PREPARED)
    context = transaction.context
    if (
        transaction.connection is not None
        and context.fence is not None
        and context.fence.is_open(transaction.connection)
    ):
        raise TransactionStateError("the prepared connection's transaction is still open; end it first")
    began_s = now_s(transaction)
    transaction.asked = kind
    # Whoever asks again while this end is under way, or after it was cancelled, learns that it is not certain.
    transaction.phase, transaction.result = Phase.ENDED, EndResult(EndState.UNKNOWN, transaction.transaction_id)
    result = None
    if needs_tombstone(transaction, kind):
        result = yield from tombstone(transaction)
    if result is None:
        resolution, result = choose_end(transaction, kind)
        if resolution is not None:
            outcome = yield resolution
            result = result or end_result(transaction, kind, outcome)
    assert result is not None
    return finish_end(transaction, kind, result, began_s)


def choose_end(transaction: LocalTransaction, kind: OpKind) -> tuple[Resolution | None, EndResult | None]:
    """Return what to release now, and the result where that does not depend on how the release goes.

    To be handed over at once: a producer gives way by the clock, and this is where it is read. Behind a tombstone
    the fence has decided, so that it may take as long as it likes.
    """
    identity = transaction.transaction_id
    if transaction.is_via_table:  # a half that is there all the same is closed by the check
        state = EndState.VIA_TABLE if kind is OpKind.COMMIT else EndState.ACCEPTED
        return None, EndResult(state, identity)
    if _must_give_way(transaction) and not needs_tombstone(transaction, kind):
        return resolution_of(transaction, OpKind.NUDGE), EndResult(EndState.TOO_LATE, identity)
    return resolution_of(transaction, kind), None


def end_result(transaction: LocalTransaction, kind: OpKind, outcome: Outcome) -> EndResult:
    """Return what the outcome of a release says about the end."""
    identity = transaction.transaction_id
    if outcome.status is Status.DURABLE:
        return EndResult(EndState.ACCEPTED, identity)
    if outcome.status is Status.SUPERSEDED:
        if outcome.decision == kind:
            return EndResult(EndState.ALREADY_DONE, identity)
        late = outcome.decision == OpKind.DISCARD
        return EndResult(EndState.TOO_LATE if late else EndState.CONFLICT, identity, outcome.error)
    return EndResult(EndState.UNKNOWN, identity, outcome.error)


def finish_end(transaction: LocalTransaction, kind: OpKind, result: EndResult, began_s: float) -> EndResult:
    """Keep the result for whoever asks again, and tell the observer."""
    transaction.asked, transaction.phase, transaction.result = kind, Phase.ENDED, result
    observer = transaction.context.observer
    if observer is not None:
        observer.ended(transaction.transaction_id, began_s, kind.name, result.state.value)
    return result


def now_s(transaction: LocalTransaction) -> float:
    """Return the reading of the clock for an observer; 0 where nobody observes."""
    context = transaction.context
    return 0.0 if context.observer is None else context.clock.elapsed_s()


def ran_local(transaction: LocalTransaction, began_s: float, state: str) -> None:
    """Tell the observer how the local transaction ended."""
    if transaction.context.observer is not None:
        transaction.context.observer.ran_local(transaction.transaction_id, began_s, state)


def resolution_of(transaction: LocalTransaction, kind: OpKind) -> Resolution:
    """Return the op of *kind*, with all targets if it commits."""
    assert transaction.half is not None
    context = transaction.context
    op = Op(kind, transaction.transaction_id, transaction.half.generation, context.by, context.clock.wall_ms())
    targets = range(len(transaction.half.messages)) if kind is OpKind.COMMIT else ()
    return Resolution(transaction.half, op, targets, b"", context.by)


def needs_tombstone(transaction: LocalTransaction, kind: OpKind) -> bool:
    """Return whether the fence must say first that nothing of it was committed (R5)."""
    return kind is OpKind.ROLLBACK and transaction.fenced


def tombstone(transaction: LocalTransaction) -> Flow[EndResult | None]:
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


def require(transaction: LocalTransaction, phase: Phase) -> None:
    """Refuse what *transaction* is not in the phase for.

    Raises:
        TransactionStateError: it is in another one.
    """
    if transaction.phase is not phase:
        raise TransactionStateError(
            f"transaction {id_text(transaction.transaction_id)} is {transaction.phase.value}, not {phase.value}"
        )


def _must_give_way(transaction: LocalTransaction) -> bool:
    """Return whether the checker may be deciding by now, with nobody but the clock to keep both apart (R6)."""
    if transaction.context.store_arbitrates:
        return False
    return transaction.give_way_s is None or transaction.context.clock.elapsed_s() > transaction.give_way_s


def _repeated(transaction: LocalTransaction, kind: OpKind) -> EndResult:
    first = transaction.result
    assert first is not None
    if transaction.asked is not kind:
        accepted = first.state in {EndState.ACCEPTED, EndState.ALREADY_DONE, EndState.VIA_TABLE}
        return EndResult(EndState.CONFLICT if accepted else first.state, first.transaction_id, first.error)
    if first.state is EndState.ACCEPTED:
        return EndResult(EndState.ALREADY_DONE, first.transaction_id)
    return first
