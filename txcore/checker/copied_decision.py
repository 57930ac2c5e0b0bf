"""A copy's decision is only what its writer says: the DECIDED in the op log proves it (R8).

Otherwise a program that may append to the half log alone could have messages published that no check has decided.
"""

from __future__ import annotations

from typing import Final

from txcore.checker import retry_backoff
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.fence_check import DECISIONS, read_fence
from txcore.checker.log_reader import ops_in
from txcore.checker.tenure import Tenure
from txcore.fence import FenceAnswer
from txcore.records import Op, OpKind, ParkCode
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow

UNPROVEN_REASON: Final = (
    "a copy says that it is decided, and the op log has no DECIDED where the copy names it: retention has removed it, "
    "or the copy is forged"
)


def is_proven(tenure: Tenure, pending: Pending) -> Flow[bool]:
    """Return whether the decision may be acted upon; otherwise the half is parked, unless it is put off.

    Without the op, a fence that gives the same answer is a proof as well. A decision that this owner has read itself
    replaces one that has no proof.

    Raises:
        TxcoreError: the op log could not be read.
    """
    extras = pending.extras
    if not extras.is_unproven:
        return True
    if extras.proven is not None and extras.proven[0] == pending.decision:
        return _believe(pending, extras.proven)
    record = (yield from tenure.logs.op_at(extras.decided_at)) if extras.decided_at >= 0 else None
    if not tenure.may_write or pending.is_closed:
        return False
    for op in ops_in(tenure, record) if record is not None else ():
        if _proves(tenure, pending, op):
            pending.note(is_unproven=False, forced=op.forced)
            return True
    if extras.proven is not None:
        return _believe(pending, extras.proven)
    return (yield from _is_said_by_fence(tenure, pending))


def _believe(pending: Pending, proven: tuple[int, int, int]) -> bool:
    """Take the decision that this owner has read in the op log."""
    pending.decision, decided_at, forced = proven
    pending.note(is_unproven=False, decided_at=decided_at, forced=forced)
    return True


def _proves(tenure: Tenure, pending: Pending, op: Op) -> bool:
    is_about_it = op.kind == OpKind.DECIDED and op.transaction_id == pending.transaction_id
    is_void = not op.token or pending.extras.decided_at in tenure.state.void_decisions
    return is_about_it and op.decision == pending.decision and not is_void


def _is_said_by_fence(tenure: Tenure, pending: Pending) -> Flow[bool]:
    """Return whether the fence decides alone, and as the copy says; park the half if it does not."""
    if pending.terms.fenced:
        reading = (yield from read_fence(tenure, [pending]))[pending.transaction_id]
        if not tenure.may_write or pending.is_closed:
            return False
        if reading.answer is FenceAnswer.NO_ANSWER:
            retry_backoff.put_off(tenure, pending, None, reading.retry_after_s)
            return False
        if DECISIONS.get(reading.answer) == pending.decision:
            missing = () if reading.answer is FenceAnswer.SENT else pending.extras.missing
            pending.note(is_unproven=False, missing=missing)
            return True
    tenure.context.report.event(names.HALF_UNPROVEN, transaction_id=pending.transaction_id)
    pending.note(is_unproven=False, decided_at=-1, missing=None, park=(ParkCode.COVERAGE_GAP, UNPROVEN_REASON))
    pending.decision, pending.is_journaled = 0, False
    pending.due_ms = AT_ONCE_MS
    return False
