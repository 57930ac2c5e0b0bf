"""The public surface as users write it; mypy reads this file, no test runs it."""

from __future__ import annotations

from typing import assert_type

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncEngine

import txcore
from txcore import (
    AsyncListenerTransaction,
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
from txcore.history.journey import Journey
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.port import Backend

engine = sqlalchemy.create_engine("sqlite:///shop.db")
fence = SqlFence(engine)
backend = txcore.connect("memory://shop")
assert_type(backend, Backend)
assert_type(SqlFence.ddl("postgresql"), list[str])
assert_type(txcore.Inbox.ddl("mysql", "shop_inbox"), list[str])
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
        transaction.fence(None)  # type: ignore[unused-coroutine]
        await transaction.fence(None)
        return LocalTransactionState.COMMIT


class PortedListener(TransactionListener):
    """A listener in RocketMQ's form."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Fence the current transaction and commit."""
        with engine.begin() as connection:
            txcore.current_transaction().fence(connection)
        return LocalTransactionState.COMMIT


def database_style() -> None:
    """Publish within a block of the database style."""
    producer = TransactionProducer(backend, group="shop", fence=fence, policy=CheckPolicy(immunity_s=10))
    with producer.transaction(engine) as tx:
        assert_type(tx, Transaction)
        tx.publish(Message("orders.created", b"body", key=b"k", headers={"a": "b", "c": b"d"}))
        tx.publish(Message.json("orders.created", {"number": 1}, key="1", headers=None))
        tx.publish(Message.of("orders.created", 42, serializer=as_text, key=b"1"))
    assert_type(tx.result, EndResult | None)


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


async def consuming_asynchronously(async_engine: AsyncEngine, message: object) -> None:
    """Receive a client's message by the inbox with `async with`."""
    inbox = txcore.Inbox(async_engine, table="mail_inbox")
    async with async_engine.begin() as connection, inbox.receive(connection, message) as is_first:
        assert_type(is_first, bool)
    async with async_engine.begin() as connection, inbox.receive(connection, message, old_is_first=True) as is_first:
        assert_type(is_first, bool)


async def asynchronously(async_engine: AsyncEngine) -> None:
    """Use the asynchronous producer with `await`."""
    async with txcore.connect("memory://") as opened, Checker(opened, "shop", fence=fence) as checker:
        assert_type(opened, Backend)
        assert_type(checker, Checker)
    producer = AsyncTransactionProducer(backend, "shop", fence=SqlFence(async_engine), listener=AsyncListener())
    async with producer as entered, entered.transaction(async_engine) as tx:
        assert_type(entered, AsyncTransactionProducer)
        assert_type(tx, AsyncTransaction)
        tx.publish(Message("t", b""))
    assert_type(await producer.send_message_in_transaction(Message("t", b"")), TransactionSendResult)
    assert_type(await producer.send_many([(Message("t", b""), None)]), list[TransactionSendResult])
    begun = producer.begin()
    await begun.prepare()
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
    inbox = txcore.Inbox(engine)
    with engine.begin() as connection, inbox.receive(connection, headers) as is_first:
        assert_type(is_first, bool)


def by_the_message_table() -> None:
    """Send in mode auto, and run the relay that this mode needs."""
    TransactionProducer(backend, "shop", fence=fence, mode="outbox")  # type: ignore[arg-type]
    AsyncTransactionProducer(backend, "shop", fence=fence, mode="outbox")  # type: ignore[arg-type]
    TransactionProducer(backend, "shop", policy=CheckPolicy(6.0))  # type: ignore[call-arg]
    producer = TransactionProducer(backend, "shop", fence=fence, mode="auto", half_deadline_s=1.0)
    with producer.transaction(engine) as tx:
        tx.publish(Message("orders.created", b"42"))
    assert tx.result is not None
    assert_type(tx.result.state is EndState.VIA_TABLE, bool)
    relay = Relay(backend, "shop", engine, limits=RelayLimits(tries_max=5))
    assert_type(relay.run_once().sent, int)
    with relay as running:
        assert_type(running, Relay)
    relay.start()
    assert_type(relay.stop(), bool)
    assert_type(relay.stats(), RelayStats)
    assert_type(relay.resume(tx.transaction_id), int)
