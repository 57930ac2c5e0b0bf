"""The example consumers, one for each broker: killed in the middle, each message is applied once."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from txcore_conformance import brokers
from txcore_conformance.required import obtained

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


def parcels(database):
    with closing(sqlite3.connect(database, timeout=10)) as connection:
        return [int(item) for (item,) in connection.execute("SELECT item FROM parcels")]


def test_each_message_is_applied_once_however_often_the_consumer_is_killed(
    kind, url, start_ready, publish, wait_until, tmp_path
):
    """A message that was committed but not acknowledged is delivered again, and the consumer recognises it."""
    topic, database = f"parcels{uuid.uuid4().hex[:8]}", tmp_path / "parcels.db"

    def start():
        return start_ready(
            FOLDER / f"{kind.name}_consumer.py",
            BROKER=kind.scheme + url.partition("://")[2],
            TOPIC=topic,
            DATABASE=f"{kind.dialect}:///{database}",
        )

    assert plugin_for(url).make_target(url, topic)  # as `txcore topics create` does
    consumer = start()
    publish(url, "orders", topic, range(COUNT))
    for number in range(1, KILLS + 1):
        wait_until(lambda least=number * COUNT // (KILLS + 2): len(parcels(database)) >= least, "some of it")
        consumer.process.kill()
        consumer.process.wait()
        consumer = start()
    wait_until(lambda: len(parcels(database)) >= COUNT, "all of it")
    publish(url, "orders", topic, [0])  # after all repeated messages
    wait_until(lambda: len(parcels(database)) > COUNT, "the last one")
    assert [0, *range(COUNT)] == sorted(parcels(database))
