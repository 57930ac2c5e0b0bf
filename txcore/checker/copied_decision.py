"""A copy's decision is only what its writer says: the DECIDED in the op log proves it (R8).

Otherwise a program that may append to the half log alone could have messages published that no check has decided.
"""

from __future__ import annotations

from typing import Final

from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.log_reader import ops_in
from txcore.checker.tenure import Tenure
from txcore.records import OpKind, ParkCode
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow

UNPROVEN_REASON: Final = (
    "a copy says that it is decided, and the op log has no DECIDED where the copy names it: retention has removed it, "
    "or the copy is forged"
)


def is_proven(tenure: Tenure, pending: Pending) -> Flow[bool]:
    """Return whether the decision may be acted upon; else the half is judged as if it had none.

    Then a fence is asked again, which gives the same answer. Without a fence the half is parked, as the listener may
    answer otherwise than before.

    Raises:
        TxcoreError: the op log could not be read.
    """
    if not pending.extras.is_unproven:
        return True
    place = pending.extras.decided_at
    record = (yield from tenure.logs.op_at(place)) if place >= 0 else None
    if not tenure.may_write or pending.is_closed:
        return False
    for op in ops_in(tenure, record) if record is not None else ():
        is_about_it = op.kind == OpKind.DECIDED and op.transaction_id == pending.transaction_id
        if is_about_it and op.token and op.decision == pending.decision:
            pending.note(is_unproven=False, forced=op.forced)
            return True
    tenure.context.report.event(names.HALF_UNPROVEN, transaction_id=pending.transaction_id)
    pending.note(is_unproven=False, decided_at=-1, missing=None)
    pending.decision, pending.is_journaled = 0, False
    if not pending.terms.asks_fence:
        pending.note(park=(ParkCode.COVERAGE_GAP, UNPROVEN_REASON))
    pending.due_ms = AT_ONCE_MS
    return False
