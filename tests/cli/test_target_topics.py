"""The first message to a topic that does not exist is refused with the command that makes the topic."""

from __future__ import annotations

import re
import shlex

import pytest
import sqlalchemy
from txcore_conformance import brokers
from txcore_conformance.required import obtained

import txcore as library
from txcore.errors import MessageRejectedError
from txcore.results import EndState

TOPIC = "orders.created"


@pytest.fixture(params=["kafka", "rabbitmq", "nats"])
def broker_url(request):
    """Return the URL of a fresh broker."""
    broker = obtained(request.param, getattr(brokers, request.param))
    yield broker.url
    broker.remove()


def publish(url, database):
    """Send one message in a transaction of the database."""
    engine = sqlalchemy.create_engine(database)
    fence = library.SqlFence(engine)
    fence.create()
    try:
        with (
            library.connect(url) as backend,
            library.TransactionProducer(backend, "shop", fence=fence) as producer,
            producer.transaction(engine) as tx,
        ):
            tx.publish(library.Message(TOPIC, b"tea"))
    finally:
        engine.dispose()
    return tx.result.state


def test_the_refusal_names_the_command_that_helps(broker_url, txcore, tmp_path):
    """The command in the error makes the topic, and the same message is accepted afterwards."""
    database = f"sqlite:///{tmp_path}/shop.db"
    with pytest.raises(MessageRejectedError) as refused:
        publish(broker_url, database)
    (command,) = re.findall(r"`txcore (.+?)`", str(refused.value))
    place = ["--broker", broker_url, "--group", "shop"]
    for _ in range(2):  # repeating it is harmless
        ran = txcore(*shlex.split(command), *place)
        assert (ran.status, ran.errors) == (0, "")
        assert ran.output.endswith(f"target {TOPIC} exists\n")
    assert EndState.ACCEPTED is publish(broker_url, database)


def test_an_exchange_is_left_to_its_consumers(request, txcore):
    """RabbitMQ's exchanges are not made, because only the consumers know their queues."""
    broker = obtained("rabbitmq", brokers.rabbitmq)
    request.addfinalizer(broker.remove)
    place = ["--broker", broker.url, "--group", "shop"]
    ran = txcore("topics", "create", "--target", "shop/orders.created", *place)
    assert "is an exchange with a routing key" in ran.sentence
    assert (ran.status, ran.output) == (2, "")
