"""The step of each half that is due, after a tick which its owner has read back."""

from __future__ import annotations

from functools import partial

from txcore.checker import (
    carrying,
    fence_check,
    finish,
    forced_decision,
    in_hand,
    listener_check,
    parking,
)
from txcore.checker.decide import Decision, Pending, decide
from txcore.checker.look_back import learn_journals
from txcore.checker.tenure import Tenure
from txcore.records import OpKind, ParkCode
from txcore.runtime.commands import Flow


def judge(tenure: Tenure, due: list[Pending]) -> Flow[None]:
    """Judge halves that were due before a tick which has come back; each step is a flow of its own."""
    fenced, read = [], []
    due = yield from learn_journals(tenure, due)
    now_ms = tenure.now_ms()
    for pending in due:
        if not tenure.may_write:
            return
        tenure.logs.gap.mark(pending)
        decision = decide(pending, now_ms, must_carry=False)
        if decision is Decision.CHECK and (left_ms := _interval_left_ms(tenure, pending)) > 0:
            tenure.state.schedule(pending, now_ms + left_ms)
        elif decision is Decision.CHECK and pending.terms.asks_fence:
            fenced.append(pending)
        elif decision is Decision.HOLD:
            tenure.state.close(pending, OpKind.DISCARD)
        elif decision is Decision.FINISH and not finish.may_release(tenure, pending):
            tenure.state.schedule(pending, pending.due_ms)
        elif decision in {Decision.CHECK, Decision.FINISH}:
            read.append(pending)
        elif decision is Decision.WAIT:
            tenure.state.schedule(pending, max(pending.due_ms, pending.immune_until_ms))
        elif decision is not Decision.DONE:
            yield from in_hand.start(tenure, pending, _flow_for(tenure, pending, decision))
    yield from in_hand.start_chunks(tenure, fenced, fence_check.check)
    yield from in_hand.start_chunks(tenure, read, partial(in_hand.together, step=_finish_or_ask))


def _interval_left_ms(tenure: Tenure, pending: Pending) -> float:
    """Return how much is left of the interval since the last answer, which another owner may have received.

    A question asked anew by each owner would use up the checks of a half whose partition changes hands often. An
    answer from the future, by the clock of this process, delays nothing.
    """
    age_ms = tenure.context.clock.wall_ms() - pending.extras.checked_at_ms
    return pending.terms.interval_ms - age_ms if age_ms >= 0 else 0.0


def _flow_for(tenure: Tenure, pending: Pending, decision: Decision) -> Flow[None]:
    if decision is Decision.DISCARD:
        return parking.park(tenure, pending, ParkCode.CHECKS_EXHAUSTED, f"{pending.count} checks were answered UNKNOWN")
    if decision is Decision.PARK:
        assert pending.extras.park is not None
        return parking.park(tenure, pending, *pending.extras.park)
    if decision is Decision.FORCE:
        return forced_decision.force(tenure, pending)
    assert decision is Decision.CARRY
    return carrying.carry(tenure, pending)


def _finish_or_ask(tenure: Tenure, pending: Pending) -> Flow[None]:
    return finish.finish(tenure, pending) if pending.decision else listener_check.ask(tenure, pending)
