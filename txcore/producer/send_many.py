"""Many transactions of the listener style from one thread: no more under way than can be ended in time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

from txcore.errors import UsageError
from txcore.listener import Listener
from txcore.message import LocalTransactionState, Message
from txcore.port import Backend
from txcore.producer.listener_style import Sending, send_all
from txcore.producer.transaction import ProducerContext, begin_many
from txcore.results import TransactionSendResult
from txcore.runtime.commands import Flow
from txcore.runtime.flow_loop import Loop

WINDOW_COUNT: Final = 1_000
"""Most transactions under way."""
FIRST_COUNT: Final = 100
"""Most transactions under way until the first have ended, which show how long local transactions take."""
TOGETHER_COUNT: Final = 250
"""Number of transactions that begin together, when there is room for them."""


def send_many(
    backend: Backend, context: ProducerContext, listener: Listener[Any, Any], messages: Iterable[tuple[Message, Any]]
) -> list[TransactionSendResult]:
    """Send all of *messages* and return their results in the same order; see `TransactionProducer.send_many`."""
    loop = Loop(backend, context.clock)
    window = _Window(context, min(TOGETHER_COUNT, backend.capabilities.batch_count_max))
    pending = iter(messages)
    ended: list[list[TransactionSendResult]] = []

    def send(some: list[Sending], results: list[TransactionSendResult]) -> Flow[None]:
        yield from send_all(some, listener)
        results.extend(each.result or _unsent(each) for each in some)
        window.ended(len(some))

    def refill() -> None:
        while count := window.room_count():
            taken = [*itertools.islice(pending, count)]
            if not taken:
                return
            try:
                pairs = zip(begin_many(context, len(taken)), taken, strict=True)
                some = [Sending(transaction, message, arg) for transaction, (message, arg) in pairs]
            except (TypeError, ValueError):
                _require_pairs(taken)
                raise
            window.begun(len(some))
            ended.append([])
            loop.spawn(send(some, ended[-1]))

    loop.run_all(refill)
    return list(itertools.chain.from_iterable(ended))


class _Window:
    """The number of transactions under way: as many as can end, at the rate so far, in half of a producer's time.

    And in half of the backend's longest time: a half that waits in it for longer than its timeout is uncertain.
    """

    def __init__(self, context: ProducerContext, together_count: int) -> None:
        self._clock = context.clock
        self._began_s = context.clock.elapsed_s()
        self._time_s = (context.policy.immunity_s - context.margin_s) / 2
        self._backend_time_s = context.margin_s / 2
        self._together_count = together_count
        self._under_way_count = 0
        self._ended_count = 0

    def room_count(self) -> int:
        """Return how many to begin together now; 0 to wait until there is room for a whole batch."""
        most = FIRST_COUNT
        if self._ended_count:
            spent_s = max(self._clock.elapsed_s() - self._began_s, 1e-3)
            rate = self._ended_count / spent_s
            most = min(
                WINDOW_COUNT, max(1, int(rate * self._time_s)), max(FIRST_COUNT, int(rate * self._backend_time_s))
            )
        count = min(self._together_count, most)
        return count if self._under_way_count + count <= most else 0

    def begun(self, count: int) -> None:
        """Note that *count* more are under way."""
        self._under_way_count += count

    def ended(self, count: int) -> None:
        """Note that *count* have ended."""
        self._under_way_count -= count
        self._ended_count += count


def _require_pairs(items: Iterable[object]) -> None:
    """Refuse the first of *items* that is no pair."""
    for item in items:
        try:
            _, _ = item  # type: ignore[misc]
        except (TypeError, ValueError):
            text = f"send_many takes pairs (message, arg), not {type(item).__name__}"
            raise UsageError(f"{text}; of this and later ones nothing was sent") from None


def _unsent(sending: Sending) -> TransactionSendResult:
    identity = sending.transaction.transaction_id
    return TransactionSendResult(identity, LocalTransactionState.UNKNOWN, None, sending.error)
