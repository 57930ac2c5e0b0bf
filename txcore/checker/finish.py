"""The end of a decided half: its targets are published, then its final op is written (R3).

A half that its owner releases needs a COMMITTED first, which is read back as the first final op in log order (R17).
Only a half whose messages the message table's relay has sent is ended without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.checker import in_hand, op_writing, retry_backoff
from txcore.checker.decide import AT_ONCE_MS, NEVER_MS, Decision, Pending, decide
from txcore.checker.tenure import Tenure
from txcore.history.parked_entries import closed_record
from txcore.op_rules import outcome_of
from txcore.records import OpKind, Outcome, ParkCode, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow
from txcore.runtime.instrumentation import trace_of

FOLLOW_S: Final = 0.5
"""Longest time, in seconds, since an owner wrote its last mark that was read back, for which halves follow each other.

A replaced owner whose reader is silent publishes no longer than that.
"""


def finish(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Publish a committed half's targets, or none, and write its final op."""
    context = tenure.context
    half = yield from tenure.logs.half_of(pending)
    if not tenure.may_write or pending.is_closed:
        return
    kind, began_s = OpKind(pending.decision), context.clock.elapsed_s()
    is_commit = kind is OpKind.COMMIT
    if is_commit and (half.is_by_owner or pending.is_committed):
        if lacks_committed(pending):
            yield from _commit(tenure, pending)
            return
        kind = OpKind.RELEASED
    if is_commit and not may_release(tenure, pending):
        return
    targets: Sequence[int] = ()
    if is_commit:
        missing = pending.extras.missing
        targets = range(len(half.messages)) if missing is None else missing
    closed = b""
    if pending.generation:  # it was parked before: its entry must not come back once retention has eaten the ops
        # Not up to its own generation: should this release fail, the half may be parked under that one.
        before = pending.generation - 1
        closed = closed_record(pending.transaction_id, before, context.by, context.clock.wall_ms(), tenure.token)
    outcome = yield op_writing.resolution(
        tenure,
        pending,
        kind,
        half=half,
        targets=targets,
        parked=closed,
        position=pending.extras.final_at,
        forced=pending.extras.forced,
    )
    status, following = outcome.status, None
    if status is Status.DURABLE:
        if is_commit:  # nothing is left to publish; after a ROLLBACK all is, should a COMMITTED come before it
            pending.note(missing=())
            following = tenure.state.released(pending)
        pending.due_ms = tenure.now_ms() + context.limits.read_back_s * 1000
        identity, took_s, trace = half.transaction_id, context.clock.elapsed_s() - began_s, trace_of(half)
        end = OpKind(outcome_of(kind)).name
        context.report.event(names.HALF_FINISHED, transaction_id=identity, end=end, took_s=took_s, trace=trace)
        context.counts[end.lower()] += 1
        if following is not None and may_follow(tenure, following):
            yield from in_hand.start(tenure, following, finish(tenure, following))
    elif status is Status.REFUSED and is_commit and outcome.missing:
        _refused(tenure, pending, outcome)
    else:
        op_writing.went_well(tenure, pending, outcome)
        if status is Status.UNKNOWN and is_commit:
            pending.note(missing=outcome.missing)


def may_release(tenure: Tenure, pending: Pending) -> bool:
    """Return whether a half may be published now: one with an order key only if it is the first of that key (R18).

    If not, it is due when all earlier ones are over. Nothing ordered is published before the owner has read the half
    log to where that ended when its claim came back: until then a copy of an earlier half may come.
    """
    if not (pending.extras.order_key and pending.is_committed):
        return True
    if tenure.is_replaying:
        pending.due_ms = tenure.now_ms() + tenure.context.limits.retry_s * 1000
        return False
    if tenure.state.order.is_first(pending.transaction_id):
        return True
    pending.due_ms = NEVER_MS
    return False


def may_follow(tenure: Tenure, pending: Pending) -> bool:
    """Return whether a half may be published at once after the one before it in its order key, without a tick.

    Its COMMITTED was read back as the first final op, and no later op changes that. A half that this owner has tried to
    release needs a tick that was written afterwards (R17); one of the round that is under way has a tick. One whose
    record or journal must be read waits for others like it. Other halves need their rounds, so there must be room.
    """
    extras = pending.extras
    is_new = not extras.failures and not extras.refusals and extras.missing is None and extras.look_back is None
    is_taken = pending.is_busy or pending.transaction_id in tenure.in_round
    if not is_new or is_taken or not tenure.has_room or not tenure.may_write or tenure.is_draining:
        return False
    if tenure.context.clock.elapsed_s() - tenure.marked_s > FOLLOW_S or not tenure.logs.has_body(pending):
        return False
    tenure.logs.gap.mark(pending)
    return decide(pending, tenure.now_ms(), must_carry=False) is Decision.FINISH


def lacks_committed(pending: Pending) -> bool:
    """Return whether nothing of a half that is decided COMMIT may be published yet, nor said to be.

    After the message table's relay no COMMITTED is written: a successor would publish the messages a second time.
    """
    return not pending.is_committed and pending.extras.missing != ()


def _commit(tenure: Tenure, pending: Pending) -> Flow[None]:
    """Write COMMITTED; it is acted upon once read back."""
    if (yield from op_writing.write(tenure, pending, OpKind.COMMITTED, forced=pending.extras.forced)):
        pending.due_ms = AT_ONCE_MS


def _refused(tenure: Tenure, pending: Pending, outcome: Outcome) -> None:
    """Retry a release that a target itself refused; after `refusals_max`, park the half as undeliverable (R9)."""
    context = tenure.context
    pending.note(missing=outcome.missing, refusals=pending.extras.refusals + 1)
    context.report.event(names.RELEASE_REFUSED, transaction_id=pending.transaction_id, error=repr(outcome.error))
    if pending.extras.refusals < context.limits.refusals_max:
        retry_backoff.put_off(tenure, pending)
        return
    pending.note(park=(ParkCode.UNDELIVERABLE, f"targets {list(outcome.missing)} refuse: {outcome.error}"))
    pending.due_ms = AT_ONCE_MS
