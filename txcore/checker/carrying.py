"""Copies of undecided halves (R8): one is appended, so that the older record may be forgotten.

Looking back is the other side: the op log is read again from where the journal of a carried or resumed copy begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from txcore import wire
from txcore.checker import in_hand, log_reader
from txcore.checker.decide import Decision, Pending, decide
from txcore.checker.immunity import kept_by_copy
from txcore.checker.tenure import Tenure
from txcore.errors import BackendTimeoutError, DataLossError
from txcore.records import Half, HalfRecord, LogKind, OpKind, ParkCode, Position, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow

CARRY_DISTANCE: Final = 2
"""Number of records after a half, for each undecided one, that do not count as holding the checkpoint back."""


def carry_oldest(tenure: Tenure) -> Flow[None]:
    """Carry forward halves that retention would soon eat, or that hold the checkpoint back too far."""
    limits, state = tenure.context.limits, tenure.state
    retention_s = tenure.context.backend.capabilities.half_retention_s
    # A restart reads the undecided ones in any case; if each copy made others be carried, it would never end.
    far = limits.replay_max + CARRY_DISTANCE * state.pending_count
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
    again_ms = tenure.now_ms() + context.limits.read_back_s * 1000
    pending.note(carry_again_ms=again_ms)
    if pending.extras.outdone_count:
        pending.due_ms = again_ms
    copy = copy_of(tenure, half, pending)
    body = wire.encode_half(copy)
    outcome = yield HalfRecord(half.group, tenure.partition, half.transaction_id, copy.generation, body, ())
    if outcome.status is Status.DURABLE:
        context.report.event(names.HALF_CARRIED, transaction_id=pending.transaction_id)
        context.counts["carried"] += 1


def copy_of(tenure: Tenure, half: Half, pending: Pending) -> Half:
    """Return a copy of *half* with its journal folded in as far as this owner knows it.

    A copy holds no request of an operator, so its journal begins at an open one. Nor does it hold ops that wait for
    a generation which was not read yet: it begins before them.
    """
    state, extras = tenure.state, pending.extras
    folded_to, token = -1 if state.op_read is None else state.op_read, state.token
    for place in (extras.force_at, state.waiting_from(pending.transaction_id)):
        if place is not None and place[0] <= folded_to:
            folded_to, token = place
    return msgspec.structs.replace(
        half,
        generation=pending.next_generation,
        count=pending.count,
        folded_to=folded_to,
        decided=pending.decision if pending.is_journaled else 0,
        token=token,
        missing=list(extras.missing or ()),
        **kept_by_copy(tenure, half, pending),
    )


def learn_journals(tenure: Tenure, halves: list[Pending]) -> Flow[list[Pending]]:
    """Look back for the copies among *halves*; returns the halves whose journal is known."""
    copies = [pending for pending in halves if pending.extras.look_back is not None]
    if not copies:
        return halves
    try:
        yield from look_back(tenure, copies)
    except BackendTimeoutError as error:
        for pending in copies:
            tenure.put_off(pending, error)
            tenure.state.schedule(pending, pending.due_ms)
    return [pending for pending in halves if pending.extras.look_back is None]


def look_back(tenure: Tenure, copies: Sequence[Pending]) -> Flow[None]:
    """Fold the op log from where the journals of *copies* begin up to where this owner has read.

    Raises:
        TxcoreError: it could not be read to that place; the copies are still to be looked back for.
    """
    begins = {each.transaction_id: each.extras.look_back for each in copies if each.extras.look_back is not None}
    waiting = {pending.transaction_id: pending for pending in copies}
    starts = sorted(begins.values())
    (position, token), kept_from = starts[0], -1
    clock, limits, state = tenure.context.clock, tenure.context.limits, tenure.state
    until = -1 if state.op_read is None else state.op_read
    reader = tenure.reader(LogKind.OP, Position(position))
    deadline_s = clock.elapsed_s() + limits.mark_timeout_s
    try:
        while position < until and reader.passed <= until:
            try:
                records = [each for each in reader.read(limits.read_count_max) if each.position <= until]
            except DataLossError as loss:
                reader.close()
                reader, records = tenure.reopened(LogKind.OP, loss), []
                # The claim in force after the gap is not known before one is read, or a copy names it.
                kept_from, token = until + 1 if loss.first is None else loss.first, b""
                starts = [each for each in starts if each[0] >= kept_from]
            for record in records:
                position = record.position
                while starts and starts[0][0] <= position:
                    token = starts.pop(0)[1]
                for op in log_reader.ops_in(tenure, record):
                    if op.kind == OpKind.CLAIM:
                        token = op.token
                    elif (pending := waiting.get(op.transaction_id)) is not None:
                        state.look_back(pending, op, record.position, token)
            if records:
                deadline_s = clock.elapsed_s() + limits.mark_timeout_s
            elif clock.elapsed_s() > deadline_s:
                raise BackendTimeoutError(f"the op log could not be read again up to position {until}")
            yield 0.0 if records else limits.poll_s
    finally:
        reader.close()
    for pending in copies:
        pending.note(look_back=None)
        is_gap = begins[pending.transaction_id][0] < kept_from
        if is_gap and not pending.is_closed and not pending.terms.fenced:
            reason = "the op log no longer reaches back to where this copy was made"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))
