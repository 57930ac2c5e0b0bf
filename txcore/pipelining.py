"""Many transactions of the listener style from one thread, so many under way at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

from txcore.commands import Flow
from txcore.loop import Loop
from txcore.message import LocalTransactionState, Message
from txcore.port import Backend
from txcore.results import TransactionSendResult
from txcore.sending import Listener, Sending, send_all
from txcore.transaction import ProducerContext, begin

WINDOW_COUNT: Final = 1_000
TOGETHER_COUNT: Final = 250
"""So many are begun together, when there is room for them in the window."""


def send_many(
    backend: Backend, context: ProducerContext, listener: Listener, messages: Iterable[tuple[Message, Any]]
) -> list[TransactionSendResult]:
    """Send all of *messages* and return their results in the same order; see `TransactionProducer.send_many`."""
    loop = Loop(backend, context.clock)
    count_max = min(TOGETHER_COUNT, backend.capabilities.batch_count_max)
    pending = iter(messages)
    ended: list[list[TransactionSendResult]] = []
    under_way_count = 0

    def send(some: list[Sending], results: list[TransactionSendResult]) -> Flow[None]:
        nonlocal under_way_count
        yield from send_all(some, listener)
        results.extend(each.result or _unsent(each) for each in some)
        under_way_count -= len(some)

    def refill() -> None:
        nonlocal under_way_count
        while under_way_count + count_max <= WINDOW_COUNT:
            some = [Sending(begin(context), *each) for each in itertools.islice(pending, count_max)]
            if not some:
                return
            under_way_count += len(some)
            ended.append([])
            loop.spawn(send(some, ended[-1]))

    loop.run_all(refill)
    return list(itertools.chain.from_iterable(ended))


def _unsent(sending: Sending) -> TransactionSendResult:
    identity = sending.transaction.transaction_id
    return TransactionSendResult(identity, LocalTransactionState.UNKNOWN, None, sending.error)
