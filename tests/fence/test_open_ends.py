"""An interrupted transaction leaves no database transaction open and keeps no connection."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import txcore
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.sqlfence import AsyncSqlFence

GROUP = "orders"


class Shop:
    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.backend = MemoryBackend(self.broker)

    @property
    def delivered(self):
        return [message.body for message in self.broker.topics.get("t", [])]


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def engine(world):
    """An engine with a pool of three connections, which counts those in use."""
    return world.new_engine(pool_size=3, max_overflow=0)


def use_asyncio(tmp_path, run):
    """Run *run* with an AsyncEngine and a fence on it, and require that no connection stays in use."""

    async def main():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db", pool_size=3, max_overflow=0)
        fence = AsyncSqlFence(engine)
        await fence.create()
        await run(engine, fence)
        assert engine.pool.checkedout() == 0
        await engine.dispose()

    asyncio.run(main())


# Too many under way -------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(world, shop):
    """A producer with one place, and a function with which another caller occupies it."""
    producer = txcore.TransactionProducer(
        shop.backend, GROUP, fence=world.fence, partition_count=1, unsettled_max=1, busy_timeout_s=0.01
    )
    return producer, lambda: producer._places.take(0)


def test_block_that_has_begun_ends_however_busy(world, engine, shop, busy):
    """A block that has begun is committed when the producer is full; only a new one is refused."""
    producer, fill = busy
    with producer.transaction(engine) as transaction:
        world.add_order(transaction.connection, transaction.transaction_id)
        transaction.publish(txcore.Message("t", b"tea"))
        assert fill()
    assert transaction.result.state is txcore.EndState.ACCEPTED
    assert shop.delivered == [b"tea"]
    with pytest.raises(txcore.BusyError), producer.transaction(engine):
        pass
    assert engine.pool.checkedout() == 0


def test_block_that_fails_rolls_back_however_busy(world, engine, busy):
    """A block that fails raises its own error, and no BusyError, when the producer is full."""
    producer, fill = busy

    def fail():
        with producer.transaction(engine) as transaction:
            world.add_order(transaction.connection, transaction.transaction_id)
            assert fill()
            raise ValueError("the program's own")

    with pytest.raises(ValueError, match="own"):
        fail()
    assert engine.pool.checkedout() == 0


@pytest.mark.parametrize("commits", [True, False])
def test_prepared_transaction_ends_however_busy(world, engine, shop, busy, commits):
    """A prepared transaction is ended when the producer is full, and a committed one is sent."""
    producer, fill = busy
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with engine.connect() as connection:
        transaction.prepare(connection)
        connection.commit() if commits else connection.rollback()
    assert fill()
    result = transaction.commit() if commits else transaction.rollback()
    assert result.state is txcore.EndState.ACCEPTED
    assert shop.delivered == ([b"tea"] if commits else [])


def test_block_of_asyncio_ends_however_busy(tmp_path, shop):
    """The end of a block with asyncio waits for no place, so that no cancellation can interrupt it."""

    async def run(engine, fence):
        producer = txcore.AsyncTransactionProducer(shop.backend, GROUP, fence=fence, partition_count=1, unsettled_max=1)

        async def publish(*, fails=False):
            async with producer.transaction(engine) as transaction:
                transaction.publish(txcore.Message("t", b"tea"))
                await producer._slots.acquire()
                if fails:
                    raise ValueError("the program's own")

        async with asyncio.timeout(20):
            await publish()
            producer._slots.release()
            with pytest.raises(ValueError, match="own"):
                await publish(fails=True)

    use_asyncio(tmp_path, run)
    assert shop.delivered == [b"tea"]


# Interrupted on the way -----------------------------------------------------------------------------------------------


class Stop(BaseException):
    """The exception of Ctrl-C, or of a worker's time limit."""


def interrupt(*_):
    raise Stop


@pytest.mark.parametrize(("step", "publishes"), [("verify", True), ("enqueue", True), ("withdraw", False)])
def test_interrupted_end_of_a_block_rolls_back(world, engine, shop, monkeypatch, step, publishes):
    """A block whose end is interrupted at any statement returns its connection to the pool."""
    mode = "table" if step == "enqueue" else "half"
    producer = txcore.TransactionProducer(shop.backend, GROUP, fence=world.fence, partition_count=1, mode=mode)
    monkeypatch.setattr(world.fence, step, interrupt)
    with pytest.raises(Stop), producer.transaction(engine) as transaction:  # noqa: PT012
        world.add_order(transaction.connection, transaction.transaction_id)
        if publishes:
            transaction.publish(txcore.Message("t", b"tea"))
    assert engine.pool.checkedout() == 0
    assert not world.has_order(transaction.transaction_id)
    assert shop.delivered == []


@pytest.mark.parametrize("mode", ["half", "table"])
def test_interrupted_prepare_rolls_the_callers_transaction_back(world, engine, shop, monkeypatch, mode):
    """An interrupted prepare rolls back, so that a program which continues commits nothing."""
    producer = txcore.TransactionProducer(shop.backend, GROUP, fence=world.fence, partition_count=1, mode=mode)
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"tea"))
    insert = world.fence.insert

    def insert_and_stop(*args):
        insert(*args)
        raise Stop

    monkeypatch.setattr(world.fence, "insert", insert_and_stop)
    with engine.connect() as connection:
        world.add_order(connection, transaction.transaction_id)
        with pytest.raises(Stop):
            transaction.prepare(connection)
        connection.commit()
    assert not world.has_order(transaction.transaction_id)


@pytest.mark.parametrize(("step", "publishes"), [("verify", True), ("withdraw", False)])
def test_cancelled_end_of_a_block_rolls_back(tmp_path, shop, monkeypatch, step, publishes):
    """A block whose end is cancelled during a statement is rolled back."""

    async def run(engine, fence):
        producer = txcore.AsyncTransactionProducer(shop.backend, GROUP, fence=fence, partition_count=1)
        wanted = getattr(fence, step)

        async def cancelled(*args):
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
            await wanted(*args)

        monkeypatch.setattr(fence, step, cancelled)
        held = []

        async def publish():
            async with producer.transaction(engine) as transaction:
                held.append(transaction)
                if publishes:
                    transaction.publish(txcore.Message("t", b"tea"))

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(publish())
        assert (await fence.stats()).states == {}

    use_asyncio(tmp_path, run)
    assert shop.delivered == []


# Misused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_refused", [False, True])
def test_block_in_which_prepare_was_called_rolls_back_after_an_error(world, engine, shop, monkeypatch, is_refused):
    """A block that fails after `prepare` returns its connection to the pool in any phase."""
    producer = txcore.TransactionProducer(shop.backend, GROUP, fence=world.fence, partition_count=1)
    shop.broker.down = is_refused

    def misuse():
        with producer.transaction(engine) as transaction:
            world.add_order(transaction.connection, b"order")
            transaction.publish(txcore.Message("t", b"tea"))
            transaction.prepare()
            raise ValueError("the program's own")

    with pytest.raises((ValueError, txcore.HalfRefusedError, txcore.HalfUnknownError)):
        misuse()
    assert engine.pool.checkedout() == 0
    assert not world.has_order(b"order")
