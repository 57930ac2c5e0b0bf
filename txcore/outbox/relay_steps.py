"""The steps of a relay for one batch of the message table, as flows: take, publish in order, settle.

Each lane is sent one message after the other, the next one only when the one before is confirmed (or parked), so its
first copies are in order even if other relays send the same rows; lanes do not wait for each other. No row is deleted
before it is confirmed: the rows of a relay that dies are sent again, with the same ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from txcore import ranges, wire
from txcore.clock import Clock
from txcore.errors import (
    BackendUnavailableError,
    MessageRejectedError,
    NewerRecordError,
    OutcomeUnknownError,
    TxcoreError,
    UsageError,
    WireFormatError,
)
from txcore.ids import partition_of
from txcore.message_table import MessageTable, Refused, TableRow, Taken, Turned
from txcore.records import HalfRecord, Outcome, Resolution, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Answered, Call, Each, Flow, Spawn
from txcore.runtime.instrumentation import Reporter

RESTING_MAX: Final = 10_000
"""Most lanes that are remembered as resting; with more, all of them are retried."""

PROBE_ROWS: Final = 16
TIME_MIN_S: Final = 0.000_1


@dataclass(slots=True, kw_only=True)
class RelayLimits:
    """A relay's bounds; each is a number of seconds unless named otherwise.

    Raises:
        ConfigError: a value is no number, a count is below 1, or a time not above 0; `key` names it.
    """

    row_max: int = 1_000  #: rows of one batch; large messages make it fewer
    batch_s: float = 0.5  #: time after which no second message of a lane begins, so that no lane holds up others
    tries_max: int = 20  #: refusals by its target before a message is parked
    retry_s: float = 0.2  #: first pause of a lane after a refusal, and of all lanes after an outage; doubles
    retry_max_s: float = 30.0
    outage_max_s: float = 2.0  #: longest pause while broker or database is down; few messages at a time are tried then
    poll_s: float = 0.01  #: first pause when there is nothing to send; doubles
    idle_poll_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.require_bounds(self, TIME_MIN_S)


@dataclass(slots=True)
class Rest:
    """A pause that doubles."""

    until_s: float = 0.0
    count: int = 0

    def next_s(self, first_s: float, longest_s: float) -> float:
        """Return the next pause, in seconds: *first_s* at first, then twice the one before, up to *longest_s*."""
        self.count += 1
        return min(first_s * 2.0 ** min(self.count - 1, 20), longest_s)


@dataclass(slots=True)
class RelayContext:
    """The state that all batches of one relay share.

    Attributes:
        together_max: Most messages that are handed to the backend together.
        resting: Lanes whose oldest message was refused, by lane.
        newer: Why lanes whose oldest message a newer txcore wrote wait for an upgraded relay, by lane.
        is_probing: The broker was down at the last try: take a few messages only, to find out whether it is back.
        look_at_s: When to look at the delayed rows again; the earlier of the next due row and one idle poll.
    """

    group: str
    partition_count: int
    table: MessageTable
    clock: Clock
    limits: RelayLimits
    report: Reporter
    by: str
    together_max: int
    resting: dict[int, Rest] = field(default_factory=dict)
    newer: dict[int, str] = field(default_factory=dict)
    is_probing: bool = False
    look_at_s: float = 0.0


@dataclass(slots=True)
class BatchReport:
    """The result of one batch.

    Attributes:
        taken: Rows of the batch; 0 when there was nothing to do or all waiting rows are in resting lanes.
        uncertain: Messages without a certain answer: the broker is down or slow.
        turned: Delayed rows that were due and became ordinary ones before the batch.
    """

    taken: int = 0
    sent: int = 0
    refused: int = 0
    parked: int = 0
    uncertain: int = 0
    turned: int = 0


@dataclass(slots=True)
class _Work:
    """One batch in progress; `left` of its flows have not ended."""

    left: int
    until_s: float
    sent: list[TableRow] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    uncertain: int = 0
    done: Future[None] = field(default_factory=Future)


def relay_batch(context: RelayContext) -> Flow[BatchReport]:
    """Turn the rows that are due; take a batch, publish it, settle it.

    Raises:
        BackendUnavailableError: the database failed; no message is lost, some may be sent again.
    """
    turned = yield from turn_due(context)
    report = yield from _relay_taken(context)
    report.turned = turned
    return report


def turn_due(context: RelayContext) -> Flow[int]:
    """Turn delayed rows that are due into ordinary ones, when it is time to look; returns their number (R16)."""
    limits, now_s = context.limits, context.clock.elapsed_s()
    if now_s < context.look_at_s:
        return 0
    turned: Turned = yield Call(context.table.turn_due, (context.group, limits.row_max))
    next_s = limits.idle_poll_s if turned.next_s is None else min(turned.next_s, limits.idle_poll_s)
    # A row that is due and was not turned is in the hands of a cancel or of another relay.
    context.look_at_s = now_s if turned.count else now_s + max(next_s, limits.poll_s)
    return turned.count


def _relay_taken(context: RelayContext) -> Flow[BatchReport]:
    now_s = context.clock.elapsed_s()
    resting = {lane for lane, rest in context.resting.items() if rest.until_s > now_s}
    row_max = PROBE_ROWS if context.is_probing else context.limits.row_max
    taken: Taken | None = yield Call(context.table.take, (context.group, resting, row_max))
    if taken is None:  # only resting lanes have rows
        for lane in context.newer.keys() - resting:
            del context.newer[lane]  # another relay has sent it
        return BatchReport()
    work = None
    try:
        work = yield from _publish(context, taken.rows)
    finally:
        if work is None or not (work.sent or work.refused):
            context.table.drop(taken)
    context.is_probing = bool(work.uncertain and not work.sent)
    parked = sum(each.is_parked for each in work.refused)
    report = BatchReport(len(taken.rows), len(work.sent), len(work.refused), parked, work.uncertain)
    if report.sent or report.refused:
        yield Call(context.table.settle, (taken, work.sent, work.refused))
        context.report.event(names.RELAY_SENT, group=context.group, count=report.sent)
    return report


def _publish(context: RelayContext, rows: Sequence[TableRow]) -> Flow[_Work]:
    lanes: dict[int, deque[TableRow]] = {}
    for row in rows:
        lanes.setdefault(row.lane, deque()).append(row)
    all_lanes, together_max = [*lanes.values()], context.together_max
    starts = range(0, len(all_lanes), together_max)
    work = _Work(len(starts), context.clock.elapsed_s() + context.limits.batch_s)
    for start in starts:
        yield Spawn(_send_lanes(context, work, all_lanes[start : start + together_max]))
    yield work.done
    return work


def _send_lanes(context: RelayContext, work: _Work, lanes: Sequence[deque[TableRow]]) -> Flow[None]:
    """Send the rows of these lanes; the last flow of the batch ends the wait."""
    yield from _send_heads(context, work, lanes)
    work.left -= 1
    if not work.left:
        work.done.set_result(None)


def _send_heads(context: RelayContext, work: _Work, lanes: Sequence[deque[TableRow]]) -> Flow[None]:
    """Send the first row of each lane; lanes whose rows are answered together continue together."""
    going, resolutions = [], []
    for rows in lanes:
        resolution = _first_resolution(context, work, rows)
        if resolution is not None:
            going.append(rows)
            resolutions.append(resolution)
    if resolutions:
        yield Each(resolutions, partial(_continued, context, work, going))


def _continued(
    context: RelayContext, work: _Work, lanes: Sequence[deque[TableRow]], answered: Answered
) -> Flow[None] | None:
    """Return the flow of the lanes that have another row and may send it."""
    is_late = context.clock.elapsed_s() >= work.until_s  # each lane sends one row in any case, else none might
    onward = []
    for indices, outcome in answered:
        for index in indices:
            rows = lanes[index]
            if _is_through(context, work, rows.popleft(), outcome) and rows and not is_late:
                onward.append(rows)
    return _send_heads(context, work, onward) if onward else None


def _first_resolution(context: RelayContext, work: _Work, rows: deque[TableRow]) -> Resolution | None:
    """Return the release of the first row that can be read; those before it are parked.

    A row of a newer txcore stops its lane and uses up no try: an upgraded relay sends it.
    """
    while rows:
        try:
            return _resolution(context, rows[0])
        except NewerRecordError as error:
            row = rows[0]
            context.newer[row.lane] = str(error)
            context.report.event(
                names.RELAY_NEWER, transaction_id=row.transaction_id, index=row.index, error=str(error)
            )
            _rest(context, row.lane)
            break
        except MessageRejectedError as error:
            if not _is_parked(context, work, rows.popleft(), error):
                break
        except WireFormatError as error:
            _refuse(context, work, rows.popleft(), error, is_parked=True)
    return None


def _is_through(context: RelayContext, work: _Work, row: TableRow, outcome: Outcome) -> bool:
    """Record a row's outcome; returns whether its lane may continue."""
    if outcome.status is Status.DURABLE:
        work.sent.append(row)
        context.resting.pop(row.lane, None)
        context.newer.pop(row.lane, None)
        return True
    if outcome.status is Status.REFUSED and _is_verdict(outcome.error):
        return _is_parked(context, work, row, outcome.error)
    work.uncertain += 1
    return False


def _is_parked(context: RelayContext, work: _Work, row: TableRow, error: Exception | None) -> bool:
    """Record a refusal; returns whether it was the last try, after which the lane may continue."""
    is_parked = row.tries + 1 >= context.limits.tries_max
    _refuse(context, work, row, error, is_parked=is_parked)
    if is_parked:
        context.resting.pop(row.lane, None)
    else:
        _rest(context, row.lane)
    return is_parked


def _resolution(context: RelayContext, row: TableRow) -> Resolution:
    """Return the release of one message: a target without a half and without an op.

    Raises:
        MessageRejectedError: the message names no topic; a row of another library's table may lack one.
    """
    message = wire.decode_message(row.body)
    if not message.topic:
        raise MessageRejectedError("the row names no topic", reason="topic")
    identity = row.transaction_id
    partition = partition_of(identity, context.partition_count)
    record = HalfRecord(context.group, partition, identity, 0, b"", [message] * (row.index + 1))
    return Resolution(record, None, (row.index,), b"", context.by)


def _is_verdict(error: TxcoreError | None) -> bool:
    """Return whether the target refused, and not an unreachable broker or a closed backend (R10)."""
    if isinstance(error, UsageError):
        return isinstance(error, MessageRejectedError)
    return error is not None and not isinstance(error, BackendUnavailableError | OutcomeUnknownError)


def _refuse(context: RelayContext, work: _Work, row: TableRow, error: Exception | None, *, is_parked: bool) -> None:
    work.refused.append(Refused(row, str(error), is_parked))
    name = names.RELAY_PARKED if is_parked else names.RELAY_REFUSED
    context.report.event(
        name, transaction_id=row.transaction_id, index=row.index, tries=row.tries + 1, error=str(error)
    )


def _rest(context: RelayContext, lane: int) -> None:
    """Rest a lane for a while; the other lanes continue (R9)."""
    if len(context.resting) >= RESTING_MAX:
        context.resting.clear()
    rest = context.resting.setdefault(lane, Rest())
    rest.until_s = context.clock.elapsed_s() + rest.next_s(context.limits.retry_s, context.limits.retry_max_s)
