"""The ends of a half: what must be stored of it is confirmed, then its op is written (R3, R11).

A decided half has its targets published before its final op. A half that cannot be decided or delivered is parked: it
is stored with its reason before its DISCARD.
"""

from __future__ import annotations

from collections.abc import Sequence

from txcore import wire
from txcore.checker import op_writing
from txcore.checker.decide import AT_ONCE_MS, Pending
from txcore.checker.tenure import Tenure
from txcore.history.parked_entries import closed_record
from txcore.records import REASON_SIZE_MAX, OpKind, Outcome, ParkCode, Parked, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow
from txcore.runtime.instrumentation import trace_of


def finish(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Publish a committed half's targets, or none, and write its final op."""
    context = tenure.context
    half = yield from tenure.logs.half_of(pending)
    if not tenure.may_write or pending.is_closed:
        return
    kind, began_s = OpKind(pending.decision), context.clock.elapsed_s()
    targets: Sequence[int] = ()
    if kind is OpKind.COMMIT:
        missing = pending.extras.missing
        targets = range(len(half.messages)) if missing is None else missing
    closed = b""
    if pending.generation:  # it was parked before: its entry must not come back once retention has eaten the ops
        # Not up to its own generation: should this release fail, the half may be parked under that one.
        before = pending.generation - 1
        closed = closed_record(pending.transaction_id, before, context.by, context.clock.wall_ms(), tenure.token)
    outcome = yield op_writing.resolution(
        tenure, pending, kind, half=half, targets=targets, parked=closed, forced=pending.extras.forced
    )
    status = outcome.status
    if status is Status.DURABLE:
        pending.note(missing=())
        pending.due_ms = tenure.now_ms() + context.limits.read_back_s * 1000
        identity, took_s, trace = half.transaction_id, context.clock.elapsed_s() - began_s, trace_of(half)
        context.report.event(names.HALF_FINISHED, transaction_id=identity, end=kind.name, took_s=took_s, trace=trace)
        context.counts[kind.name.lower()] += 1
    elif status is Status.REFUSED and kind is OpKind.COMMIT and outcome.missing:
        _refused(tenure, pending, outcome)
    else:
        op_writing.went_well(tenure, pending, outcome)
        if status is Status.UNKNOWN and kind is OpKind.COMMIT:
            pending.note(missing=outcome.missing)


def _refused(tenure: Tenure, pending: Pending, outcome: Outcome) -> None:
    """Retry a release that a target itself refused; after `refusals_max`, park the half as undeliverable (R9)."""
    context = tenure.context
    pending.note(missing=outcome.missing, refusals=pending.extras.refusals + 1)
    context.report.event(names.RELEASE_REFUSED, transaction_id=pending.transaction_id, error=repr(outcome.error))
    if pending.extras.refusals < context.limits.refusals_max:
        tenure.put_off(pending)
        return
    pending.note(park=(ParkCode.UNDELIVERABLE, f"targets {list(outcome.missing)} refuse: {outcome.error}"))
    pending.due_ms = AT_ONCE_MS


def park(tenure: Tenure, pending: Pending, code: ParkCode, reason: str) -> Flow[None]:
    """Confirm the parked record, then write DISCARD; an undeliverable half's decision comes first."""
    context, identity = tenure.context, pending.transaction_id
    if code is ParkCode.UNDELIVERABLE and not pending.is_journaled:
        yield from op_writing.journal_decision(tenure, pending, OpKind.COMMIT, forced=pending.extras.forced)
        return
    half = None if pending.is_unreadable else (yield from tenure.logs.half_of(pending))
    parked = Parked(
        version=wire.VERSION,
        transaction_id=identity,
        generation=pending.next_generation,
        code=code,
        reason=reason[:REASON_SIZE_MAX],
        count=pending.count,
        by=context.by,
        at_ms=context.clock.wall_ms(),
        token=tenure.token,
        half=pending.extras.poison or (wire.encode_half(half) if half else b""),
        missing=list(pending.extras.missing or ()),
    )
    if not tenure.may_write or pending.is_closed:
        return
    if not context.backend.capabilities.atomic_release:
        tenure.state.note_entry(identity, pending.next_generation)
    record = wire.encode_parked(parked)
    if (yield from op_writing.write(tenure, pending, OpKind.DISCARD, half=half, parked=record, reason=code)):
        pending.due_ms = tenure.now_ms() + context.limits.read_back_s * 1000
        context.report.event(names.HALF_PARKED, transaction_id=identity, code=code, reason=reason)
        context.report.discard(half, reason)
        context.counts["parked"] += 1
