"""The producer's styles under load. A transaction that does not end ACCEPTED ends the benchmark.

The database styles change the business database, with the fence. The others have no database, so that their figures
are the messaging alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import txcore
from benchmarks.databases import INSERT_ORDER, PLAIN_INSERT_ORDER
from benchmarks.drive import Drive, Sample
from benchmarks.place import POLICY, Place
from benchmarks.plain import PlainPool
from txcore.port import Backend
from txcore.results import EndResult, EndState

WARM_UP_COUNT = 3


class Committing(txcore.TransactionListener):
    """Returns COMMIT at once."""

    def execute(self, transaction: Any, message: txcore.Message, arg: Any) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `TransactionListener`."""
        return txcore.LocalTransactionState.COMMIT


class AsyncCommitting(txcore.AsyncTransactionListener):
    """Returns COMMIT at once."""

    async def execute(self, transaction: Any, message: txcore.Message, arg: Any) -> txcore.LocalTransactionState:  # noqa: ARG002
        """See `AsyncTransactionListener`."""
        return txcore.LocalTransactionState.COMMIT


def database(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run the database style through SQLAlchemy Core: one business row, one message."""
    engine = place.engine(thread_count)
    producer = _producer(place, fence=_fence(engine))

    def call() -> None:
        with producer.transaction(engine) as tx:
            tx.connection.execute(INSERT_ORDER)
            tx.publish(place.message())
        require_accepted(tx.result)

    return _threads(call, thread_count, drive)


def plain_database(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run the same with primitives through a plain psycopg connection, and measure the steps."""
    producer = _producer(place, fence=_fence(place.engine(1)))
    connections = PlainPool(place.business_url(), thread_count)
    steps_s: dict[str, list[float]] = {"local": [], "prepare": [], "release": []}

    def call() -> None:
        with connections.connection() as connection:
            tx = producer.begin()
            begin_s = time.perf_counter()
            connection.execute(PLAIN_INSERT_ORDER)
            tx.publish(place.message())
            prepare_s = time.perf_counter()
            tx.prepare(connection)
            prepared_s = time.perf_counter()
            connection.commit()
            committed_s = time.perf_counter()
            require_accepted(tx.commit())  # before the connection returns to the pool and its other callers
            released_s = time.perf_counter()
        steps_s["prepare"].append(prepared_s - prepare_s)
        steps_s["local"].append(prepare_s - begin_s + committed_s - prepared_s)
        steps_s["release"].append(released_s - committed_s)

    with connections:
        return replace(_threads(call, thread_count, drive), steps_s=steps_s)


def listener(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run the listener style without a database."""
    producer = _producer(place, listener=Committing())

    def call() -> None:
        require_accepted(producer.send_message_in_transaction(place.message()).end)

    return _threads(call, thread_count, drive)


def primitives(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run primitives without a database, and measure the steps."""
    producer = _producer(place)
    steps_s: dict[str, list[float]] = {"prepare": [], "release": []}

    def call() -> None:
        tx = producer.begin()
        tx.publish(place.message())
        begin_s = time.perf_counter()
        tx.prepare()
        prepared_s = time.perf_counter()
        require_accepted(tx.commit())
        steps_s["prepare"].append(prepared_s - begin_s)
        steps_s["release"].append(time.perf_counter() - prepared_s)

    return replace(_threads(call, thread_count, drive), steps_s=steps_s)


def send_many(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    """Run `send_many` from one thread, batch after batch, without a database."""
    return send_batches(place, drive, place.backend(), batch_size)


def send_batches(place: Place, drive: Drive, backend: Backend, batch_size: int) -> Sample:
    """Run `send_many` on a backend that is given."""
    producer = txcore.TransactionProducer(backend, place.group, policy=POLICY, listener=Committing())

    def send(count: int) -> None:
        for result in producer.send_many([(place.message(), None)] * count):
            require_accepted(result.end)

    send(WARM_UP_COUNT)
    return drive.threads(lambda: send(batch_size), 1, batch_size)


def database_async(place: Place, drive: Drive, *, task_count: int) -> Sample:
    """Run the database style in asyncio, through SQLAlchemy's asynchronous engine."""

    async def measure() -> Sample:
        engine = place.async_engine(task_count)
        try:
            fence = txcore.AsyncSqlFence(engine)
            await fence.create()
            producer = _async_producer(place, fence=fence)

            async def call() -> None:
                async with producer.transaction(engine) as tx:
                    await tx.connection.execute(INSERT_ORDER)
                    tx.publish(place.message())
                require_accepted(tx.result)

            return await _tasks(call, task_count, drive)
        finally:
            await engine.dispose()

    return asyncio.run(measure())


def listener_async(place: Place, drive: Drive, *, task_count: int) -> Sample:
    """Run the listener style in asyncio, without a database."""

    async def measure() -> Sample:
        producer = _async_producer(place, listener=AsyncCommitting())

        async def call() -> None:
            require_accepted((await producer.send_message_in_transaction(place.message())).end)

        return await _tasks(call, task_count, drive)

    return asyncio.run(measure())


def primitives_async(place: Place, drive: Drive, *, task_count: int) -> Sample:
    """Run primitives in asyncio, without a database."""

    async def measure() -> Sample:
        producer = _async_producer(place)

        async def call() -> None:
            tx = producer.begin()
            tx.publish(place.message())
            await tx.prepare()
            require_accepted(await tx.commit())

        return await _tasks(call, task_count, drive)

    return asyncio.run(measure())


def require_accepted(result: EndResult | None) -> None:
    """Raise unless a transaction ended ACCEPTED."""
    if result is None or result.state is not EndState.ACCEPTED:
        raise RuntimeError(f"a transaction did not end ACCEPTED but {result}")


def _producer(place: Place, **options: Any) -> txcore.TransactionProducer:
    return txcore.TransactionProducer(place.backend(), place.group, policy=POLICY, **options)


def _async_producer(place: Place, **options: Any) -> txcore.AsyncTransactionProducer:
    return txcore.AsyncTransactionProducer(place.backend(), place.group, policy=POLICY, **options)


def _fence(engine: Any) -> txcore.SqlFence:
    fence = txcore.SqlFence(engine)
    fence.create()
    return fence


def _threads(call: Callable[[], None], thread_count: int, drive: Drive) -> Sample:
    for _ in range(WARM_UP_COUNT):
        call()
    return drive.threads(call, thread_count)


async def _tasks(call: Callable[[], Awaitable[None]], task_count: int, drive: Drive) -> Sample:
    for _ in range(WARM_UP_COUNT):
        await call()
    return await drive.tasks(call, task_count)
