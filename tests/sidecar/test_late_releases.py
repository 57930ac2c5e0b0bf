"""A checker is unready while a committed half waits too long for its release, and the metrics show the wait."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import txcore
from txcore.checker.checker import CheckerStats
from txcore.checker.partition_owner import PartitionStats
from txcore.sidecar.readiness import components_of

CONFIG = """
[backends.main]
url = "{broker}?auto_create=false"
[databases.shop]
url = "{database}"
[groups.orders]
database = "shop"
partitions = 1
"""
METRIC = "txcore_unreleased_oldest_age_seconds"
TOPIC = "orders.created"


@pytest.mark.parametrize(
    ("age_s", "owned_s", "reason"),
    [
        (75.0, 600.0, "a committed half waits for its release for 1m15s"),
        (60.0, 600.0, None),
        (600.0, 60.0, None),
        (0.0, 600.0, None),
    ],
    ids=["late", "in time", "a new owner works it off", "none"],
)
def test_a_partition_with_late_releases_is_down(age_s, owned_s, reason):
    """It is down after a minute, and not while a new owner publishes what no owner has published before it."""
    partition = PartitionStats(3, True, 1, 700.0, 0, 0.0, owned_s=owned_s, unreleased_age_s=age_s)
    found = components_of(CheckerStats(True, 0.0, 0.0, 0, (partition,)), (), None)
    assert reason == found.get("partition 3")


def test_metrics_show_the_wait_for_a_release(shop, checkers, wait_until):
    """While the target refuses a committed half, the age of its decision is shown; it is 0 once it is published."""
    (shop.folder / "txcore.toml").write_text(CONFIG.format(broker=shop.broker_url, database=shop.database_url))
    producer = txcore.TransactionProducer(shop.backend, "orders", fence=shop.fence, release="owner", partition_count=1)
    with producer.transaction(shop.engine) as tx:
        tx.publish(txcore.Message(TOPIC, b"1"))
    assert txcore.EndState.ACCEPTED is tx.result.state
    with closing(sqlite3.connect(shop.broker_file)) as broker, broker:
        broker.execute("UPDATE topic SET name = 'moved'")
    refused = checkers.ready()
    assert 0 < wait_until(lambda: refused.metric(METRIC, group="orders"), "the wait") < 60
    assert 0 == refused.stop()
    shop.backend.create_topic(TOPIC)
    running = checkers.ready()
    wait_until(shop.delivered, "the release")
    wait_until(lambda: 0 == running.metric(METRIC, group="orders"), "the end of the wait")
    assert 0 == running.stop()
