"""The shared parts of this folder's tests: brokers, groups on them, plain channels, other processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from txcore_conformance import brokers
from txcore_conformance.kit import Kit
from txcore_conformance.required import obtained

# Lets these tests find the plugin's package from a source tree in which it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_rabbitmq.testing import RabbitmqHarness, connect


class RabbitmqKit(Kit):
    """The conformance kit with additions for RabbitMQ."""

    def __init__(self, harness):
        super().__init__(harness)
        self.opened = []
        self.children = []
        self.connections = []

    @property
    def broker(self):
        return self.harness.broker

    def address(self, *, proxied=False, **options):
        """Return the broker's URL with *options*."""
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return (self.broker.proxied_url if proxied else self.broker.url) + (f"?{query}" if query else "")

    def connect(self, *, proxied=False, partition_count=2, **options):
        """Return a connection with *options* after creating its group; it is closed at the end."""
        backend = self.harness.open(self.address(proxied=proxied, **options))
        self.opened.append(backend)
        if partition_count:
            self.wait(backend.ensure_group(self.group, partition_count))
        return backend

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

    def child(self, *arguments):
        """Start another Python process with one of the programs in child.py; it is killed after two minutes."""
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py")), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        watch = threading.Timer(120, process.kill)
        watch.daemon = True
        watch.start()
        self.children.append((process, watch))
        return process

    def close(self):
        for process, watch in self.children:
            watch.cancel()
            process.kill()
            process.communicate()
        for backend in self.opened:
            backend.close(5.0).result(10.0)
        super().close()
        for connection in self.connections:
            with contextlib.suppress(Exception):  # the broker may have been killed meanwhile
                connection.close()

    @staticmethod
    def lasts_s(call):
        """Return the duration of *call* in seconds, and its result."""
        began_s = time.monotonic()
        result = call()
        return time.monotonic() - began_s, result


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
