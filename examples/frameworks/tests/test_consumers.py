"""The consumers, each on its real broker: killed in the middle, each message is applied once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from conftest import make_topic, publish, rows
from txcore_conformance.kit import wait_until

FOLDER = Path(__file__).parents[1]
COUNT = 150
KILLS = 2


@pytest.mark.parametrize(
    ("program", "broker", "scheme"),
    [
        ("faststream_consumer.py", "rabbitmq", "amqp://"),
        ("aio_pika_consumer.py", "rabbitmq", "amqp://"),
        ("aiokafka_consumer.py", "kafka", ""),
    ],
)
def test_each_message_is_applied_once_however_often_the_consumer_is_killed(
    program, broker, scheme, request, run, tmp_path
):
    url = request.getfixturevalue(broker)
    topic, file = f"orders-{uuid.uuid4()}", tmp_path / "parcels.db"
    environment = {
        "BROKER": scheme + url.partition("://")[2],
        "TOPIC": topic,
        "DATABASE": f"sqlite+aiosqlite:///{file}",
    }
    make_topic(url, topic)

    def start():
        started = run("python", str(FOLDER / program), **environment)
        started.wait_for("ready")
        return started

    def parcels():
        return [int(item) for item in rows(file, "SELECT item FROM parcels")]

    consumer = start()
    publish(url, topic, COUNT)
    for number in range(1, KILLS + 1):
        wait_until(lambda least=number * COUNT // (KILLS + 2): len(parcels()) >= least, "some of it")
        consumer.kill()
        consumer = start()
    wait_until(lambda: len(parcels()) >= COUNT, "all of it")
    publish(url, topic, 1)  # after all repeated messages
    wait_until(lambda: len(parcels()) > COUNT, "the last one")
    assert [0, *range(COUNT)] == sorted(parcels())
