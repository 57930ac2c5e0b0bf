"""The shop's tests: what it announces, and what becomes of an order when its process dies.

pip install "txcore[sql]" pytest
python -m pytest
"""

import store
from sqlalchemy import Engine

import txcore
from txcore.testing import Kit


def test_an_order_is_announced(txcore_kit: Kit, producer: txcore.TransactionProducer, engine: Engine) -> None:
    """Each order has one message."""
    number = store.place_order(producer, engine, "tea")
    txcore_kit.assert_published(store.TOPIC, value={"order": number, "item": "tea"}, key=str(number), count=1)


def test_a_death_before_the_commit(txcore_kit: Kit, producer: txcore.TransactionProducer, engine: Engine) -> None:
    """Neither order nor message is there."""
    with txcore_kit.crash_before("database commit"):
        store.place_order(producer, engine, "tea")
    assert txcore_kit.drain().rolled_back == 1
    assert store.items(engine) == []
    txcore_kit.assert_not_published(store.TOPIC)


def test_a_death_after_the_commit(txcore_kit: Kit, producer: txcore.TransactionProducer, engine: Engine) -> None:
    """The order is there, and the checker publishes its message."""
    with txcore_kit.crash_after("database commit"):
        store.place_order(producer, engine, "tea")
    txcore_kit.assert_not_published(store.TOPIC)
    assert txcore_kit.drain().committed == 1
    assert store.items(engine) == ["tea"]
    txcore_kit.assert_published(store.TOPIC, value={"order": 1, "item": "tea"}, count=1)


def test_six_seconds_later_the_checker_asks(
    txcore_kit: Kit, producer: txcore.TransactionProducer, engine: Engine
) -> None:
    """The clock moves by hand: this test takes no six seconds."""
    checker = txcore_kit.checker(store.GROUP, fence=txcore.SqlFence(engine))
    with txcore_kit.crash_after("database commit"):
        store.place_order(producer, engine, "tea")
    assert checker.run_once().committed == 0
    txcore_kit.clock.advance(6)
    assert checker.run_once().committed == 1
