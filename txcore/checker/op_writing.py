"""The ops that an owner writes about its halves, under its claim, and the consequence of the broker's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcore.checker import retry_backoff
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.tenure import Tenure
from txcore.op_rules import PlacedOp, outcome_of
from txcore.records import DECIDING_KINDS, REASON_SIZE_MAX, Half, HalfRecord, Op, OpKind, Outcome, Resolution, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow


def resolution(
    tenure: Tenure,
    pending: Pending,
    kind: OpKind,
    *,
    half: Half | None = None,
    targets: Sequence[int] = (),
    parked: bytes = b"",
    reason: str = "",
    position: int = -1,
    **fields: Any,
) -> Resolution:
    """Return an op about *pending* under the owner's claim, with the targets released before it.

    Args:
        position: The place of the COMMITTED that this op follows, if it does.
        fields: Further fields of the op.
    """
    context, identity, generation = tenure.context, pending.transaction_id, pending.next_generation
    fields.update(by=context.by, at_ms=context.clock.wall_ms(), token=tenure.token, reason=reason[:REASON_SIZE_MAX])
    is_plain = position < 0 and kind is not OpKind.RELEASED
    op = Op(kind, identity, generation, **fields)
    if not is_plain:
        op = PlacedOp(kind, identity, generation, position=position, **fields)
    messages = half.messages if half is not None else ()
    record = HalfRecord(context.group, tenure.partition, identity, generation, b"", messages)
    return Resolution(record, op, targets, parked, context.by, flush=True)


def write(tenure: Tenure, pending: Pending, kind: OpKind, **fields: Any) -> Flow[bool]:
    """Write an op; returns whether it is stored. See `resolution` and `went_well`."""
    outcome = yield resolution(tenure, pending, kind, **fields)
    return went_well(tenure, pending, outcome)


def went_well(tenure: Tenure, pending: Pending, outcome: Outcome) -> bool:
    """Return whether *outcome* is DURABLE; deal with every other one."""
    status, decision = outcome.status, outcome.decision
    if status is Status.SUPERSEDED:
        if pending.decision and decision in DECIDING_KINDS and outcome_of(decision) != pending.decision:
            tenure.context.report.event(names.OP_CONFLICT, transaction_id=pending.transaction_id, first=decision)
        if decision == OpKind.COMMITTED:
            _found_committed(tenure, pending)
        elif decision == OpKind.DISCARD:
            # Only the log shows whether it is in force. If the half is still open after the next tick, it is not.
            pending.note(outdone_count=pending.extras.outdone_count + 1)
            pending.due_ms = AT_ONCE_MS
        else:
            tenure.state.close(pending, decision)
    elif status is Status.FENCED:
        tenure.stand_down("fenced")
    elif status is not Status.DURABLE:
        retry_backoff.put_off(tenure, pending, outcome.error)
    return status is Status.DURABLE


def _found_committed(tenure: Tenure, pending: Pending) -> None:
    """Wait for a COMMITTED that the store has: it closes nothing, and its half is released once it was read back.

    Where it was not read by the next tick, retention has removed it. Then the store's answer counts: no other final op
    is there.
    """
    if pending.extras.is_taken and not pending.is_committed:
        pending.commit(tenure.state.op_read or 0, tenure.now_ms())
    pending.note(is_taken=True)
    pending.due_ms = AT_ONCE_MS


def journal_decision(tenure: Tenure, pending: Pending, decision: OpKind, **fields: Any) -> Flow[None]:
    """Write DECIDED before anything is done with an answer that no fence holds (R4); acted upon once read back."""
    if (yield from write(tenure, pending, OpKind.DECIDED, decision=decision, **fields)):
        pending.due_ms = AT_ONCE_MS
