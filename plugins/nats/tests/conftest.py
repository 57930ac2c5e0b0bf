"""The shared parts of this folder's tests: brokers, groups on them, streams of the plain client, other processes."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

import msgspec
import pytest
from txcore_conformance import brokers
from txcore_conformance.brokers.kit import BrokerKit
from txcore_conformance.required import obtained

# Lets these tests find the plugin's package from a source tree in which it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_nats.testing import NatsAtomicHarness, NatsHarness


class NatsKit(BrokerKit):
    """The conformance kit with additions for NATS."""

    def __init__(self, harness):
        super().__init__(harness, Path(__file__).with_name("child.py"))

    def api(self, subject, /, **request):
        """Ask JetStream with the plain client; return the answer, also an error."""

        async def ask():
            client = await self.harness._connected()
            answer = await client.request(
                f"$JS.API.{subject}", msgspec.json.encode(request) if request else b"", timeout=10
            )
            return msgspec.json.decode(answer.data)

        return self.harness._call(ask())

    def configure(self, stream, **changes):
        """Change settings of a stream."""
        config = self.api(f"STREAM.INFO.{stream}")["config"] | changes
        answer = self.api(f"STREAM.UPDATE.{stream}", **config)
        assert "error" not in answer, answer

    def state(self, stream):
        return self.api(f"STREAM.INFO.{stream}")["state"]

    def stream(self, **config):
        """Create a stream with subjects of its own; return its name and one of its subjects."""
        name = f"own-{secrets.token_hex(4)}"
        answer = self.api(f"STREAM.CREATE.{name}", **({"name": name, "subjects": [f"{name}.>"]} | config))
        assert "error" not in answer, answer
        return name, f"{name}.topic"

    def publish(self, subject, body, **headers):
        """Publish with the plain client."""

        async def send():
            client = await self.harness._connected()
            return await client.jetstream().publish(subject, body, headers=headers or None)

        return self.harness._call(send())


@pytest.fixture(scope="session")
def started_broker():
    """A function that starts a broker with options of its own; the caller removes the broker."""
    return lambda version="", **options: obtained("nats", lambda: brokers.nats(version, **options))


@pytest.fixture(scope="session")
def harness():
    made = NatsHarness()
    obtained("nats", made.start)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def private(harness):
    """A broker of these tests only, which may be killed."""
    made = obtained("nats", harness.private)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def atomic_harness(harness):
    """The broker of this run with `release=atomic`; skips on servers that have no atomic batches."""
    made = NatsAtomicHarness(harness.broker)
    made.start()
    client = asyncio.run_coroutine_threadsafe(made._connected(), made._loop).result(10)
    version = client.connected_server_version
    if (version.major, version.minor) < (2, 12):
        made.stop()
        pytest.skip(f"NATS {version} has no atomic batches")
    yield made
    made.stop()


@pytest.fixture
def cluster():
    """A cluster of three nodes of these tests only."""
    made = obtained("nats", lambda: brokers.cluster("nats"))
    yield made
    made.remove()


@pytest.fixture
def kit(harness):
    """A group on the broker of this run."""
    made = NatsKit(harness)
    yield made
    made.close()


@pytest.fixture
def hurt(private):
    """A group on the broker that may be killed."""
    made = NatsKit(private)
    yield made
    made.close()


@pytest.fixture
def atomic(atomic_harness):
    """A group with atomic releases."""
    made = NatsKit(atomic_harness)
    yield made
    made.close()


@pytest.fixture
def proxy(kit):
    """The proxy in front of the broker, forwarding again afterwards."""
    yield kit.broker.proxy
    kit.broker.proxy.forward()
