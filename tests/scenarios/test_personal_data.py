"""Where the content of messages stays: docs/security.md lists the places, and no other one holds any of it."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine
from txcore_conformance.kit import FAST, UNKNOWN, Answers, Observed, decide_all, hasty
from txcore_spark.rows import Place, Rows

import txcore
from txcore.records import LogKind

SECRET = "Erika Mustermann"
GROUP, TOPIC = "shop", "orders.created"


def message(topic=TOPIC):
    return txcore.Message(topic, SECRET.encode(), SECRET.encode(), {"name": SECRET})


def tables_with_the_secret(path):
    """Return the tables of a file that hold the secret in any column."""
    found = set()
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            for row in connection.execute(f"SELECT * FROM {name}"):
                if any(SECRET.encode() in (v if isinstance(v, bytes) else str(v).encode()) for v in row):
                    found.add(name)
    return found


@pytest.fixture
def engine(tmp_path):
    made = create_engine(f"sqlite:///{tmp_path}/shop.db")
    txcore.SqlFence(made).create()
    yield made
    made.dispose()


def test_content_of_messages_is_in_the_listed_places_only(tmp_path, engine, caplog):
    """Of broker, database, log lines, events and audit rows, only half, parked, target and message tables hold it."""
    caplog.set_level(logging.DEBUG)
    fence, observed = txcore.SqlFence(engine), Observed()
    policy = txcore.CheckPolicy(immunity_s=0.05, interval_s=0.001, check_max=1)
    with txcore.connect(f"sqlite:///{tmp_path}/broker.db?auto_create=false") as backend:
        backend.create_topic(TOPIC)
        common = {"policy": policy, "plugins": [observed]}
        fenced = txcore.TransactionProducer(hasty(backend), GROUP, fence=fence, **common)
        undone = fenced.begin()
        undone.publish(message())
        with engine.connect() as connection:
            undone.prepare(connection)
            connection.rollback()
        undone.rollback()
        with fenced.transaction(engine) as tx:
            tx.publish(message())
        listener = Answers(UNKNOWN)
        unfenced = txcore.TransactionProducer(hasty(backend), GROUP, listener=listener, **common)
        unfenced.send_message_in_transaction(message())
        table = txcore.TransactionProducer(hasty(backend), GROUP, fence=fence, mode="table", **common)
        for topic in (TOPIC, "missing"):
            with table.transaction(engine) as tx:
                tx.publish(message(topic))
        relay = txcore.Relay(backend, GROUP, engine, limits=txcore.RelayLimits(tries_max=1), plugins=[observed])
        relay.run_once()
        (parked,) = relay.parked()
        assert SECRET not in parked.reason
        relay.drop(parked.transaction_id, "a test", "anna")
        relay.stop()
        checker = txcore.Checker(backend, GROUP, fence=fence, listener=listener, limits=FAST, **common)
        decide_all(checker, backend, GROUP, 60)
        with txcore.Operator(backend, GROUP, by="anna") as operator:
            (entry,) = operator.parked()
            assert SECRET not in entry.reason
        rows = Rows(Place(0, 0, 0), {GROUP: 0})
        for kind, add in ((LogKind.HALF, rows.add_half), (LogKind.OP, rows.add_ops), (LogKind.PARKED, rows.add_parked)):
            for partition in range(4):
                with closing(backend.read(GROUP, kind, partition)) as reader:
                    for record in reader.read(1_000):
                        add(record.position, record.body, record.appended_ms)
    assert len(rows.found) > 5
    assert SECRET not in str(rows.found)
    assert len(caplog.records) > 5
    assert SECRET not in str([record.__dict__ for record in caplog.records])
    assert len(observed.events) > 5
    assert SECRET not in str(observed.events)
    assert {"half", "parked", "target"} == tables_with_the_secret(tmp_path / "broker.db")
    assert {"txcore_tx_msg"} == tables_with_the_secret(tmp_path / "shop.db")
