"""Producers in the modes table and auto: committed messages are sent, by the half or by the message table."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance.kit import Observed

from txcore import (
    AsyncTransactionProducer,
    Checker,
    CheckPolicy,
    ConfigError,
    EndState,
    Limits,
    Message,
    MessageRejectedError,
    Operator,
    Relay,
    TransactionProducer,
    TransactionStateError,
    wire,
)
from txcore.errors import BackendUnavailableError, FencedError, FenceMisuseError, NotSentError
from txcore.fence import FenceAnswer
from txcore.memory import STRONG, Fate, Faults, MemoryBackend, MemoryBroker
from txcore.message_table import TableRow
from txcore.port import failed
from txcore.records import LogKind, OpKind
from txcore.runtime import instrumentation
from txcore.sqlfence import AsyncSqlFence

GROUP = "orders"
TOPIC = "orders.created"


class AckIsLost(Faults):
    """Faults with which the half is stored and the producer gets no acknowledgement."""

    def fate(self, what, *_):
        return Fate.ACK_LOST if what == "half" else Fate.DONE


class HandClock:
    """A clock that moves only when it is advanced."""

    def __init__(self):
        self.now_s = 1_000.0

    def wall_ms(self):
        return 1_700_000_000_000 + round(self.now_s * 1000)

    def elapsed_s(self):
        return self.now_s

    def boot_id(self):
        return "boot"


class Shop:
    """A database of the world and a broker in memory."""

    def __init__(self, world):
        self.world = world
        self.broker = MemoryBroker()
        self.backend = MemoryBackend(self.broker)
        self.observed = Observed()

    def producer(self, mode, **options):
        fence = options.pop("fence", self.world.fence)
        options = {"policy": CheckPolicy(immunity_s=2.5), "plugins": [self.observed]} | options
        return TransactionProducer(self.backend, GROUP, fence=fence, mode=mode, **options)

    def order(self, producer, *messages):
        """Commit one order and return its transaction."""
        with producer.transaction(self.world.engine) as tx:
            self.world.add_order(tx.connection, tx.transaction_id)
            for message in messages or (Message(TOPIC, b"body", b"key", {"n": "1"}),):
                tx.publish(message)
        return tx

    def relay(self, **options):
        return Relay(self.backend, GROUP, self.world.engine, table=self.world.fence_table, **options)

    def check(self):
        """Run one sweep of a checker and return its report."""
        checker = Checker(self.backend, GROUP, fence=self.world.fence, limits=Limits(read_back_s=0.01, retry_s=0.01))
        report = checker.run_once()
        checker.stop()
        return report

    def waiting(self):
        with self.world.engine.connect() as connection:
            return connection.execute(text(f"SELECT count(*) FROM {self.world.fence_table}_msg")).scalar_one()

    def log(self, kind):
        return [each for number in range(4) for each in self.broker.log(GROUP, kind, number)]

    def finals(self):
        ops = [op for each in self.log(LogKind.OP) for op in wire.decode_ops(each.body)]
        return [OpKind(op.kind) for op in ops if op.kind in {OpKind.COMMIT, OpKind.ROLLBACK}]

    def delivered(self, topic=TOPIC):
        return self.broker.topics.get(topic, [])


@pytest.fixture
def shop(world):
    return Shop(world)


@pytest.fixture
def sqlite_shop(sqlite):
    return Shop(sqlite)


def headers_of(target):
    return {name: value for name, value in target.headers.items() if name != wire.HEADER_BY}


def test_table_mode_needs_no_broker_until_its_relay_sends(shop):
    """In mode table the message is committed with the order, without half or op, and the relay sends it."""
    shop.broker.down = True
    tx = shop.order(shop.producer("table"))
    assert tx.result.state is EndState.VIA_TABLE
    assert shop.world.has_order(tx.transaction_id)
    assert shop.waiting() == 1
    shop.broker.down = False
    assert shop.relay().run_once().sent == 1
    (target,) = shop.delivered()
    assert (target.key, target.body) == (b"key", b"body")
    assert headers_of(target) == {
        "n": "1",
        wire.HEADER_ID: wire.target_id(tx.transaction_id, 0),
        wire.HEADER_GROUP: GROUP,
    }
    assert shop.waiting() == 0
    assert shop.log(LogKind.HALF) == shop.log(LogKind.OP) == []


def test_consumers_see_no_difference_between_the_modes(sqlite_shop):
    """In each mode a consumer gets the same key, body and header names."""
    for mode in ("half", "table", "auto"):
        sqlite_shop.order(sqlite_shop.producer(mode))
    sqlite_shop.relay().run_once()
    first, second, third = (
        (each.key, each.body, sorted(each.headers), each.headers["n"]) for each in sqlite_shop.delivered()
    )
    assert first == second == third


def test_rolled_back_transaction_leaves_nothing_in_the_table(shop):
    """An exception in the block rolls order, fence row and message back."""
    ids = []

    def order():
        with shop.producer("table").transaction(shop.world.engine) as tx:
            ids.append(tx.transaction_id)
            tx.publish(Message(TOPIC, b"body"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        order()
    assert (shop.waiting(), shop.world.row(ids[0])) == (0, FenceAnswer.ABSENT)


def test_database_that_cannot_take_the_message_rolls_everything_back(shop):
    """Without the message table the transaction is rolled back, with an error."""
    with shop.world.engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {shop.world.fence_table}_msg"))
    with pytest.raises(NotSentError, match="rolled back, nothing sent") as caught:
        shop.order(shop.producer("table"))
    assert not shop.world.has_order(caught.value.transaction_id)


def test_block_that_publishes_nothing_leaves_no_row(shop):
    """A block that publishes nothing leaves no row in the fence table or the message table."""
    with shop.producer("table").transaction(shop.world.engine) as tx:
        shop.world.add_order(tx.connection, tx.transaction_id)
    assert (shop.waiting(), shop.world.row(tx.transaction_id)) == (0, FenceAnswer.ABSENT)
    assert shop.world.has_order(tx.transaction_id)


def test_auto_mode_writes_a_half_while_the_broker_is_well(sqlite_shop):
    """In mode auto with a healthy broker, the message table stays empty."""
    tx = sqlite_shop.order(sqlite_shop.producer("auto"))
    assert tx.result.state is EndState.ACCEPTED
    assert (sqlite_shop.waiting(), len(sqlite_shop.delivered())) == (0, 1)


def test_auto_mode_falls_back_while_the_broker_is_down(shop):
    """In mode auto, an order during an outage is committed with its message, which is delivered afterwards."""
    producer = shop.producer("auto")
    shop.broker.down = True
    tx = shop.order(producer)
    assert (tx.result.state, shop.waiting()) == (EndState.VIA_TABLE, 1)
    shop.broker.down = False
    shop.relay().run_once()
    assert [wire.target_id(tx.transaction_id, 0)] == [each.headers[wire.HEADER_ID] for each in shop.delivered()]
    assert shop.world.check(tx.transaction_id) is FenceAnswer.SENT


def test_half_that_turns_up_after_a_fallback_is_closed_without_a_second_publish(shop):
    """A half with a lost ack is closed by COMMIT without targets, after the relay has sent its message."""
    clock = HandClock()
    producer = shop.producer("auto", clock=clock)
    shop.broker.faults, shop.broker.clock = AckIsLost(), clock
    tx = shop.order(producer)
    shop.broker.faults = Faults()
    assert (len(shop.log(LogKind.HALF)), shop.waiting()) == (1, 1)
    clock.now_s += 60
    assert shop.check().pending == 1
    assert (shop.finals(), shop.delivered()) == ([], [])
    shop.relay().run_once()
    clock.now_s += 60
    assert shop.check().pending == 0
    assert shop.finals() == [OpKind.COMMIT]
    assert [wire.target_id(tx.transaction_id, 0)] == [each.headers[wire.HEADER_ID] for each in shop.delivered()]


@pytest.mark.parametrize("wanted", ["commit", "rollback"])
def test_an_override_of_a_fallback_is_refused(shop, wanted):
    """The relay delivers messages of the message table in any case, so an override would lie or deliver twice."""
    clock = HandClock()
    producer = shop.producer("auto", clock=clock)
    shop.broker.faults, shop.broker.clock = AckIsLost(), clock
    tx = shop.order(producer)
    shop.broker.faults = Faults()
    operator = Operator(MemoryBackend(shop.broker), GROUP, by="anna")
    getattr(operator, wanted)(tx.transaction_id, "a mistake", override_fence=True)
    for _ in range(3):
        clock.now_s += 60
        shop.check()
    (reply,) = operator.show(tx.transaction_id).replies
    assert "message table" in reply[1].reason
    assert (shop.finals(), shop.relay().run_once().sent) == ([], 1)
    clock.now_s += 60
    shop.check()
    assert shop.finals() == [OpKind.COMMIT]
    assert [wire.target_id(tx.transaction_id, 0)] == [each.headers[wire.HEADER_ID] for each in shop.delivered()]


def test_half_that_turns_up_after_a_rolled_back_fallback_is_rolled_back(shop):
    """After a rolled back fallback the fence has no row, so a check's tombstone rolls the half back."""
    clock = HandClock()
    producer = shop.producer("auto", clock=clock)
    shop.broker.faults, shop.broker.clock = AckIsLost(), clock
    tx = producer.begin()
    tx.publish(Message(TOPIC, b"body"))
    with shop.world.engine.connect() as connection:
        tx.prepare(connection)
        connection.rollback()
    shop.broker.faults = Faults()
    clock.now_s += 60
    shop.check()
    assert shop.finals() == [OpKind.ROLLBACK]
    assert (shop.relay().run_once().sent, shop.delivered()) == (0, [])


def test_auto_mode_raises_what_is_the_messages_own_fault(sqlite_shop):
    """An unknown topic and an oversize body are refused and not put into the table."""
    sqlite_shop.broker.profile = replace(STRONG, auto_create=False)
    sqlite_shop.broker.create_topic(TOPIC)
    producer = sqlite_shop.producer("auto")
    for message, reason in ((Message("no.such", b"body"), "topic"), (Message(TOPIC, b"x" * 1_000_001), "size")):
        with pytest.raises(MessageRejectedError) as caught:
            sqlite_shop.order(producer, message)
        assert caught.value.reason == reason
    assert sqlite_shop.waiting() == 0


def test_table_mode_raises_an_oversize_body(sqlite_shop):
    """In mode table, a body that is too large for the backend is refused."""
    with pytest.raises(MessageRejectedError):
        sqlite_shop.order(sqlite_shop.producer("table"), Message(TOPIC, b"x" * 1_000_001))


def test_target_without_room_falls_back_and_leaves_the_circuit_closed(sqlite_shop, monkeypatch):
    """A full target leads to the table, and does not open the circuit for other targets."""
    producer = sqlite_shop.producer("auto")
    full = MessageRejectedError("the queue is full", topic=TOPIC, reason="full")
    monkeypatch.setattr(sqlite_shop.broker, "refusal", lambda half: full)
    for _ in range(5):
        assert sqlite_shop.order(producer).result.state is EndState.VIA_TABLE
    monkeypatch.undo()
    assert sqlite_shop.order(producer).result.state is EndState.ACCEPTED


def test_silent_broker_keeps_the_database_transaction_no_longer_than_the_deadline(sqlite_shop):
    """If the broker gives no answer within the deadline, the transaction commits by the table."""
    producer = sqlite_shop.producer("auto", half_deadline_s=0.2)
    sqlite_shop.broker.schedule = lambda delay_s, action: None
    began_s = time.monotonic()
    assert sqlite_shop.order(producer).result.state is EndState.VIA_TABLE
    assert time.monotonic() - began_s < 5


def test_circuit_opens_after_failures_and_closes_after_a_probe(sqlite_shop):
    """While the circuit is open, the broker gets one probe after each pause and no other half."""
    clock = HandClock()
    producer = sqlite_shop.producer("auto", clock=clock)
    asked = []

    class Counted(Faults):
        def fate(self, what, *_):
            asked.append(what)
            return Fate.LOST

    sqlite_shop.broker.faults = Counted()
    for _ in range(10):
        sqlite_shop.order(producer)
    assert asked == ["half"] * 3
    clock.now_s += 1.1
    for _ in range(5):
        sqlite_shop.order(producer)
    assert asked == ["half"] * 4
    sqlite_shop.broker.faults = Faults()
    assert sqlite_shop.order(producer).result.state is EndState.VIA_TABLE
    clock.now_s += 2.1
    assert [sqlite_shop.order(producer).result.state for _ in range(2)] == [EndState.ACCEPTED] * 2
    named = sqlite_shop.observed.named
    assert [len(named(instrumentation.PRODUCER_TO_TABLE)), len(named(instrumentation.PRODUCER_TO_BROKER))] == [1, 1]
    assert len(named(instrumentation.TRANSACTION_VIA_TABLE)) == 16


def test_auto_mode_starts_and_sells_while_the_broker_is_down(sqlite_shop, monkeypatch):
    """A producer joins its group at the broker's first answer; a wrong setting is raised at once."""
    ensure_group = sqlite_shop.backend.ensure_group
    monkeypatch.setattr(sqlite_shop.backend, "ensure_group", lambda *_: failed(BackendUnavailableError("down")))
    clock = HandClock()
    producer = sqlite_shop.producer("auto", clock=clock)
    assert sqlite_shop.order(producer).result.state is EndState.VIA_TABLE
    monkeypatch.setattr(sqlite_shop.backend, "ensure_group", ensure_group)
    clock.now_s += 60
    assert sqlite_shop.order(producer).result.state is EndState.ACCEPTED
    with pytest.raises(ConfigError, match="partitions"):
        sqlite_shop.producer("auto", partition_count=77)


def test_primitive_style_ends_via_table(shop):
    """In mode table, an end after the caller's commit is VIA_TABLE, publishes nothing and writes no op."""
    tx = shop.producer("table").begin()
    tx.publish(Message(TOPIC, b"body"))
    with shop.world.engine.connect() as connection:
        tx.prepare(connection)
        handle = tx.handle()
        connection.commit()
    assert tx.commit().state is EndState.VIA_TABLE
    assert shop.producer("table").attach(handle).commit().state is EndState.VIA_TABLE
    assert tx.rollback().state is EndState.CONFLICT
    assert shop.producer("table").attach(handle).rollback().state is EndState.CONFLICT
    assert (shop.relay().run_once().sent, shop.finals()) == (1, [])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_plain_driver_connection_carries_the_message(make_world, kind):
    """A plain driver connection carries the message without SQLAlchemy in the application."""
    shop = Shop(make_world(kind))
    url = shop.world.engine.url
    tx = shop.producer("table").begin()
    tx.publish(Message(TOPIC, b"body"))
    if kind == "sqlite":
        connection = sqlite3.connect(url.database)
    else:
        connection = psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    with contextlib.closing(connection):
        tx.prepare(connection)
        connection.commit()
    assert tx.commit().state is EndState.VIA_TABLE
    assert shop.relay().run_once().sent == 1


def test_decision_of_a_check_refuses_row_and_messages(shop):
    """After a check's decision, row and messages are refused and the caller's transaction is rolled back."""
    tx = shop.producer("table").begin()
    tx.publish(Message(TOPIC, b"body"))
    shop.world.check(tx.transaction_id)
    with shop.world.engine.connect() as connection:
        shop.world.add_order(connection, tx.transaction_id)
        with pytest.raises(FencedError):
            tx.prepare(connection)
        connection.commit()
    assert (shop.waiting(), shop.world.has_order(tx.transaction_id)) == (0, False)
    with pytest.raises(TransactionStateError):
        tx.commit()


def test_messages_go_into_the_table_only_with_the_fence_row(shop):
    """Messages without the fence row are refused, because a fallback's half would be published as well."""
    identity = shop.world.new_id()
    with shop.world.engine.connect() as connection:
        connection.begin()
        with pytest.raises(FenceMisuseError, match="not in this transaction"):
            shop.world.fence.enqueue(connection, identity, GROUP, [TableRow(identity, 0, 0, b"body")])
        connection.commit()
    assert shop.waiting() == 0


def test_row_and_messages_are_refused_inside_a_savepoint(shop):
    """A savepoint is refused, because it may be rolled back while its transaction commits."""
    tx = shop.producer("table").begin()
    tx.publish(Message(TOPIC, b"body"))
    with shop.world.engine.connect() as connection:
        shop.world.add_order(connection, tx.transaction_id)
        with connection.begin_nested(), pytest.raises(FenceMisuseError, match="savepoint"):
            tx.prepare(connection)
    assert shop.waiting() == 0
    assert shop.world.check(tx.transaction_id) is FenceAnswer.ROLLBACK


def test_message_that_no_broker_takes_rolls_the_callers_transaction_back(shop):
    """A message that is too large for any broker rolls the caller's transaction back."""
    tx = shop.producer("table").begin()
    tx.publish(Message(TOPIC, b"x" * 600_000))
    tx.publish(Message(TOPIC, b"x" * 600_000))
    with shop.world.engine.connect() as connection:
        shop.world.add_order(connection, tx.transaction_id)
        with pytest.raises(MessageRejectedError):
            tx.prepare(connection)
        connection.commit()
    assert (shop.waiting(), shop.world.has_order(tx.transaction_id)) == (0, False)


def test_many_messages_of_one_transaction_are_relayed_in_their_order(shop):
    """A transaction's messages are relayed in their order, however many statements insert them."""
    tx = shop.producer("table").begin()
    for number in range(250):
        tx.publish(Message(TOPIC, f"{number} \u2603".encode(), b"key"))
    with shop.world.engine.connect() as connection:
        tx.prepare(connection)
        connection.commit()
    assert tx.commit().state is EndState.VIA_TABLE
    shop.relay().run_once()
    assert [each.body for each in shop.delivered()] == [f"{number} \u2603".encode() for number in range(250)]


def test_rolled_back_primitive_style_sends_nothing(shop):
    """A rollback in mode table is certain by its tombstone, and writes no op."""
    tx = shop.producer("table").begin()
    tx.publish(Message(TOPIC, b"body"))
    with shop.world.engine.connect() as connection:
        tx.prepare(connection)
        connection.rollback()
    assert tx.rollback().state is EndState.ACCEPTED
    assert (shop.waiting(), shop.log(LogKind.OP)) == (0, [])


def test_mode_without_a_fence_and_unknown_modes_are_refused(sqlite_shop):
    """A mode with the message table is refused without a fence, and an unknown mode is refused."""
    with pytest.raises(ConfigError, match="needs a fence"):
        sqlite_shop.producer("auto", fence=None)
    with pytest.raises(ConfigError, match="half, table, auto"):
        sqlite_shop.producer("outbox")


def test_table_mode_refuses_what_has_no_database_transaction(sqlite_shop):
    """Preparing in mode table without a database transaction raises an error."""
    producer = sqlite_shop.producer("table")
    tx = producer.begin()
    tx.publish(Message(TOPIC, b"body"))
    with pytest.raises(TransactionStateError, match="open database transaction"):
        tx.prepare()


def test_asynchronous_producer_falls_back_too(sqlite_shop):
    """The asynchronous producer falls back to the table after the deadline, too."""
    sqlite_shop.broker.schedule = lambda delay_s, action: None

    async def run():
        engine = create_async_engine(sqlite_shop.world.engine.url.set(drivername="sqlite+aiosqlite"))
        fence = AsyncSqlFence(engine, table=sqlite_shop.world.fence_table)
        options = {"mode": "auto", "half_deadline_s": 0.2, "policy": CheckPolicy(immunity_s=2.5)}
        producer = AsyncTransactionProducer(sqlite_shop.backend, GROUP, fence=fence, **options)
        async with producer.transaction(engine) as tx:
            tx.publish(Message(TOPIC, b"body"))
        await engine.dispose()
        return tx.result.state

    assert asyncio.run(run()) is EndState.VIA_TABLE
    sqlite_shop.broker.schedule = None
    assert sqlite_shop.relay().run_once().sent == 1
