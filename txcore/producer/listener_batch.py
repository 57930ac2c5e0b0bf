"""The listener style for many transactions at once: the same steps as for one, with one command for many.

What they share is looked at once, and kept in columns. A transaction of its own policy, too late, or with a fence or
an observer, takes the steps of `listener_style` and `finish` one by one, and leaves with the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from txcore.columns import HalfColumns, ReleaseColumns, taker
from txcore.fence import AnyFence
from txcore.ids import known_id
from txcore.listener import Listener
from txcore.message import LocalTransactionState, Message, plain_targets
from txcore.producer import finish as ending
from txcore.producer import listener_style as style
from txcore.producer import transaction_flow as flow
from txcore.producer.transaction import LocalTransaction, ProducerContext, current, make_halves
from txcore.records import OpKind, Resolution, Status, TargetMessage
from txcore.results import EndResult, EndState, TransactionSendResult
from txcore.runtime.commands import Answered, Called, Calls, Each, Flow

TURN_S: Final = 0.02
"""Time, in seconds, of local transactions after which those that ran are released before the next ones run."""
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_UNKNOWN = LocalTransactionState.UNKNOWN
_immunity_of = attrgetter("immunity_s")


class Sendings(msgspec.Struct):
    """Messages of one producer that are sent together, in columns; in the end each has a result.

    Attributes:
        transactions: At least one.
        pairs: The message of each transaction, with the listener's argument.
        results: None for each, at first.
    """

    transactions: Sequence[LocalTransaction]
    pairs: Sequence[tuple[Message, Any]]
    results: list[TransactionSendResult | None]

    @property
    def context(self) -> ProducerContext:
        """The producer's."""
        return self.transactions[0].context

    @property
    def is_plain(self) -> bool:
        """Whether no fence and no observer takes part in each transaction."""
        return self.context.fence is None and self.context.observer is None

    def failed(self, index: int, error: Exception) -> None:
        """Set the result of a message whose half was not made, or is not certainly stored."""
        identity = self.transactions[index].transaction_id
        self.results[index] = TransactionSendResult(identity, _UNKNOWN, None, error)


class Opened(msgspec.Struct):
    """Those of the sendings whose halves are handed over, in columns; `place` is the place of one in each.

    Attributes:
        indices: Their indices among the sendings.
        pairs: The message of each, with the listener's argument.
        began_s: The clock's reading before the halves were handed over.
        give_way_s: Its reading after which the first of them gives way to the checker.
    """

    indices: Sequence[int]
    transactions: Sequence[LocalTransaction]
    pairs: Sequence[tuple[Message, Any]]
    halves: HalfColumns
    began_s: float
    give_way_s: float


class Ran(msgspec.Struct):
    """Local transactions that ran together and are to be ended.

    Attributes:
        places: Their places among those opened.
        states: The listener's answer to each: COMMIT or ROLLBACK.
        ends: By its place, the result of one whose end is known before the release.
    """

    places: Sequence[int]
    states: Sequence[LocalTransactionState]
    ends: dict[int, EndResult] = {}


def send_all(sendings: Sendings, listener: Listener[Any, Any]) -> Flow[None]:
    """Send many; those that the broker answers together continue together. Never raises.

    A local transaction that takes long, or a half without an answer, holds up no other's end.
    """
    context = sendings.context
    try:
        database = yield from style.learn_database(context)
        style.require_half(context)
        opened = _opened(sendings, database)
    except Exception as error:  # noqa: BLE001 - nothing was sent of any
        for index, result in enumerate(sendings.results):
            if result is None:
                sendings.failed(index, error)
        return
    if opened is not None:
        yield Each(opened.halves, partial(_go_on, sendings, opened, listener))


def _opened(sendings: Sendings, database: bytes) -> Opened | None:
    """Make the halves; None if no message has one."""
    context, (indices, targets) = sendings.context, _taken(sendings)
    if not indices:
        return None
    transactions: Sequence[LocalTransaction] = taker(indices)(sendings.transactions)
    if context.fence is not None:
        style.fence_later(transactions, database)
    halves, errors = make_halves(transactions, targets)
    if errors:
        for place, error in errors.items():
            sendings.failed(indices[place], error)
        indices = [index for place, index in enumerate(indices) if place not in errors]
        transactions = taker(indices)(sendings.transactions)
    if not indices:
        return None
    if context.fence is not None:
        for transaction, half in zip(transactions, halves, strict=True):
            transaction.half = half
    began_s = context.clock.elapsed_s()
    immunity_s = min(map(_immunity_of, transactions))
    pairs = taker(indices)(sendings.pairs)
    return Opened(indices, transactions, pairs, halves, began_s, began_s + immunity_s - context.margin_s)


def _taken(sendings: Sendings) -> tuple[Sequence[int], Sequence[TargetMessage]]:
    """Give each transaction its message; returns the indices of those that take theirs, and the messages."""
    transactions, pairs = sendings.transactions, sendings.pairs
    targets = plain_targets([*map(itemgetter(0), pairs)]) if sendings.context.observer is None else None
    if targets is not None:
        if sendings.context.fence is not None:
            for transaction, target in zip(transactions, targets, strict=True):
                transaction.messages.append(target)
        return range(len(pairs)), targets
    indices: list[int] = []
    for index, (message, _) in enumerate(pairs):
        try:
            style.take(transactions[index], message)
        except Exception as error:  # noqa: BLE001 - nothing was sent of this one; the others are not affected
            sendings.failed(index, error)
        else:
            indices.append(index)
    return indices, [transactions[index].messages[0] for index in indices]


def _go_on(sendings: Sendings, opened: Opened, listener: Listener[Any, Any], answered: Answered) -> Flow[None]:
    """Run the local transactions of halves that were answered together, and release the ends that they chose."""
    is_watched = sendings.context.observer is not None
    left: list[int] = []
    for places, outcome in answered:
        if outcome.status is Status.DURABLE and not is_watched:
            left += places
            continue
        for place in places:
            try:
                flow.appended(opened.transactions[place], outcome, opened.began_s)
            except Exception as error:  # noqa: BLE001 - this one's result
                sendings.failed(opened.indices[place], error)
            else:
                left.append(place)
    while left:
        count, ran = yield from _run_some(sendings, opened, left, listener)
        left = left[count:]
        yield from _release(sendings, opened, ran)


def _run_some(
    sendings: Sendings, opened: Opened, left: Sequence[int], listener: Listener[Any, Any]
) -> Flow[tuple[int, Ran]]:
    """Run local transactions for `TURN_S`, one at least; returns their number, and those that are to be ended."""
    context, execute, set_current = sendings.context, listener.execute, current.set

    def run(transaction: LocalTransaction, pair: tuple[Message, Any]) -> Any:
        set_current(transaction)
        return execute(transaction, *pair)

    began_s, take = context.clock.elapsed_s(), taker(left)
    called: Called = yield Calls(run, zip(take(opened.transactions), take(opened.pairs), strict=True), TURN_S)
    set_current(None)
    states = called.values
    if sendings.is_plain and not called.errors and states.count(_COMMIT) == len(states):
        return len(states), Ran(left[: len(states)], states)
    return len(states), (yield from _judge(sendings, opened, left, called, began_s))


def _judge(sendings: Sendings, opened: Opened, left: Sequence[int], called: Called, began_s: float) -> Flow[Ran]:
    """Judge each answer of the listener; returns those that are to be ended."""
    fence = sendings.context.fence
    places: list[int] = []
    states: list[LocalTransactionState] = []
    ran = Ran(places, states)
    for number, (place, state, ended_s) in enumerate(zip(left, called.values, called.ended_s, strict=False)):
        transaction = opened.transactions[place]
        chosen = style.judged(transaction, state, called.errors.get(number), began_s)
        began_s = ended_s
        if transaction.fenced:
            chosen = yield from style.vouched(transaction, chosen)
        if isinstance(chosen, TransactionSendResult):
            sendings.results[opened.indices[place]] = chosen
            continue
        places.append(place)
        states.append(chosen)
        if transaction.fenced and chosen is _ROLLBACK:
            yield from _end_early(ran, place, ending.tombstone(transaction))
    if fence is not None:
        yield from _look(opened, ran, fence)
    return ran


def _look(opened: Opened, ran: Ran, fence: AnyFence) -> Flow[None]:
    """Set the end of those that committed by the answer of their listener, and not by their rows."""
    committed = (place for place, state in zip(ran.places, ran.states, strict=True) if state is _COMMIT)
    fenced = [(place, opened.transactions[place]) for place in committed if opened.transactions[place].must_look]
    if fenced:
        settled = yield from ending.are_settled(fence, [transaction.identity for _, transaction in fenced])
        for place, transaction in fenced:
            if transaction.identity not in settled:
                yield from _end_early(ran, place, ending.look_before_publishing(transaction))


def _end_early(ran: Ran, place: int, step: Flow[EndResult | None]) -> Flow[None]:
    """Set the end that *step* returns, if it does."""
    end = yield from step
    if end is not None:
        ran.ends[place] = end


def _release(sendings: Sendings, opened: Opened, ran: Ran) -> Flow[None]:
    """End those that ran, all with one reading of the clocks."""
    context = sendings.context
    began_s, wall_ms = context.clock.elapsed_s(), context.clock.wall_ms()
    items: Sequence[Resolution]
    if began_s <= opened.give_way_s and not ran.ends:
        items = ReleaseColumns(opened.halves.take(ran.places), _kinds(context, ran.states), context.by, wall_ms)
    else:
        ran, items = _chosen(sendings, opened, ran, began_s, wall_ms)
    if items:
        yield Each(items, partial(_released, sendings, opened, ran, began_s))


def _kinds(context: ProducerContext, states: Sequence[LocalTransactionState]) -> list[OpKind]:
    kinds = [*map(style.KINDS.__getitem__, states)]
    return [ending.FOR_OWNER.get(kind, kind) for kind in kinds] if context.release else kinds


def _chosen(sendings: Sendings, opened: Opened, ran: Ran, began_s: float, wall_ms: int) -> tuple[Ran, list[Resolution]]:
    """Choose each end by itself; returns those that are to be released, with their resolutions."""
    places: list[int] = []
    states: list[LocalTransactionState] = []
    resolutions: list[Resolution] = []
    for place, state in zip(ran.places, ran.states, strict=True):
        transaction = opened.transactions[place]
        if place in ran.ends:
            index = opened.indices[place]
            sendings.results[index] = _finished(transaction, state, ran.ends[place], began_s)
            continue
        transaction.half = opened.halves[place]
        flow.stored(transaction, opened.began_s)
        resolution, end = ending.choose_end(transaction, style.KINDS[state], began_s, wall_ms)
        assert resolution is not None  # a half was written
        if end is not None:
            ran.ends[place] = end
        places.append(place)
        states.append(state)
        resolutions.append(resolution)
    return Ran(places, states, ran.ends), resolutions


def _released(sendings: Sendings, opened: Opened, ran: Ran, began_s: float, answered: Answered) -> None:
    """Set the results of those that were released."""
    results, is_plain = sendings.results, sendings.is_plain and not ran.ends
    for numbers, outcome in answered:
        take = taker(numbers)
        places, states = take(ran.places), take(ran.states)
        indices = taker(places)(opened.indices)
        if is_plain and outcome.status is Status.DURABLE:
            identities = [*map(known_id, taker(places)(opened.halves.transaction_ids))]
            ends = map(EndResult, repeat(EndState.ACCEPTED), identities)
            for index, result in zip(indices, map(TransactionSendResult, identities, states, ends), strict=True):
                results[index] = result
            continue
        for index, place, state in zip(indices, places, states, strict=True):
            transaction = opened.transactions[place]
            end = ran.ends.get(place) or ending.end_result(transaction.identity, style.KINDS[state], outcome)
            results[index] = _finished(transaction, state, end, began_s)


def _finished(
    transaction: LocalTransaction, state: LocalTransactionState, end: EndResult, began_s: float
) -> TransactionSendResult:
    ending.finish_end(transaction, style.KINDS[state], end, began_s)
    return TransactionSendResult(end.transaction_id, state, end, transaction.notice)
