"""Many transactions of the listener style from one thread: no more under way than can be ended in time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final, cast

from txcore.errors import UsageError
from txcore.listener import Listener
from txcore.message import Message
from txcore.port import Backend
from txcore.producer.listener_batch import Sendings, send_all
from txcore.producer.transaction import ProducerContext, begin_many
from txcore.results import TransactionSendResult
from txcore.runtime.commands import Flow
from txcore.runtime.flow_loop import Loop

WINDOW_COUNT: Final = 4_000
"""Most transactions under way."""
FIRST_COUNT: Final = 100
"""Most transactions under way until the first have ended, which show how long local transactions take."""
TOGETHER_COUNT: Final = 500
"""Number of transactions that begin together, when there is room for them."""


def send_many(
    backend: Backend, context: ProducerContext, listener: Listener[Any, Any], messages: Iterable[tuple[Message, Any]]
) -> list[TransactionSendResult]:
    """Send all of *messages* and return their results in the same order; see `TransactionProducer.send_many`."""
    loop = Loop(backend, context.clock)
    window = _Window(context, min(TOGETHER_COUNT, backend.capabilities.batch_count_max))
    pending = iter(messages)
    results: list[list[TransactionSendResult | None]] = []

    def send(sendings: Sendings) -> Flow[None]:
        yield from send_all(sendings, listener)
        window.ended(len(sendings.pairs))

    def refill() -> None:
        while count := window.room_count():
            taken = [*itertools.islice(pending, count)]
            if not taken:
                return
            _require_pairs(taken)
            window.begun(len(taken))
            results.append([None] * len(taken))
            loop.spawn(send(Sendings(begin_many(context, len(taken)), taken, results[-1])))

    loop.run_all(refill)
    return cast("list[TransactionSendResult]", [*itertools.chain.from_iterable(results)])


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
