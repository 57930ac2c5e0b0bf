"""The checker process relays the message table of each group that has a database."""

from __future__ import annotations

import json
import math
import signal

import pytest
import sqlalchemy

import txcore
from txcore.sidecar.relay_watch import trouble_of_wait

CONFIG = """
[backends.main]
url = "{broker}?lease_s=1.0{options}"
[databases.shop]
url = "{database}"
[groups.orders]
database = "shop"
partitions = 2
"""


def order(shop, count, first=0, topic="orders.created"):
    """Commit orders by the message table, and return their number."""
    producer = txcore.TransactionProducer(shop.backend, "orders", fence=shop.fence, mode="table")
    for number in range(first, first + count):
        with producer.transaction(shop.engine) as tx:
            tx.publish(txcore.Message(topic, b"%d" % number, key=b"k"))
    return count


def configure(shop, more="", options=""):
    text = CONFIG.format(broker=shop.broker_url, options=options, database=shop.database_url) + more
    (shop.folder / "txcore.toml").write_text(text)


def test_messages_of_the_table_are_relayed_and_counted(shop, checkers, wait_until):
    """The process publishes the table's messages beside the halves, and the metrics count them."""
    configure(shop)
    order(shop, 20)
    halves = shop.orphans(4)
    running = checkers.ready()
    wait_until(lambda: len(shop.delivered()) == 20 + len(halves[True]), "all deliveries")
    wait_until(lambda: running.metric("txcore_relayed_total", group="orders") == 20, "the count")
    assert running.metric("txcore_relay_up", group="orders") == 1
    assert running.stop() == 0


def test_another_process_continues_the_table_of_a_killed_one(shop, checkers, wait_until):
    """After SIGKILL of one process during its relay, the other delivers every message."""
    configure(shop)
    first, second = checkers.ready(), checkers.ready()
    order(shop, 30)
    wait_until(shop.delivered, "a delivery")
    first.signal(signal.SIGKILL)
    order(shop, 30, first=30)
    wait_until(lambda: len(set(shop.delivered())) == 60, "all deliveries")
    assert second.stop() == 0


def test_group_may_leave_its_table_to_another_relay(shop, checkers, wait_until):
    """With `relay = false` the process finishes only halves."""
    configure(shop, "relay = false\n")
    order(shop, 1)
    halves = shop.orphans(4)
    running = checkers.ready()
    wait_until(lambda: running.metric("txcore_ends_total") == 4, "the halves' ends")
    assert len(shop.delivered()) == len(halves[True])
    assert running.metric("txcore_relayed_total", group="orders") == 0
    assert running.stop() == 0


def test_process_is_unready_while_no_relay_sends(shop, checkers, wait_until):
    """With `relay = false`, messages that wait for a relay which has ended make the process unready, until one runs."""
    configure(shop, "relay = false\n")
    running = checkers.ready()
    with txcore.Relay(shop.backend, "orders", shop.engine):
        order(shop, 1)
        wait_until(shop.delivered, "the delivery")
    wait_until(lambda: "relay" in running.get("/readyz")[1], "the first look at the table")
    order(shop, 1, first=1)
    with shop.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE txcore_tx_slot SET until_ms = until_ms - 90000 WHERE slot = -1"))
    status, body = wait_until(lambda: _unready(running), "an answer that it is not ready")
    assert 503 == status
    assert "messages wait in the message table, and no relay of the group was seen for 1m" in body
    assert 0 == running.metric("txcore_relay_up", group="orders")
    with txcore.Relay(shop.backend, "orders", shop.engine):
        wait_until(lambda: 200 == running.get("/readyz")[0], "readiness")
    assert 1 == running.metric("txcore_relay_up", group="orders")
    assert running.stop() == 0


def _unready(running):
    status, body = running.get("/readyz")
    return (status, body) if status != 200 else None


@pytest.mark.parametrize(
    ("unserved_s", "watched_s", "words"),
    [
        (None, 100.0, ""),
        (math.inf, 59.0, ""),
        (math.inf, 60.0, "was seen ever"),
        (61.0, 0.0, "was seen for 1m1s"),
    ],
)
def test_first_relay_may_start_after_the_first_message(unserved_s, watched_s, words):
    """A group that never had a relay is reported after a minute, one whose relay has ended at once."""
    found = trouble_of_wait(unserved_s, watched_s)
    assert found.endswith(words)
    assert bool(words) == bool(found)


def test_the_table_and_its_last_error_are_shown(shop, checkers, wait_until):
    """API, metrics and console have what waits, what is parked, and why; they agree, also after a restart."""
    configure(shop, "relay_tries_max = 1\n", options="&auto_create=false")
    order(shop, 1, topic="no-such-topic")
    running = checkers.ready()

    def shown(running):
        table = json.loads(running.get("/api/v1/groups/orders")[1])["table"]
        return table if table and table["parked"] else None

    for _ in range(2):
        table = wait_until(lambda each=running: shown(each), "the parked message")
        assert (0, 1, 0) == (table["waiting"], table["parked"], table["dropped"])
        assert "no-such-topic" in table["reason"]
        assert "" == table["relay"]["trouble"]
        assert 1 == running.metric("txcore_table_rows", group="orders", state="parked")
        assert "no-such-topic" in running.get("/console/groups/orders")[1]
        assert '<dt>parked there</dt><dd class="bad">1</dd>' in running.get("/console")[1]
        assert 0 == running.stop()
        running = checkers.ready()
    assert 0 == running.stop()
