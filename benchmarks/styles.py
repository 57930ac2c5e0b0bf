"""The producer's styles under load. A transaction that does not end ACCEPTED ends the benchmark.

The database style changes the business database, with the fence. The others have no database behind them, so that
their figures are the messaging alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import txcore
from benchmarks.drive import Sample, run_tasks, run_threads
from benchmarks.place import GROUP, INSERT_ORDER, Place, message
from txcore.results import EndResult, EndState

WARM_UP_COUNT = 3


class Committing(txcore.TransactionListener):
    """Says COMMIT at once."""

    def execute_local_transaction(self, message: txcore.Message, arg: Any) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `TransactionListener`."""
        return txcore.LocalTransactionState.COMMIT


class AsyncCommitting(txcore.AsyncTransactionListener):
    """Says COMMIT at once."""

    async def execute_local_transaction(self, message: txcore.Message, arg: Any) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `AsyncTransactionListener`."""
        return txcore.LocalTransactionState.COMMIT


def database(place: Place, seconds: float, *, thread_count: int) -> Sample:
    """Database style: one business row, one message."""
    engine = place.engine()
    fence = txcore.SqlFence(engine)
    fence.create()
    producer = txcore.TransactionProducer(place.backend(), GROUP, fence=fence)

    def call() -> None:
        with producer.transaction(engine) as tx:
            tx.connection.execute(INSERT_ORDER)
            tx.publish(message())
        _require_accepted(tx.result)

    return _threads(call, thread_count, seconds)


def listener(place: Place, seconds: float, *, thread_count: int) -> Sample:
    """Listener style without a database."""
    producer = txcore.TransactionProducer(place.backend(), GROUP, listener=Committing())

    def call() -> None:
        _require_accepted(producer.send_message_in_transaction(message()).end)

    return _threads(call, thread_count, seconds)


def primitives(place: Place, seconds: float, *, thread_count: int) -> Sample:
    """Primitives without a database."""
    producer = txcore.TransactionProducer(place.backend(), GROUP)

    def call() -> None:
        tx = producer.begin()
        tx.publish(message())
        tx.prepare()
        _require_accepted(tx.commit())

    return _threads(call, thread_count, seconds)


def send_many(place: Place, seconds: float, *, batch_size: int) -> Sample:
    """`send_many` from one thread, batch after batch, without a database."""
    producer = txcore.TransactionProducer(place.backend(), GROUP, listener=Committing())

    def call() -> None:
        for result in producer.send_many([(message(), None)] * batch_size):
            _require_accepted(result.end)

    call()
    return run_threads(call, 1, seconds, batch_size)


def database_async(place: Place, seconds: float, *, task_count: int) -> Sample:
    """Database style in asyncio, through aiosqlite."""

    async def measure() -> Sample:
        engine = place.async_engine()
        try:
            fence = txcore.SqlFence(engine)
            await fence.create()
            producer = txcore.AsyncTransactionProducer(place.backend(), GROUP, fence=fence)

            async def call() -> None:
                async with producer.transaction(engine) as tx:
                    await tx.connection.execute(INSERT_ORDER)
                    tx.publish(message())
                _require_accepted(tx.result)

            return await _tasks(call, task_count, seconds)
        finally:
            await engine.dispose()

    return asyncio.run(measure())


def listener_async(place: Place, seconds: float, *, task_count: int) -> Sample:
    """Listener style in asyncio, without a database."""

    async def measure() -> Sample:
        producer = txcore.AsyncTransactionProducer(place.backend(), GROUP, listener=AsyncCommitting())

        async def call() -> None:
            _require_accepted((await producer.send_message_in_transaction(message())).end)

        return await _tasks(call, task_count, seconds)

    return asyncio.run(measure())


def primitives_async(place: Place, seconds: float, *, task_count: int) -> Sample:
    """Primitives in asyncio, without a database."""

    async def measure() -> Sample:
        producer = txcore.AsyncTransactionProducer(place.backend(), GROUP)

        async def call() -> None:
            tx = producer.begin()
            tx.publish(message())
            await tx.prepare()
            _require_accepted(await tx.commit())

        return await _tasks(call, task_count, seconds)

    return asyncio.run(measure())


def _threads(call: Callable[[], None], thread_count: int, seconds: float) -> Sample:
    for _ in range(WARM_UP_COUNT):
        call()
    return run_threads(call, thread_count, seconds)


async def _tasks(call: Callable[[], Awaitable[None]], task_count: int, seconds: float) -> Sample:
    for _ in range(WARM_UP_COUNT):
        await call()
    return await run_tasks(call, task_count, seconds)


def _require_accepted(result: EndResult | None) -> None:
    if result is None or result.state is not EndState.ACCEPTED:
        raise RuntimeError(f"a transaction did not end ACCEPTED but {result}")
