"""The example consumers, one for each broker: killed in the middle, each message is applied once."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from txcore_conformance import brokers
from txcore_conformance.kit import Recorder
from txcore_conformance.raw import target_only
from txcore_conformance.required import obtained

import txcore
from txcore.records import Status
from txcore.registry import plugin_for

FOLDER = Path(__file__).parents[2] / "examples" / "consumers"
COUNT = 300
KILLS = 3


@dataclass(frozen=True)
class Kind:
    """The arguments that name the broker and the database of one broker's example."""

    name: str
    scheme: str
    dialect: str = "sqlite"


KINDS = {
    "kafka": Kind("kafka", ""),
    "rabbitmq": Kind("rabbitmq", "amqp://"),
    "nats": Kind("nats", "nats://", "sqlite+aiosqlite"),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def url(kind):
    """Start a broker of the kind, and return its URL."""
    broker = obtained(kind.name, lambda: brokers.start(kind.name))
    yield broker.url
    broker.remove()


def publish(url, topic, count):
    """Publish messages, every third one twice."""
    backend = txcore.connect(url)
    backend.ensure_group("orders").result(30)
    items = [target_only("orders", topic, b"%d" % number) for number in range(count)]
    items += items[::3]
    batch = Recorder(items)
    backend.release(batch)
    assert {Status.DURABLE} == {outcome.status for outcome in batch.wait(backend, 60.0)}
    backend.close().result(10)


def parcels(database):
    with closing(sqlite3.connect(database, timeout=10)) as connection:
        return [int(item) for (item,) in connection.execute("SELECT item FROM parcels")]


def test_each_message_is_applied_once_however_often_the_consumer_is_killed(
    kind, url, run, python, wait_until, tmp_path
):
    """A message that was committed but not acknowledged is delivered again, and the consumer recognises it."""
    topic, database = f"parcels{uuid.uuid4().hex[:8]}", tmp_path / "parcels.db"

    def start():
        started = run(
            [python, str(FOLDER / f"{kind.name}_consumer.py")],
            tmp_path,
            BROKER=kind.scheme + url.partition("://")[2],
            TOPIC=topic,
            DATABASE=f"{kind.dialect}:///{database}",
        )

        def is_ready():
            assert started.process.poll() is None, started.log.read_text()
            return "ready" in started.log.read_text().splitlines()  # a traceback may contain the word

        wait_until(is_ready, "the consumer")
        return started

    assert plugin_for(url).make_target(url, topic)  # as `txcore topics create` does
    consumer = start()
    publish(url, topic, COUNT)
    for number in range(1, KILLS + 1):
        wait_until(lambda least=number * COUNT // (KILLS + 2): len(parcels(database)) >= least, "some of it")
        consumer.process.kill()
        consumer.process.wait()
        consumer = start()
    wait_until(lambda: len(parcels(database)) >= COUNT, "all of it")
    publish(url, topic, 1)  # after all repeated messages
    wait_until(lambda: len(parcels(database)) > COUNT, "the last one")
    assert [0, *range(COUNT)] == sorted(parcels(database))
