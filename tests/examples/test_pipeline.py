"""Consume, change the database, publish: killed at any point, each order has one parcel and one announcement."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance import brokers
from txcore_conformance.crash_plugin import EMBEDDED, kill_at_every_step
from txcore_conformance.demo.consuming import open_consumer
from txcore_conformance.required import obtained
from txcore_conformance.scenario import Scenario

import txcore
from txcore.registry import plugin_for

FOLDER = Path(__file__).parents[2] / "examples" / "pipeline"
TAKEN, GIVEN = "orders.created", "parcels.packed"
BORN_MS = 1_790_000_000_000
COUNT = 120
KILLS = 3


class Packing(Scenario):
    """Two orders; after a kill both messages come again, as none was acknowledged."""

    group = "packing"
    topics = (GIVEN,)
    preload = ("sqlalchemy.ext.asyncio", "aiosqlite")
    orders = ("1", "2")

    def packing(self):
        if str(FOLDER) not in sys.path:
            sys.path.insert(0, str(FOLDER))
        return importlib.import_module("packing")

    def setup(self, place):
        self.packing().create_tables(sqlalchemy.create_engine(place.database, poolclass=sqlalchemy.NullPool))

    def run(self, place):
        engine = sqlalchemy.create_engine(place.database)
        inbox, fence = txcore.Inbox(engine), txcore.SqlFence(engine)
        with (
            txcore.connect(place.broker) as backend,
            txcore.TransactionProducer(backend, self.group, fence=fence) as producer,
        ):
            for order in self.orders:
                self.packing().pack(producer, engine, inbox, self.message(order), order)

    restart = run

    def message(self, order):
        identity = uuid.UUID(int=BORN_MS << 80 | 7 << 76 | 2 << 62 | int(order))
        return {"txcore-id": f"{identity}:0", "txcore-group": "orders"}

    def committed(self, place):
        with closing(sqlite3.connect(place.database.partition("///")[2])) as connection:
            packed = Counter(order for (order,) in connection.execute("SELECT order_number FROM parcels"))
        return [order if count == 1 else f"{order}, packed {count} times" for order, count in packed.items()]

    def announced(self, message):
        return message.body.decode()


class AsyncPacking(Packing):
    """The same in asyncio."""

    def run(self, place):
        async def work():
            engine = create_async_engine(place.database.replace("sqlite:", "sqlite+aiosqlite:"))
            inbox, fence = txcore.AsyncInbox(engine), txcore.AsyncSqlFence(engine)
            async with (
                txcore.connect(place.broker) as backend,
                txcore.AsyncTransactionProducer(backend, self.group, fence=fence) as producer,
            ):
                for order in self.orders:
                    await self.packing().pack_async(producer, engine, inbox, self.message(order), order)
            await engine.dispose()

        asyncio.run(work())

    restart = run


def packed_once_however_killed(scenario, harness):
    verdict = kill_at_every_step(scenario, harness)
    assert [] == verdict.wrong, str(verdict)
    steps = {finding.step for finding in verdict.findings}
    assert {"before half:1", "after half:1", "before release COMMIT:1", "after database COMMIT:1"} <= steps
    assert [["1", "2"]] * len(verdict.findings) == [sorted(finding.both) for finding in verdict.findings], str(verdict)


@pytest.mark.parametrize("scenario", [Packing, AsyncPacking])
def test_a_step_killed_anywhere_is_done_once_after_its_messages_came_again(scenario):
    """A message that comes again is packed if its transaction was rolled back, and dropped if it was committed."""
    packed_once_however_killed(scenario, EMBEDDED)


@pytest.mark.heavy
@pytest.mark.parametrize("scenario", [Packing, AsyncPacking])
@pytest.mark.parametrize("harness", ["kafka:Kafka", "rabbitmq:Rabbitmq", "nats:Nats"])
def test_the_same_on_each_broker(scenario, harness):
    name, _, prefix = harness.partition(":")
    obtained(name, lambda: brokers.start(name)).remove()  # a skip where there is no such broker
    packed_once_however_killed(scenario, f"txcore_{name}.testing:{prefix}Harness")


DIALECTS = {"kafka": "sqlite", "rabbitmq": "sqlite", "nats": "sqlite+aiosqlite"}


@pytest.fixture(params=DIALECTS)
def name(request):
    return request.param


@pytest.fixture
def url(name):
    """Start a broker of the kind, and return its URL."""
    broker = obtained(name, lambda: brokers.start(name))
    yield broker.url
    broker.remove()


def parcels(database):
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return [int(order) for (order,) in connection.execute("SELECT order_number FROM parcels")]


def test_a_worker_killed_again_and_again_packs_and_announces_each_order_once(
    name, url, start_ready, publish, wait_until, tmp_path
):
    """The worker's own checker finishes what the killed one has begun."""
    topic, database = f"orders{uuid.uuid4().hex[:8]}", tmp_path / "parcels.db"
    assert plugin_for(url).make_target(url, topic)
    announced = open_consumer(url, GIVEN, "reader")
    ids: dict[int, set[str]] = {}

    def start():
        return start_ready(
            FOLDER / f"{name}_worker.py",
            90.0,
            BROKER=url.partition("://")[2],
            TOPIC=topic,
            DATABASE=f"{DIALECTS[name]}:///{database}",
        )

    def read():
        for message in announced.poll(500):
            ids.setdefault(int(message.body), set()).add(str(message.headers["txcore-id"]))
            announced.ack(message.position)
        return len(ids)

    publish(url, "orders", topic, range(COUNT))
    worker = start()
    for number in range(1, KILLS + 1):
        wait_until(lambda least=number * COUNT // (KILLS + 2): len(parcels(database)) >= least, "some of it", 90.0)
        worker.process.kill()
        worker.process.wait()
        worker = start()
    wait_until(lambda: len(parcels(database)) >= COUNT, "all of it", 90.0)
    publish(url, "orders", topic, [COUNT])  # after all repeated messages
    wait_until(lambda: len(parcels(database)) > COUNT, "the last one", 90.0)
    wait_until(lambda: read() > COUNT, "the announcements", 90.0)
    assert list(range(COUNT + 1)) == sorted(parcels(database))
    assert dict.fromkeys(range(COUNT + 1), 1) == {number: len(each) for number, each in ids.items()}
    announced.close()
