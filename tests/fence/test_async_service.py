"""An asynchronous service as a whole: one AsyncEngine and one AsyncSqlFence for producer, inbox and checker."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import txcore
from txcore.errors import ConfigError, FenceMisuseError
from txcore.fence import FenceAnswer
from txcore.memory import MemoryBackend, MemoryBroker

GROUP = "orders"
SOON = txcore.CheckPolicy(immunity_s=2.5)


@pytest.fixture(params=["postgresql", "sqlite"])
def world(request, make_world):
    return make_world(request.param)


@asynccontextmanager
async def opened(world):
    """Yield an AsyncEngine and the fence on it, with no blocking engine beside them."""
    drivers = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}
    engine = create_async_engine(world.engine.url.set(drivername=drivers[world.kind]))
    try:
        yield engine, txcore.AsyncSqlFence(engine, table=world.fence_table)
    finally:
        assert engine.pool.checkedout() == 0
        await engine.dispose()


async def add_order(connection, world, number):
    sql = text(f"INSERT INTO {world.orders_table} (number) VALUES (:number)")
    await connection.execute(sql, {"number": number})


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the checker's thread sets it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("release", ["producer", "owner"])
def test_one_engine_and_one_fence_serve_the_whole_service(world, release):
    """Producer, listener, primitives, inbox and checker share one engine and one fence, with both kinds of release."""
    broker = MemoryBroker()

    def bodies():
        return sorted(message.body for message in broker.topics.get("orders", ()))

    async def run():
        async with opened(world) as (engine, fence):
            await fence.create()
            inbox = txcore.AsyncInbox(engine, table=f"inbox_{world.number}")
            await inbox.create()

            class Listener(txcore.AsyncTransactionListener):
                async def execute(self, transaction, message, arg):
                    async with engine.begin() as connection:
                        await transaction.fence(connection)
                        await add_order(connection, world, arg)
                    return txcore.LocalTransactionState.COMMIT

            backend = MemoryBackend(broker)
            checker = txcore.Checker(backend, GROUP, fence=fence)
            settings = {"fence": fence, "listener": Listener(), "policy": SOON, "release": release}
            async with backend, checker, txcore.AsyncTransactionProducer(backend, GROUP, **settings) as producer:
                async with producer.transaction(engine) as tx:
                    await add_order(tx.connection, world, "block")
                    tx.publish(txcore.Message("orders", b"block"))
                async with producer.transaction() as tx:
                    await add_order(tx.connection, world, "own engine")
                    tx.publish(txcore.Message("orders", b"own engine"))
                sent = await producer.send_message_in_transaction(txcore.Message("orders", b"listener"), "listener")
                assert sent.end.state is txcore.EndState.ACCEPTED
                begun = producer.begin()
                begun.publish(txcore.Message("orders", b"primitives"))
                async with AsyncSession(engine) as session:
                    await add_order(session, world, "primitives")
                    await begun.prepare(session)
                    await session.commit()
                    assert (await begun.commit()).state is txcore.EndState.ACCEPTED

                orphan = producer.begin()  # its producer dies between the database's commit and the message's
                orphan.publish(txcore.Message("orders", b"orphan"))
                async with engine.connect() as connection:
                    await orphan.prepare(connection)
                    await connection.commit()
                undone = producer.begin()
                undone.publish(txcore.Message("orders", b"undone"))
                async with engine.connect() as connection:
                    await undone.prepare(connection)
                commits = 1 if release == "producer" else 5
                await until(lambda: checker.counts["commit"] == commits and checker.counts["rollback"] == 1)
                answers = await fence.peek([orphan.transaction_id, undone.transaction_id])
                assert [each.answer for each in answers.values()] == [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK]

                seen = []
                for message in itertools.chain(broker.topics["orders"], broker.topics["orders"]):
                    async with engine.begin() as connection, inbox.receive(connection, message) as is_first:
                        seen.append(is_first)
                assert seen == [True] * 5 + [False] * 5
                assert (await inbox.prune(keep_s=3_600)).deleted == 0

    asyncio.run(run())
    assert bodies() == [b"block", b"listener", b"orphan", b"own engine", b"primitives"]


def test_fences_of_both_kinds_read_the_same_rows(world):
    """A blocking and an asynchronous fence on one table give each other's transactions the same answer."""

    async def run():
        async with opened(world) as (_, fence):
            mine = world.new_id()
            await fence.commit(await fence.begin(None, mine, GROUP))
            theirs = world.committed()
            return mine, (await fence.check([theirs], GROUP))[theirs].answer

    mine, answer = asyncio.run(run())
    assert answer is world.check(mine) is FenceAnswer.COMMIT


def test_fence_of_the_other_kind_is_refused_by_the_producer(world):
    """Each kind of producer refuses the other kind of fence, and names the class that it needs."""
    backend = txcore.connect("memory://")

    async def run():
        async with opened(world) as (_, fence):
            with pytest.raises(
                ConfigError, match=r"TransactionProducer needs SqlFence.*; this is AsyncSqlFence"
            ) as one:
                txcore.TransactionProducer(backend, GROUP, fence=fence)
            with pytest.raises(ConfigError, match=r"AsyncTransactionProducer needs AsyncSqlFence.*is SqlFence") as two:
                txcore.AsyncTransactionProducer(backend, GROUP, fence=world.fence)
            return one.value.key, two.value.key

    assert asyncio.run(run()) == ("fence", "fence")


def test_engine_of_the_other_kind_is_refused(world):
    """Fences and inboxes refuse the other kind of engine, and name the class that takes it."""

    async def run():
        async with opened(world) as (engine, fence):
            for kind, other in (("SqlFence", "AsyncSqlFence"), ("Inbox", "AsyncInbox")):
                with pytest.raises(
                    ConfigError, match=f"{kind} takes .* Engine, .* AsyncEngine: use {other}$"
                ) as refused:
                    getattr(txcore, kind)(engine)
                assert refused.value.key == "engine"
                with pytest.raises(ConfigError, match=f"{other} takes .* AsyncEngine, .* Engine: use {kind}$"):
                    getattr(txcore, other)(world.engine)
            with pytest.raises(ConfigError, match="Relay takes a blocking Engine"):
                txcore.Relay(txcore.connect("memory://"), GROUP, engine)
            with pytest.raises(FenceMisuseError, match="use AsyncSqlFence"):
                world.fence.begin(engine, world.new_id(), GROUP)
            with pytest.raises(FenceMisuseError, match="use SqlFence"):
                await fence.begin(world.engine, world.new_id(), GROUP)

    asyncio.run(run())


def test_connection_of_the_other_kind_is_refused(world):
    """`prepare` refuses the other kind of connection; nothing is sent, and its transaction is not touched."""
    broker = MemoryBroker()

    def begun(kind, fence):
        tx = kind(MemoryBackend(broker), GROUP, fence=fence, partition_count=1).begin()
        tx.publish(txcore.Message("orders", b"tea"))
        return tx

    async def run():
        async with opened(world) as (engine, fence):
            async with engine.begin() as connection:
                await add_order(connection, world, "asynchronous")
                with pytest.raises(FenceMisuseError, match="not an AsyncConnection: use AsyncSqlFence"):
                    begun(txcore.TransactionProducer, world.fence).prepare(connection)
            with world.engine.begin() as connection:
                connection.execute(text(f"INSERT INTO {world.orders_table} (number) VALUES ('blocking')"))
                with pytest.raises(FenceMisuseError, match=r"not a sqlalchemy\.\S+Connection: use SqlFence"):
                    await begun(txcore.AsyncTransactionProducer, fence).prepare(connection)

    asyncio.run(run())
    with world.engine.connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {world.orders_table}")).scalar_one() == 2
    assert not broker.topics.get("orders")


def test_only_the_block_has_a_connection(world):
    """Outside the database style, `connection` is an error that says where there is one."""
    producer = txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=world.fence)
    with pytest.raises(txcore.TransactionStateError, match=r"only the block of `producer\.transaction"):
        _ = producer.begin().connection
