"""The public surface as users write it; mypy reads this file, no test runs it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Mapping
from typing import Any, assert_type

import psycopg
import sqlalchemy
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import txcore
from txcore import (
    AsyncInbox,
    AsyncListenerTransaction,
    AsyncSqlFence,
    AsyncTransaction,
    AsyncTransactionListener,
    AsyncTransactionProducer,
    Checker,
    CheckPolicy,
    CheckReport,
    EndResult,
    EndState,
    Event,
    HalfView,
    Inbox,
    Limits,
    ListenerTransaction,
    LocalTransactionState,
    Message,
    Operator,
    ParkedHalf,
    PendingHalf,
    Relay,
    RelayLimits,
    RelayStats,
    SqlFence,
    Transaction,
    TransactionId,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)
from txcore.fence import FenceReading
from txcore.history.journey import Journey
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.port import Backend
from txcore.sqlfence import FenceStats, PruneResult
from txcore.testing import DrainReport, Kit

engine = sqlalchemy.create_engine("sqlite:///shop.db")
async_engine = create_async_engine("sqlite+aiosqlite:///shop.db")
fence = SqlFence(engine)
backend = txcore.connect("memory://shop")
assert_type(backend, Backend)
assert_type(SqlFence.ddl("postgresql"), list[str])
assert_type(txcore.Inbox.ddl("mysql", table="shop_inbox"), list[str])
assert_type([SqlFence.metadata("sqlite"), txcore.Inbox.metadata("sqlite")], list[sqlalchemy.MetaData])


class Listener(TransactionListener):
    """A listener with topics of its own."""

    topics = ("orders.created",)

    def execute(self, transaction: ListenerTransaction, message: Message, arg: str) -> LocalTransactionState:
        """Fence the transaction and commit."""
        assert_type(transaction.transaction_id, TransactionId)
        with engine.begin() as connection:
            transaction.fence(connection)
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Answer by the half's contents."""
        assert_type(half.messages, tuple[Message, ...])
        assert_type(half.transaction_id, TransactionId)
        return LocalTransactionState.UNKNOWN if half.check_times else LocalTransactionState.ROLLBACK


class AsyncListener(AsyncTransactionListener):
    """An asynchronous listener."""

    async def execute(self, transaction: AsyncListenerTransaction, message: Message, arg: str) -> LocalTransactionState:
        """Await the fence; mypy reports one that is not awaited."""
        async with async_engine.begin() as connection:
            transaction.fence(connection)  # type: ignore[unused-coroutine]
            await transaction.fence(connection)
        with engine.begin() as blocking:
            await transaction.fence(blocking)  # type: ignore[arg-type]
        return LocalTransactionState.COMMIT


class PortedListener(TransactionListener):
    """A listener in RocketMQ's form."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Fence the current transaction and commit."""
        with engine.begin() as connection:
            txcore.current_transaction().fence(connection)
        return LocalTransactionState.COMMIT


class AsyncPortedListener(AsyncTransactionListener):
    """An asynchronous listener in RocketMQ's form."""

    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Fence the current transaction and commit."""
        async with async_engine.begin() as connection:
            assert_type(txcore.current_transaction().fence(connection), Awaitable[None])
        return LocalTransactionState.COMMIT


def database_style() -> None:
    """Publish within a block of the database style."""
    producer = TransactionProducer(backend, group="shop", fence=fence, policy=CheckPolicy(immunity_s=10))
    with producer.transaction(engine) as tx:
        assert_type(tx, Transaction)
        assert_type(tx.connection, Connection)
        tx.publish(Message("orders.created", b"body", key=b"k", headers={"a": "b", "c": b"d"}))
        tx.publish(Message.json("orders.created", {"number": 1}, key="1", headers=None))
        tx.publish(Message.of("orders.created", 42, serializer=as_text, key=b"1"))
    assert_type(tx.result, EndResult | None)
    with producer.transaction() as tx:  # on the fence's own engine
        tx.publish(Message("orders.created", b"body"))
    producer.transaction(async_engine)  # type: ignore[arg-type]
    producer.transaction("sqlite:///shop.db")  # type: ignore[arg-type]
    TransactionProducer(backend, "shop", fence=AsyncSqlFence(async_engine))  # type: ignore[arg-type]
    SqlFence(async_engine)  # type: ignore[arg-type]
    SqlFence(engine, "shop_tx")  # type: ignore[call-arg]


def as_text(_topic: str, obj: object) -> tuple[bytes, dict[str, str]]:
    """Encode any object as its text."""
    return str(obj).encode(), {"content-type": "text/plain"}


def listener_style() -> None:
    """Send one message and many in the listener style."""
    producer = TransactionProducer(backend, "shop", listener=Listener())
    result = producer.send_message_in_transaction(
        Message("t", b"", check_policy=CheckPolicy(check_max=3)), arg=object()
    )
    assert_type(result, TransactionSendResult)
    assert_type(result.end, EndResult | None)
    assert_type(producer.send_many([(Message("t", b""), 1)]), list[TransactionSendResult])


def primitives() -> None:
    """Begin, prepare and end a transaction, and use a handle as another process would."""
    with TransactionProducer(backend, "shop", fence=fence) as producer:
        tx = producer.begin()
        tx.publish(Message("t", b""))
        with engine.connect() as connection:
            tx.prepare(connection)
            connection.commit()
        assert_type(tx.commit().state, EndState)
        assert_type(producer.attach(tx.handle()).rollback(), EndResult)


def every_connection(own: psycopg.Connection[Any], file: sqlite3.Connection, session: Session) -> None:
    """Prepare on each kind of connection; an asynchronous one is another producer's."""
    tx = TransactionProducer(backend, "shop", fence=fence).begin()
    tx.prepare(own)
    tx.prepare(file)
    tx.prepare(session)
    tx.prepare(AsyncSession(async_engine))  # type: ignore[arg-type]
    tx.prepare("sqlite:///shop.db")  # type: ignore[arg-type]


def the_fence() -> None:
    """Ask a blocking fence: each method returns its value."""
    assert_type(fence.create(), None)
    assert_type(fence.check([bytes(16)], "shop"), Mapping[bytes, FenceReading])
    assert_type(fence.peek([bytes(16)]), Mapping[bytes, FenceReading])
    assert_type(fence.stats(), FenceStats)
    assert_type(fence.begin(None, bytes(16), "shop"), Connection)
    assert_type(fence.prune(bytes(16), frozenset), PruneResult)


async def the_async_fence() -> None:
    """Ask an asynchronous fence: each method is awaited."""
    asked = AsyncSqlFence(async_engine)
    asked.create()  # type: ignore[unused-coroutine]
    await asked.create()
    assert_type(await asked.check([bytes(16)], "shop"), Mapping[bytes, FenceReading])
    assert_type(await asked.peek([bytes(16)]), Mapping[bytes, FenceReading])
    assert_type(await asked.stats(), FenceStats)
    assert_type(await asked.begin(None, bytes(16), "shop"), AsyncConnection)
    assert_type(await asked.prune(bytes(16), frozenset), PruneResult)
    AsyncSqlFence(engine)  # type: ignore[arg-type]


async def consuming_asynchronously(message: object) -> None:
    """Receive a client's message by the inbox with `async with`."""
    inbox = AsyncInbox(async_engine, table="mail_inbox")
    assert_type(await inbox.create(), None)
    assert_type(await inbox.prune(86_400), PruneResult)
    with engine.begin() as blocking:
        inbox.receive(blocking, message)  # type: ignore[arg-type]
    AsyncInbox(engine)  # type: ignore[arg-type]
    async with async_engine.begin() as connection, inbox.receive(connection, message) as is_first:
        assert_type(is_first, bool)
    async with async_engine.begin() as connection, inbox.receive(connection, message, old_is_first=True) as is_first:
        assert_type(is_first, bool)


async def asynchronously(loop: asyncio.AbstractEventLoop) -> None:
    """Use the asynchronous producer with `await`, and its fence in the checker beside it."""
    shared = AsyncSqlFence(async_engine)
    Checker(backend, "shop", fence=shared, event_loop=loop)
    AsyncTransactionProducer(backend, "shop", fence=fence)  # type: ignore[arg-type]
    async with txcore.connect("memory://") as opened, Checker(opened, "shop", fence=fence) as checker:
        assert_type(opened, Backend)
        assert_type(checker, Checker)
    producer = AsyncTransactionProducer(backend, "shop", fence=shared, listener=AsyncListener())
    async with producer as entered, entered.transaction(async_engine) as tx:
        assert_type(entered, AsyncTransactionProducer)
        assert_type(tx, AsyncTransaction)
        assert_type(tx.connection, AsyncConnection)
        tx.publish(Message("t", b""))
    assert_type(await producer.send_message_in_transaction(Message("t", b"")), TransactionSendResult)
    assert_type(await producer.send_many([(Message("t", b""), None)]), list[TransactionSendResult])
    begun = producer.begin()
    async with AsyncSession(async_engine) as session:
        await begun.prepare(session)
        await session.commit()
    producer.transaction(engine)  # type: ignore[arg-type]
    assert_type(await begun.commit(), EndResult)
    assert_type(await producer.close(), bool)


class Metrics:
    """A plugin."""

    @txcore.hookimpl
    def txcore_on_event(self, event: Event) -> None:
        """Count the event by its name."""
        assert_type(event.name, str)


def checking() -> None:
    """Run a checker within the program."""
    checker = Checker(backend, "shop", listener=[Listener()], fence=fence, limits=Limits(), plugins=[Metrics()])
    assert_type(checker.run_once(), CheckReport)
    with txcore.connect("memory://shop") as opened, Checker(opened, "shop", fence=fence) as running:
        assert_type(opened, Backend)
        assert_type(running, Checker)
    checker.start()
    checker.stop()


def operating() -> None:
    """List, resume and force halves."""
    with Operator(backend, "shop", by="anna") as operator:
        assert_type(operator, Operator)
    assert_type(operator.pending(), list[PendingHalf])
    assert_type(operator.parked(), list[ParkedHalf])
    assert_type(operator.show(TransactionId(bytes(16))), Journey)
    operator.resume(TransactionId.parse("0190b6f0-0000-7000-8000-000000000000"), "why")
    assert_type(operator.commit(TransactionId(bytes(16)), "why", wait_s=1.0), EndResult)
    assert_type(operator.rollback(TransactionId(bytes(16)), "why", override_fence=True), EndResult)


def in_tests() -> None:
    """Use a broker in memory."""
    broker = MemoryBroker()
    TransactionProducer(MemoryBackend(broker), "shop")
    assert_type([each.body for each in broker.topics["t"]], list[bytes])


def consuming(headers: dict[str, str | bytes]) -> None:
    """Receive a message by the inbox with `with`."""
    inbox = Inbox(engine)
    assert_type(inbox.create(), None)
    assert_type(inbox.prune(86_400), PruneResult)
    with engine.begin() as connection, inbox.receive(connection, headers) as is_first:
        assert_type(is_first, bool)
    Inbox(async_engine)  # type: ignore[arg-type]


def by_the_message_table() -> None:
    """Send in mode auto, and run the relay that this mode needs."""
    TransactionProducer(backend, "shop", fence=fence, mode="outbox")  # type: ignore[arg-type]
    AsyncTransactionProducer(backend, "shop", mode="outbox")  # type: ignore[arg-type]
    TransactionProducer(backend, "shop", policy=CheckPolicy(6.0))  # type: ignore[call-arg]
    producer = TransactionProducer(backend, "shop", fence=fence, mode="auto", half_deadline_s=1.0)
    with producer.transaction(engine) as tx:
        tx.publish(Message("orders.created", b"42"))
    assert tx.result is not None
    assert_type(tx.result.state is EndState.VIA_TABLE, bool)
    Relay(backend, "shop", async_engine)  # type: ignore[arg-type]
    relay = Relay(backend, "shop", engine, limits=RelayLimits(tries_max=5))
    assert_type(relay.run_once().sent, int)
    with relay as running:
        assert_type(running, Relay)
    relay.start()
    assert_type(relay.stop(), bool)
    assert_type(relay.stats(), RelayStats)
    assert_type(relay.resume(tx.transaction_id), int)


async def in_a_test(kit: Kit) -> None:
    """Use the test kit with the types of its results."""
    assert_type(kit.producer("shop", fence=fence, mode="table"), TransactionProducer)
    assert_type(kit.async_producer("shop", listener=AsyncListener()), AsyncTransactionProducer)
    assert_type(kit.checker("shop", listener=Listener()).run_once(), CheckReport)
    assert_type(kit.relay("shop", engine), Relay)
    with kit.crash_before("database commit"):
        kit.crash_after("commit")  # type: ignore[arg-type]
    kit.clock.advance(6)
    assert_type(kit.drain(), DrainReport)
    assert_type(await kit.drain_async(), DrainReport)
    assert_type(kit.assert_published("t", body="x", value={"order": 1}, key=b"1", headers={"a": "b"}), list[Message])
    kit.assert_not_published("t")
    assert_type(kit.backend, MemoryBackend)
