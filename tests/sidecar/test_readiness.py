"""`/readyz` of a checker process follows its broker, its database and its relay: real servers are killed and frozen."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import create_engine, text
from txcore_conformance import brokers
from txcore_conformance.required import obtained

import txcore

CONFIG = """
[backends.main]
url = "{broker}"
[databases.shop]
url = "{database}"
connect_timeout_s = 1
[groups.orders]
database = "shop"
partitions = 2
[log]
format = "json"
"""
FAULTS_S = 90.0
"""Longest time, in seconds, until a change shows; `benchmarks/readiness.py` measures it, this only bounds it."""


@pytest.fixture(scope="module", params=["kafka", "rabbitmq", "nats"])
def broker(request):
    """A broker for these tests alone."""
    server = obtained(request.param, lambda: brokers.start(request.param, own=True))
    yield server
    server.remove()


@pytest.fixture
def database(postgresql):
    """A PostgreSQL server with a database that holds the fence's tables, and that database's URL."""
    if not postgresql.can_be_killed:
        pytest.skip("a foreign server is not killed")
    url = postgresql.fresh_database()
    make_tables(url)
    return postgresql, url


def make_tables(url):
    engine = create_engine(url)
    txcore.SqlFence(engine).create()
    engine.dispose()


def readiness(running):
    """Return the status of `/readyz` and its body; the process must be alive and healthy at any time."""
    assert running.get("/healthz")[0] == 200
    status, body = running.get("/readyz")
    return status, json.loads(body)


def down(running, component):
    """Return the reason why a component of the group is down, once the process is not ready because of it."""
    status, body = readiness(running)
    reason = body["groups"]["orders"].get(component, "ok")
    is_named = any(f"group orders: {component}: {reason}" == each for each in body["reasons"])
    return reason if status == 503 and is_named else ""


def is_ready(running):
    status, body = readiness(running)
    return status == 200 and body["status"] == "ready" and set(body["groups"]["orders"].values()) <= {"ok", "running"}


def warnings(running):
    """Return the names of the log's lines above `info`."""
    lines = [json.loads(line) for line in running.text.splitlines()]
    return [line["event"] for line in lines if line["level"] != "info"]


def started(checkers, folder, wait_until, **urls):
    (folder / "txcore.toml").write_text(CONFIG.format(**urls))
    running = checkers()
    wait_until(lambda: is_ready(running), "readiness", FAULTS_S)
    return running


def test_a_broker_that_is_frozen_or_killed_is_seen_until_it_is_back(broker, shop, checkers, wait_until):
    """Each fault makes the process unready with the broker's reason, and its end ready; one warning each time."""
    running = started(checkers, shop.folder, wait_until, broker=broker.url, database=shop.database_url)
    wait_until(lambda: running.metric("txcore_partitions") == 2, "ownership", FAULTS_S)
    assert [] == warnings(running)
    for begin, end in ((broker.pause, broker.resume), (broker.kill, broker.start)):
        begin()
        reason = wait_until(lambda: down(running, "broker"), "the broker to be missed", FAULTS_S)
        assert reason.startswith("no answer for ")
        assert running.metric("txcore_broker_up", group="orders") == 0
        end()
        wait_until(lambda: is_ready(running), "readiness", FAULTS_S)
        assert running.metric("txcore_broker_up", group="orders") == 1
        wait_until(lambda: running.metric("txcore_partitions") == 2, "ownership", FAULTS_S)
    changes = [each for each in warnings(running) if each.startswith("broker.")]
    assert ["broker.down", "broker.up"] * 2 == changes
    assert 0 == running.stop()


def test_a_database_that_is_frozen_or_killed_is_seen_although_no_half_waits(shop, checkers, database, wait_until):
    """The process asks its database by itself, and a frozen one holds up no answer of the HTTP endpoint."""
    server, url = database
    running = started(checkers, shop.folder, wait_until, broker=shop.broker_url, database=url)
    for begin, end in ((server.pause, server.resume), (server.kill, server.start)):
        begin()
        wait_until(lambda: down(running, "database shop"), "the database to be missed", FAULTS_S)
        wait_until(lambda: down(running, "relay"), "the relay to be missed", FAULTS_S)
        end()
        wait_until(lambda: is_ready(running), "readiness", FAULTS_S)
    changes = [each for each in warnings(running) if each.startswith("database.")]
    assert ["database.down", "database.up"] * 2 == changes
    assert 0 == running.stop()


def test_a_relay_that_waits_for_a_lock_is_seen(shop, checkers, database, wait_until):
    """The fence's table answers meanwhile, so that only the relay is down."""
    _, url = database
    running = started(checkers, shop.folder, wait_until, broker=shop.broker_url, database=url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE txcore_tx_msg IN ACCESS EXCLUSIVE MODE"))
        wait_until(lambda: down(running, "relay"), "the relay to be missed", FAULTS_S)
        assert running.metric("txcore_relay_up", group="orders") == 0
        assert running.metric("txcore_source_up", group="orders") == 1
    engine.dispose()
    wait_until(lambda: is_ready(running), "readiness", FAULTS_S)
    assert 0 == running.stop()


def test_a_spare_checker_is_ready(shop, checkers, wait_until):
    """A checker without a partition is ready while the broker answers: others own them all."""
    urls = {"broker": f"{shop.broker_url}?lease_s=1.0", "database": shop.database_url}
    first = started(checkers, shop.folder, wait_until, **urls)
    second = started(checkers, shop.folder, wait_until, **urls)
    third = started(checkers, shop.folder, wait_until, **urls)
    counts = lambda: sorted(each.metric("txcore_partitions") for each in (first, second, third))  # noqa: E731
    wait_until(lambda: counts() == [0, 1, 1], "a spare")
    assert all(map(is_ready, (first, second, third)))
    assert [0, 0, 0] == [each.stop() for each in (third, second, first)]


def test_nothing_is_above_info_without_a_fault(shop, checkers, wait_until):
    """Start, work, reload, stop, and a restart that reads decided halves again: no line is a warning."""
    urls = {"broker": shop.broker_url, "database": shop.database_url}
    ids = shop.orphans(20)
    running = started(checkers, shop.folder, wait_until, **urls)
    wait_until(lambda: set(shop.delivered()) == ids[True], "the deliveries")
    running.signal(1)
    wait_until(lambda: "config.reloaded" in running.text, "the reload")
    assert 0 == running.stop()
    more = shop.orphans(20)  # while no checker runs: a check may find a transaction open, which is a warning
    again = started(checkers, shop.folder, wait_until, **urls)
    wait_until(lambda: again.metric("txcore_partitions") == 2, "ownership")
    wait_until(lambda: set(shop.delivered()) == ids[True] | more[True], "the deliveries")
    assert 0 == again.stop()
    assert ([], []) == (warnings(running), warnings(again))
