"""Looking back: the op log is read again from where the journal of a carried or resumed copy begins (R8)."""

from __future__ import annotations

from collections.abc import Sequence

from txcore.checker import log_reader, retry_backoff
from txcore.checker.decide import Pending
from txcore.checker.tenure import Tenure
from txcore.errors import BackendTimeoutError, DataLossError
from txcore.records import LogKind, OpKind, ParkCode, Position
from txcore.runtime.commands import Flow


def learn_journals(tenure: Tenure, halves: list[Pending]) -> Flow[list[Pending]]:
    """Look back for the copies among *halves*; returns the halves whose journal is known."""
    copies = [pending for pending in halves if pending.extras.look_back is not None]
    if not copies:
        return halves
    try:
        yield from look_back(tenure, copies)
    except BackendTimeoutError as error:
        for pending in copies:
            retry_backoff.put_off(tenure, pending, error)
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
    reader = tenure.reader(LogKind.OP, None if position < 0 else Position(position))
    deadline_s = clock.elapsed_s() + limits.mark_timeout_s
    try:
        while position < until and reader.passed <= until:
            try:
                records = [each for each in reader.read(limits.read_count_max) if each.position <= until]
            except DataLossError as loss:
                reader.close()
                # The claim in force after the gap is not known before one is read, or a copy names it.
                kept_from, token = until + 1 if loss.first is None else loss.first, b""
                is_news = any(0 <= begin < kept_from for begin, _ in begins.values())
                reader, records = tenure.reopened(LogKind.OP, loss, is_news=is_news), []
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
        # A held half may have been resumed and ended in the gap; parked again, it is on the operator's list.
        if is_gap and not pending.is_closed and (pending.is_held or not pending.terms.fenced):
            reason = "the op log no longer reaches back to where this copy was made"
            pending.note(park=(ParkCode.COVERAGE_GAP, reason))
