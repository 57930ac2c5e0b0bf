"""Orders in mode auto through an outage of the broker: none fails or is lost, and the oracle finds no breach."""

from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy import text
from txcore_conformance.kit import Kit, hasty, wait_until
from txcore_conformance.memory import KafkaLikeHarness, MemoryHarness, NatsLikeHarness

from txcore import CheckPolicy, EndState, Message, Relay, TransactionProducer
from txcore.memory import Fate, Faults

THREADS, ORDERS = 4, 30


class Outage(Faults):
    """Faults that lose most requests or answers while `is_on`."""

    def __init__(self):
        self._random = random.Random(8)
        self.is_on = False

    def fate(self, what, *_):
        if not self.is_on:
            return Fate.DONE
        return self._random.choice([Fate.LOST, Fate.ACK_LOST, Fate.DONE])


@pytest.mark.parametrize("harness_type", [MemoryHarness, KafkaLikeHarness, NatsLikeHarness])
def test_orders_continue_through_an_outage(world, harness_type):
    """Each order is delivered exactly as committed, by a half, by the table, or by the table with a closed half."""
    kit = Kit(harness_type())
    topic, faults = kit.topic(), Outage()
    policy = CheckPolicy(immunity_s=0.05)
    producer = TransactionProducer(hasty(kit.backend), kit.group, fence=world.fence, mode="auto", policy=policy)
    relay = Relay(kit.open(), kit.group, world.engine, table=world.fence_table)
    checker = kit.checker(fence=world.fence)
    kit.harness.broker.faults = faults
    kit.history.causes_default = THREADS * ORDERS  # Every lost answer is a cause; this run counts none of them.
    placed: dict[bytes, EndState] = {}

    def place(thread):
        for number in range(ORDERS):
            with producer.transaction(world.engine) as tx:
                world.add_order(tx.connection, tx.transaction_id)
                tx.publish(Message(topic, b"%d.%d" % (thread, number), b"%d" % thread))
            placed[tx.transaction_id] = tx.result.state

    relay.start()
    checker.start()
    try:
        threads = [threading.Thread(target=place, args=(thread,)) for thread in range(THREADS)]
        for each in threads:
            each.start()
        for share in (1, 2, 3):
            wait_until(lambda share=share: len(placed) >= share * 20, "orders")
            faults.is_on = not faults.is_on
        for each in threads:
            each.join()
        faults.is_on = False

        def waiting():
            with world.engine.connect() as connection:
                return connection.execute(text(f"SELECT count(*) FROM {world.fence_table}_msg")).scalar_one()

        wait_until(lambda: not waiting(), "an empty table")
        wait_until(lambda: not sum(each.pending for each in checker.stats().partitions), "no open half")
    finally:
        assert relay.stop()
        kit.stop_checkers()
    assert len(placed) == THREADS * ORDERS
    for identity, state in placed.items():
        kit.history.committed(identity)
        if state is EndState.VIA_TABLE:
            kit.history.via_table.add(identity)
    assert kit.history.via_table
    assert {each.body for each in kit.delivered(topic)} == {
        b"%d.%d" % (thread, number) for thread in range(THREADS) for number in range(ORDERS)
    }
    kit.history.at_rest = True
    assert kit.judge() == []
    kit.close()
