"""Both ends in the types of each database: ids as UUIDs, text and bytes."""

from __future__ import annotations

import secrets
import time
import uuid

import pytest
from sqlalchemy import create_engine, text
from txcore_conformance import servers
from txcore_conformance.kit import wait_until
from txcore_conformance.required import obtained
from txcore_spark.effects.command import examine
from txcore_spark.engines.choice import open_engine
from txcore_spark.engines.noise import SparkOutput
from txcore_spark.job import Audit
from txcore_spark.store import Store

import txcore
from txcore.config import load
from txcore.ids import first_id_at

TYPES = {"postgresql": "uuid", "mariadb": "BINARY(16)"}


@pytest.fixture(params=list(TYPES))
def database(request):
    """A new database on a server of each kind."""
    server = obtained(request.param, getattr(servers, request.param))
    made = create_engine(server.fresh_database())
    yield request.param, made
    made.dispose()
    server.stop()


def test_ids_of_each_type_are_compared(database, tmp_path):
    """One order without a message, one message without an effect, and one transaction that agrees."""
    kind, engine = database
    broker = f"sqlite:///{tmp_path}/broker.db"
    fence, inbox = txcore.SqlFence(engine), txcore.Inbox(engine)
    fence.create()
    inbox.create()
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE orders (transaction_id {TYPES[kind]})"))

    def keep(connection, identity):
        value = str(uuid.UUID(bytes=bytes(identity))) if kind == "postgresql" else bytes(identity)
        connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": value})

    with txcore.TransactionProducer(txcore.connect(broker), "shop", fence=fence) as producer:
        made = []
        for _ in range(2):
            with producer.transaction(engine) as tx:
                keep(tx.connection, tx.transaction_id)
                tx.publish(txcore.Message("orders", b"tea"))
            made.append(str(tx.transaction_id))
    headers = {"txcore-id": f"{made[0]}:0", "txcore-group": "shop"}
    with engine.begin() as connection, inbox.receive(connection, headers) as is_first:
        assert is_first
    forgotten = uuid.UUID(bytes=bytes(first_id_at(time.time_ns() // 1_000_000))[:8] + secrets.token_bytes(8))
    with engine.begin() as connection:
        keep(connection, forgotten.bytes)
    last_ms = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > last_ms, "the clock shows a later millisecond")
    path = tmp_path / "txcore.toml"
    path.write_text(
        f"""
        [audit]
        store = "{tmp_path}/audit"
        skew_s = 0
        [backends.main]
        url = "{broker}"
        [databases.shop]
        url = "{engine.url.render_as_string(hide_password=False)}"
        [groups.shop]
        database = "shop"
        [audit.effects.shop]
        settle_s = 0
        business = "SELECT transaction_id, count(*) FROM orders GROUP BY transaction_id"
        [audit.effects.shop.consumers.mail]
        """,
        encoding="utf-8",
    )
    loaded = load(path)
    store = Store(loaded.config.audit.store)
    Audit(open_engine("duckdb", loaded, {}, SparkOutput(is_shown=True)), loaded, store).incremental()
    found = examine(loaded, "shop")
    expected = [("UNANNOUNCED", str(forgotten)), ("UNRECEIVED", made[1])]
    assert expected == [(each.verdict, each.name) for each in found.findings]
