"""The shared parts of this folder's tests: brokers, groups on them, plain channels, other processes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from txcore_conformance import brokers
from txcore_conformance.brokers.kit import BrokerKit
from txcore_conformance.required import obtained

# Lets these tests find the modules beside them, and the plugin's package where it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_rabbitmq.testing import RabbitmqHarness, connect


class RabbitmqKit(BrokerKit):
    """The conformance kit with additions for RabbitMQ."""

    def __init__(self, harness):
        super().__init__(harness, Path(__file__).with_name("child.py"))
        self.connections = []

    def address(self, *, proxied=False, **options):
        """Return the broker's URL with *options*."""
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return (self.broker.proxied_url if proxied else self.broker.url) + (f"?{query}" if query else "")

    def channel(self):
        """Return a plain channel, to declare and read targets."""
        connection = connect(self.broker.url)
        self.connections.append(connection)
        return connection.channel()

    def queue(self, name="target", **arguments):
        """Declare a durable queue and return its name."""
        name = f"{name}-{self.group}"
        self.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "classic"} | arguments)
        return name

    def close(self):
        super().close()
        for connection in self.connections:
            with contextlib.suppress(Exception):  # the broker may have been killed meanwhile
                connection.close()


@pytest.fixture(scope="session")
def harness():
    made = RabbitmqHarness()
    obtained("rabbitmq", made.start)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def private(harness):
    """A broker of these tests only, which may be killed."""
    made = obtained("rabbitmq", harness.private)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cluster():
    """A cluster of three nodes of these tests only."""
    made = obtained("rabbitmq", lambda: brokers.cluster("rabbitmq"))
    yield made
    made.remove()


@pytest.fixture
def kit(harness):
    """A group on the broker of this run."""
    made = RabbitmqKit(harness)
    yield made
    made.close()


@pytest.fixture
def hurt(private):
    """A group on the broker that may be killed."""
    made = RabbitmqKit(private)
    yield made
    made.close()


@pytest.fixture(scope="session")
def secured():
    """A broker that demands a client certificate on its TLS listener, and has a user of its own."""
    broker = obtained("rabbitmq", lambda: brokers.rabbitmq(tls=True, credentials=True, client_certificate=True))
    made = RabbitmqHarness(broker)
    made.start()
    yield made
    made.stop()
    broker.remove()


@pytest.fixture
def secure(secured):
    """A group on the broker with TLS."""
    made = RabbitmqKit(secured)
    yield made
    made.close()
