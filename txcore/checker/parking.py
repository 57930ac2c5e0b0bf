"""Parking: a half that cannot be decided or delivered is stored with its reason, then closed by DISCARD (R3, R11)."""

from __future__ import annotations

import msgspec

from txcore import wire
from txcore.checker import op_writing
from txcore.checker.decide import Pending
from txcore.checker.tenure import Tenure
from txcore.records import REASON_SIZE_MAX, Half, OpKind, ParkCode, Parked
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow


def park(tenure: Tenure, pending: Pending, code: ParkCode, reason: str) -> Flow[None]:
    """Confirm the parked record, then write DISCARD; an undeliverable half's decision comes first."""
    context, identity = tenure.context, pending.transaction_id
    if code is ParkCode.UNDELIVERABLE and not pending.is_settled:
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
        half=pending.extras.poison or (wire.encode_half(with_places(half, pending)) if half else b""),
        missing=list(pending.extras.missing or ()),
    )
    if not tenure.may_write or pending.is_closed:
        return
    if not context.backend.capabilities.atomic_release:
        tenure.state.note_entry(identity, pending.next_generation)
    record = wire.encode_parked(parked)
    places = {"half": half, "parked": record, "reason": code, "position": pending.extras.final_at}
    if (yield from op_writing.write(tenure, pending, OpKind.DISCARD, **places)):
        pending.due_ms = tenure.now_ms() + context.limits.read_back_s * 1000
        context.report.event(names.HALF_PARKED, transaction_id=identity, code=code, reason=reason)
        context.report.discard(half, reason)
        context.counts["parked"] += 1


def with_places(half: Half, pending: Pending) -> Half:
    """Return the half with the places of its first record and of its COMMITTED, of which only it may know later."""
    if not (pending.is_committed or pending.extras.order_key):
        return half
    version, extras = max(half.version, wire.OWNER_VERSION), pending.extras
    return msgspec.structs.replace(
        half, final_at=extras.final_at, first_position=extras.first_position, held_at=-1, version=version
    )
