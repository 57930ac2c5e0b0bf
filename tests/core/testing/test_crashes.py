"""A process dies at a step, in each style; draining ends its transaction as the checker would after its death."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

import txcore
from txcore.integrations.session import SessionPublisher
from txcore.memory import KAFKA_LIKE
from txcore.testing import Kit, ProcessDied
from txcore.wire import HEADER_ID

BEFORE_COMMIT = [("before", "half"), ("after", "half"), ("before", "database commit")]
AFTER_COMMIT = [("after", "database commit"), ("before", "publish"), ("after", "publish")]


def crash(kit, when, step):
    return (kit.crash_before if when == "before" else kit.crash_after)(step)


@pytest.mark.parametrize("style", ["place", "place_by_hand"])
@pytest.mark.parametrize(("when", "step"), BEFORE_COMMIT)
def test_process_that_dies_before_its_commit_leaves_neither_order_nor_message(kit, shop, when, step, style):
    """The database rolls back, and the check ends the half, if there is one, without a message."""
    producer = kit.producer("shop", fence=shop.fence)
    with crash(kit, when, step):
        getattr(shop, style)(producer)
    assert [] == shop.orders()
    report = kit.drain()
    assert (0, int((when, step) != ("before", "half"))) == (report.committed, report.rolled_back)
    kit.assert_not_published("orders.created")


@pytest.mark.parametrize("style", ["place", "place_by_hand"])
@pytest.mark.parametrize(("when", "step"), AFTER_COMMIT)
def test_process_that_dies_after_its_commit_is_announced_by_the_checker(kit, shop, when, step, style):
    """The order is there, and draining publishes its message; after "publish" it comes twice with one id."""
    producer = kit.producer("shop", fence=shop.fence)
    with crash(kit, when, step):
        getattr(shop, style)(producer)
    assert ["tea"] == shop.orders()
    if step != "publish" or when == "before":
        kit.assert_not_published("orders.created")
    began_s = kit.clock.now_s
    report = kit.drain()
    assert (1, 0) == (report.committed, report.rolled_back)
    assert report.moved_s >= 6
    assert kit.clock.now_s - began_s == report.moved_s
    kit.assert_published("orders.created", value={"order": 1, "item": "tea"}, count=1)
    copies = kit.published("orders.created")
    assert (2 if (when, step) == ("after", "publish") else 1) == len(copies)
    assert 1 == len({each.headers[HEADER_ID] for each in copies})


def test_order_after_the_crash_is_placed(kit, shop):
    """The process is started again: only the transaction in the block has died."""
    producer = kit.producer("shop", fence=shop.fence)
    with kit.crash_before("database commit"):
        shop.place(producer)
    assert txcore.EndState.ACCEPTED is shop.place(producer, "cake").result.state
    kit.drain()
    assert ["cake"] == shop.orders()
    kit.assert_published("orders.created", value={"order": 1, "item": "cake"}, count=1)


def test_dead_process_reaches_the_broker_no_more(kit, shop):
    """A program that catches everything cannot send after its death."""
    producer = kit.producer("shop", fence=shop.fence)
    with kit.crash_before("database commit"):
        with pytest.raises(ProcessDied):
            shop.place(producer)
        shop.place(producer, "late")
        pytest.fail("the process runs on")
    assert [] == shop.orders()


def test_block_in_which_nothing_dies_fails(kit, shop):
    """A step that never comes is a mistake of the test, and is said."""
    with (
        pytest.raises(AssertionError, match="did not die before 'publish': no transaction"),
        kit.crash_before("publish"),
    ):
        pass
    with pytest.raises(txcore.ConfigError, match="a step is one of 'half'"):
        kit.crash_before("commit")


def test_error_of_the_block_is_raised(kit):
    """An exception of the program before the step is not hidden."""
    with pytest.raises(ZeroDivisionError), kit.crash_before("half"):
        _ = 1 / 0


def test_death_between_targets_and_op_is_the_same_on_a_broker_without_atomic_release(shop):
    """On a broker like Kafka the message comes twice as well."""
    with Kit(KAFKA_LIKE) as kit:
        producer = kit.producer("shop", fence=shop.fence)
        with kit.crash_after("publish"):
            shop.place(producer)
        kit.drain()
        assert 2 == len(kit.published("orders.created"))


class Listener(txcore.TransactionListener):
    """Commits its orders, and looks them up."""

    def __init__(self, shop):
        self.shop = shop

    def execute(self, transaction, message, arg):
        with self.shop.engine.begin() as connection:
            self.shop.insert(connection, arg)
        return txcore.LocalTransactionState.COMMIT

    def check_local_transaction(self, half):
        item = half.messages[0].body.decode()
        return txcore.LocalTransactionState["COMMIT" if item in self.shop.orders() else "ROLLBACK"]


@pytest.mark.parametrize(("when", "step", "orders"), [("after", "half", []), ("after", "database commit", ["tea"])])
def test_listener_style_is_decided_by_its_listener(kit, shop, when, step, orders):
    """The checker asks the listener about the half that the dead process left."""
    producer = kit.producer("shop", listener=Listener(shop))
    with crash(kit, when, step):
        producer.send_message_in_transaction(txcore.Message("orders.created", b"tea"), "tea")
    kit.drain()
    assert orders == shop.orders() == [each.body.decode() for each in kit.published("orders.created")]


@pytest.mark.parametrize(
    ("when", "step", "orders"), [("before", "database commit", []), ("after", "database commit", ["tea"])]
)
@pytest.mark.parametrize("style", ["place", "place_by_hand"])
def test_message_table_is_drained_by_the_relay(kit, shop, when, step, orders, style):
    """What the dead process committed into the message table is sent, and nothing else."""
    producer = kit.producer("shop", fence=shop.fence, mode="table")
    with crash(kit, when, step):
        getattr(shop, style)(producer)
    kit.assert_not_published("orders.created")
    assert len(orders) == kit.drain().relayed
    assert orders == shop.orders() == [each.body.decode().split('"')[-2] for each in kit.published("orders.created")]


@pytest.mark.parametrize(("when", "step"), BEFORE_COMMIT + AFTER_COMMIT)
def test_asyncio_service_dies_in_the_same_way(kit, shop, when, step):
    """An asynchronous engine, producer and drain."""

    async def run():
        engine = create_async_engine(shop.url)
        fence = txcore.AsyncSqlFence(engine)
        producer = kit.async_producer("shop", fence=fence)
        with crash(kit, when, step):
            async with producer.transaction(engine) as tx:
                await tx.connection.execute(sqlalchemy.text("INSERT INTO orders (item) VALUES ('tea')"))
                tx.publish(txcore.Message("orders.created", b"tea"))
        with pytest.raises(txcore.UsageError, match=r"await kit\.drain_async"):
            kit.drain()
        report = await kit.drain_async()
        kit.close()
        await engine.dispose()
        return report

    is_committed = (when, step) in AFTER_COMMIT
    report = asyncio.run(run())
    assert int(is_committed) == report.committed
    assert (["tea"] if is_committed else []) == shop.orders()
    assert {each.body for each in kit.published("orders.created")} == ({b"tea"} if is_committed else set())


def test_asyncio_listener_is_awaited(kit):
    """An asynchronous listener answers in the test's own event loop."""

    class Asking(txcore.AsyncTransactionListener):
        async def execute(self, transaction, message, arg):
            return txcore.LocalTransactionState.COMMIT

        async def check_local_transaction(self, half):
            await asyncio.sleep(0)
            return txcore.LocalTransactionState.COMMIT

    async def run():
        async with kit.async_producer("shop", listener=Asking()) as producer:
            with kit.crash_after("database commit"):
                await producer.send_message_in_transaction(txcore.Message("orders.created", b"x"))
            assert 1 == (await kit.drain_async()).committed

    asyncio.run(run())
    kit.assert_published("orders.created", body="x", count=1)


@pytest.mark.parametrize(("step", "orders"), [("half", []), ("database commit", ["tea"])])
def test_session_dies_in_the_same_way(kit, shop, step, orders):
    """SQLAlchemy's Session prepares before its COMMIT and publishes after it; both are steps."""
    sessions, publisher = sessionmaker(shop.engine), SessionPublisher(kit.producer("shop", fence=shop.fence))
    publisher.watch(sessions)
    with kit.crash_after(step), sessions() as session:
        shop.insert(session)
        publisher.publish(session, txcore.Message("orders.created", b"tea"))
        session.commit()
    kit.drain()
    assert orders == shop.orders() == [each.body.decode() for each in kit.published("orders.created")]
