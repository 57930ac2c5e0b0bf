"""Carrying forward: a copy of an undecided half is appended, so that the older record may be forgotten (R8)."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Final

import msgspec

from txcore import wire
from txcore.checker import in_hand
from txcore.checker.decide import Decision, Pending, decide
from txcore.checker.immunity import kept_by_copy
from txcore.checker.look_back import learn_journals
from txcore.checker.partition_state import NOWHERE
from txcore.checker.tenure import Tenure
from txcore.records import Half, HalfRecord, ParkCode, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow

CARRY_DISTANCE: Final = 2
"""Number of records after a half, for each undecided one, that do not count as holding the checkpoint back."""


def carry_oldest(tenure: Tenure) -> Flow[None]:
    """Carry forward halves that retention would soon eat, or that hold the checkpoint back too far."""
    limits, state = tenure.context.limits, tenure.state
    capabilities = tenure.context.backend.capabilities
    kept_s = (capabilities.half_retention_s, capabilities.resolution_kept_s)  # a copy names a place in the op log
    retention_s = min((each for each in kept_s if each is not None), default=None)
    # A restart reads the undecided ones in any case; if each copy made others be carried, it would never end.
    far = limits.replay_max + CARRY_DISTANCE * (state.pending_count + state.held_count)
    if retention_s is None and state.replay_count <= far:
        return
    state.pass_closed()
    now_ms = tenure.now_ms()
    chosen: list[Pending] = []
    for after_count, pending in islice(state.oldest_open(), limits.batch_count_max):
        is_old = retention_s is not None and now_ms - pending.copied_ms > retention_s * 500
        must_carry = (is_old or after_count > far) and not pending.is_unreadable
        if not must_carry and after_count <= far:
            break
        if tenure.in_hand + len(chosen) >= limits.batch_count_max:
            break
        if pending.is_busy or pending.extras.outdone_count:
            continue
        if decide(pending, now_ms, must_carry=must_carry) is Decision.CARRY:
            chosen.append(pending)
            # Not at every turn, if the log does not answer.
            pending.note(carry_again_ms=now_ms + limits.retry_s * 1000)
    chosen = [each for each in (yield from learn_journals(tenure, chosen)) if not (each.is_closed or each.is_busy)]
    yield from in_hand.start_chunks(tenure, chosen, partial(in_hand.together, step=carry))


def carry(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Append a copy with the journal folded in.

    Not of a half that was closed meanwhile: the copy would say that its journal is folded to a place after its end.
    """
    context = tenure.context
    half = yield from tenure.logs.half_of(pending)
    if not tenure.may_write or pending.is_closed:
        return
    tenure.logs.gap.mark(pending)  # its new record is younger than the gap
    again_ms = tenure.now_ms() + context.limits.read_back_s * 1000
    pending.note(carry_again_ms=again_ms)
    if pending.extras.outdone_count:
        pending.due_ms = again_ms
    copy = yield from tenure.logs.proofs.prove(copy_of(tenure, half, pending))
    if copy is None or not tenure.may_write or pending.is_closed:
        return
    body = wire.encode_half(copy)
    outcome = yield HalfRecord(half.group, tenure.partition, half.transaction_id, copy.generation, body, ())
    if outcome.status is Status.DURABLE:
        context.report.event(names.HALF_CARRIED, transaction_id=pending.transaction_id)
        context.counts["carried"] += 1


def copy_of(tenure: Tenure, half: Half, pending: Pending) -> Half:
    """Return a copy of *half* with its journal folded in as far as this owner knows it.

    A copy holds no request of an operator, so its journal begins at an open one. Nor does it hold ops that wait for
    a generation which was not read yet: it begins before them. Nor ops that retention has removed unread: of such a
    half that no fence decides the copy names the place of the last one, or none, and no COMMITTED: another final op may
    have come before that.
    """
    state, extras = tenure.state, pending.extras
    folded_to, token = -1 if state.op_read is None else state.op_read, state.token
    final_at = extras.final_at
    if extras.park is not None and extras.park[0] is ParkCode.COVERAGE_GAP:
        folded_to, token = extras.copied_from or NOWHERE
        final_at = -1
    for place in (extras.force_at, state.waiting_from(pending.transaction_id)):
        if place is not None and place[0] <= folded_to:
            folded_to, token = place
    return msgspec.structs.replace(
        half,
        generation=pending.next_generation,
        count=pending.count,
        folded_to=folded_to,
        decided=pending.decision if pending.is_journaled else 0,
        forced=extras.forced if pending.is_journaled else 0,
        proved_at=-1,
        token=token,
        missing=list(extras.missing or ()),
        final_at=final_at,
        first_position=extras.first_position,
        held_at=extras.held_at,
        version=max(half.version, wire.OWNER_VERSION if pending.is_committed else wire.VERSION),
        **kept_by_copy(tenure, half, pending),
    )
