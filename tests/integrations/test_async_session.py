"""Messages of a SQLAlchemy AsyncSession are published only if its transaction commits."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session
from txcore_conformance import servers
from txcore_conformance.kit import FAST, wait_until
from txcore_conformance.required import obtained

import txcore
from txcore.integrations.async_session import AsyncSessionPublisher
from txcore.memory import Fate, Faults, MemoryBackend, MemoryBroker

INSERT = sqlalchemy.text("INSERT INTO orders VALUES (:name)")
ACCEPTED = txcore.EndState.ACCEPTED


class Refusing(Faults):
    """Refuses halves while `is_on` is set."""

    is_on = False

    def fate(self, what, transaction_ids):
        return Fate.REFUSED if self.is_on and what == "half" else Fate.DONE


class Shop:
    def __init__(self, engine):
        self.engine = engine
        self.faults = Refusing()
        self.broker = MemoryBroker(faults=self.faults)
        self.backend = MemoryBackend(self.broker)
        self.fence = txcore.AsyncSqlFence(engine)
        policy = txcore.CheckPolicy(immunity_s=2.5)
        producer = txcore.AsyncTransactionProducer(self.backend, "shop", fence=self.fence, policy=policy)
        self.publisher = AsyncSessionPublisher(producer)
        self.sessions = async_sessionmaker(engine)
        self.publisher.watch(self.sessions)

    async def create(self):
        await self.fence.create()
        async with self.engine.begin() as connection:
            await connection.execute(sqlalchemy.text("CREATE TABLE orders (name VARCHAR(20))"))

    async def place(self, session, name):
        await session.execute(INSERT, {"name": name})
        self.publisher.publish(session, txcore.Message("orders", name.encode()))

    async def orders(self):
        async with self.engine.connect() as connection:
            return list((await connection.execute(sqlalchemy.text("SELECT name FROM orders"))).scalars())

    @property
    def messages(self):
        return [each.body.decode() for each in self.broker.topics.get("orders", [])]


@pytest.fixture(scope="session")
def postgresql():
    server = obtained("postgresql", servers.postgresql)
    yield server
    server.remove()


@pytest.fixture(params=["aiosqlite", "psycopg"])
def run(request, tmp_path):
    """A function that runs a coroutine function with a shop, on a database of its own."""
    if request.param == "aiosqlite":
        url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    else:
        url = request.getfixturevalue("postgresql").fresh_database()

    def runner(scenario):
        async def main():
            engine = create_async_engine(url)
            try:
                shop = Shop(engine)
                await shop.create()
                await scenario(shop)
            finally:
                await engine.dispose()

        asyncio.run(main())

    return runner


def test_a_commit_sends_all_that_was_published(run):
    """The messages are sent in order, with a result; the next transaction of the session has its own messages."""

    async def scenario(shop):
        async with shop.sessions() as session:
            await shop.place(session, "one")
            await shop.place(session, "two")
            assert shop.messages == []
            await session.commit()
            assert shop.publisher.result(session).state is ACCEPTED
            await shop.place(session, "three")
            assert shop.publisher.result(session) is None
            await session.commit()
        assert ["one", "two", "three"] == await shop.orders() == shop.messages

    run(scenario)


def test_rollbacks_drop_what_was_published(run):
    """A rollback drops all, and one to a savepoint what was published after it."""

    async def scenario(shop):
        async with shop.sessions() as session:
            await shop.place(session, "never")
            await session.rollback()
            await shop.place(session, "kept")
            with contextlib.suppress(ZeroDivisionError):
                async with session.begin_nested():
                    await shop.place(session, "dropped")
                    raise ZeroDivisionError
            await session.commit()
        assert ["kept"] == await shop.orders() == shop.messages

    run(scenario)


def test_a_refused_half_keeps_the_session_from_committing(run):
    """The error says that nothing was sent; the order is rolled back, and a new transaction works."""

    async def scenario(shop):
        shop.faults.is_on = True
        with pytest.raises(txcore.HalfRefusedError):
            async with shop.sessions.begin() as session:
                await shop.place(session, "refused")
        shop.faults.is_on = False
        async with shop.sessions.begin() as session:
            await shop.place(session, "taken")
        assert ["taken"] == await shop.orders() == shop.messages

    run(scenario)


def test_tasks_at_once_have_messages_of_their_own(run):
    """Ten tasks commit or roll back at once, each in its session: only the committed orders are announced."""

    async def scenario(shop):
        async def buy(number):
            async with shop.sessions() as session:
                await shop.place(session, f"{number}")
                await (session.rollback() if number % 2 else session.commit())

        if shop.engine.dialect.name == "sqlite":  # which has one writer at a time
            for number in range(10):
                await buy(number)
        else:
            await asyncio.gather(*(buy(number) for number in range(10)))
        assert ["0", "2", "4", "6", "8"] == sorted(await shop.orders()) == sorted(shop.messages)

    run(scenario)


def test_a_cancelled_commit_is_decided_by_the_check(run):
    """A task that is cancelled while its half is stored has committed nothing, and the check rolls back."""

    async def scenario(shop):
        async def buy():
            async with shop.sessions() as session:
                await shop.place(session, "cancelled")
                task = asyncio.current_task()
                asyncio.get_running_loop().call_soon(task.cancel)
                await session.commit()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(buy())
        policy = txcore.CheckPolicy(interval_s=0.01)
        loop, operator = asyncio.get_running_loop(), txcore.Operator(shop.backend, "shop", by="test")
        checker = txcore.Checker(shop.backend, "shop", fence=shop.fence, policy=policy, limits=FAST, event_loop=loop)
        checker.start()
        await asyncio.to_thread(wait_until, lambda: not operator.pending(), "the end of the half")
        await asyncio.to_thread(checker.stop)
        assert await shop.orders() == shop.messages

    run(scenario)


def test_only_the_watched_sessions_are_touched(run):
    """Sessions of other makers are refused, and a synchronous Session's class is not watched."""

    async def scenario(shop):
        async with AsyncSession(shop.engine) as other:
            with pytest.raises(txcore.UsageError, match="is not watched"):
                shop.publisher.publish(other, txcore.Message("orders", b"x"))
        with pytest.raises(txcore.UsageError, match="use a SessionPublisher"):
            shop.publisher.publish(Session(), txcore.Message("orders", b"x"))
        assert not sqlalchemy.event.contains(Session, "before_commit", shop.publisher._before_commit)
        shop.publisher.watch(shop.sessions)
        scoped = async_scoped_session(shop.sessions, asyncio.current_task)
        shop.publisher.watch(scoped)
        await shop.place(scoped, "scoped")
        await scoped.commit()
        assert shop.publisher.result(scoped).state is ACCEPTED
        await scoped.remove()
        async with AsyncSession(shop.engine) as alone:
            shop.publisher.watch(alone)
            await shop.place(alone, "alone")
            await alone.commit()
        assert ["scoped", "alone"] == shop.messages

    run(scenario)
