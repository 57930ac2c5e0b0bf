"""The first message to a topic that does not exist is refused with the command that makes the topic."""

from __future__ import annotations

import json
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
    assert f"topics create --broker URL --target {TOPIC}" == command
    for _ in range(2):  # repeating it is harmless
        ran = txcore(*shlex.split(command.replace("URL", broker_url)))
        assert (ran.status, ran.errors, ran.output) == (0, "", f"target {TOPIC} exists\n")
    assert txcore("topics", "verify", "--broker", broker_url, "--group", "other").status == 2
    assert EndState.ACCEPTED is publish(broker_url, database)


def test_a_target_needs_no_group(txcore, tmp_path):
    """Only the target is made where no group is named; a file's only group is made, too."""
    target = ["topics", "create", "--target", TOPIC]
    assert "say where: give --broker, or --config FILE; there is no txcore.toml here" == txcore(*target).sentence
    alone = txcore(*target, "--broker", "sqlite:///b.db", "--json")
    assert (0, {"targets": [TOPIC]}) == (alone.status, json.loads(alone.output))
    assert "has no group 'shop'" in txcore("topics", "verify", "--broker", "sqlite:///b.db", "--group", "shop").sentence
    file = tmp_path / "txcore.toml"
    backends = '[backends.b]\nurl = "sqlite:///b.db"\n[backends.c]\nurl = "sqlite:///c.db"\n'
    for groups, output in (
        ({"shop": "b"}, f"group shop is as it should be: 4 partitions\ntarget {TOPIC} exists\n"),
        ({"shop": "b", "mail": "b"}, f"target {TOPIC} exists\n"),
        ({"shop": "b", "mail": "c"}, ""),
    ):
        each = "".join(
            f'[groups.{name}]\nbackend = "{backend}"\nlistener = "a:b"\n' for name, backend in groups.items()
        )
        file.write_text(backends + each, encoding="utf-8")
        ran = txcore(*target)
        assert (ran.output, ran.status) == (output, 0 if output else 2), ran
    assert "which broker? Name a group of it with --group: shop, mail" == ran.sentence
    memory = txcore(*target, "--broker", "memory://x")
    assert (2, True) == (memory.status, "lives inside one process" in memory.sentence)


def test_an_exchange_is_left_to_its_consumers(request, txcore):
    """RabbitMQ's exchanges are not made, because only the consumers know their queues."""
    broker = obtained("rabbitmq", brokers.rabbitmq)
    request.addfinalizer(broker.remove)
    place = ["--broker", broker.url, "--group", "shop"]
    ran = txcore("topics", "create", "--target", "shop/orders.created", *place)
    assert "is an exchange with a routing key" in ran.sentence
    assert (ran.status, ran.output) == (2, "")
