"""The shared parts of this folder's tests: brokers, groups on them, topics with settings, other processes."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from txcore_conformance import brokers
from txcore_conformance.brokers.kit import BrokerKit
from txcore_conformance.required import obtained

# Lets these tests find the plugin's package from a source tree in which it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_kafka.testing import TIMEOUT_S, KafkaHarness, KafkaTransactionHarness


class KafkaKit(BrokerKit):
    """The conformance kit with additions for Kafka."""

    def __init__(self, harness):
        super().__init__(harness, Path(__file__).with_name("child.py"))
        self.servers = harness.broker.url.partition("://")[2]

    @property
    def admin(self):
        return self.harness._admin

    def make_topic(self, name="", partition_count=1, **settings):
        """Create a topic with the plain client; settings have Kafka's names, with underscores for dots."""
        name = name or f"own-{secrets.token_hex(4)}"
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        self.harness._create(NewTopic(name, num_partitions=partition_count, config=config))
        return name

    def settings(self, topic):
        """Return a topic's settings, as the plain client sees them."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        return {name: entry.value for name, entry in entries.items()}

    def delete(self, topic):
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def plain_producer(self, **settings):
        return Producer({"bootstrap.servers": self.servers, "log_level": 2, **settings})

    def publish(self, topic, body, partition=0, **settings):
        """Publish with the plain client."""
        producer = self.plain_producer(**settings)
        producer.produce(topic, body, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0

    def offsets(self, topic, partition=0):
        """Return a log's first offset and the one after its last."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "plain", "log_level": 2})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S, cached=False)
        finally:
            consumer.close()


@pytest.fixture(scope="session")
def started_broker():
    """A function that starts a broker with options of its own; the caller removes the broker."""
    return lambda version="", **options: obtained("kafka", lambda: brokers.kafka(version, **options))


@pytest.fixture(scope="session")
def harness():
    made = KafkaHarness()
    obtained("kafka", made.start)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def private(harness):
    """A broker of these tests only, which may be killed."""
    made = obtained("kafka", harness.private)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def transaction_harness():
    made = obtained("kafka", KafkaTransactionHarness().private)
    yield made
    made.stop()


@pytest.fixture
def cluster():
    """A cluster of three nodes of these tests only."""
    made = obtained("kafka", lambda: brokers.cluster("kafka"))
    yield made
    made.remove()


@pytest.fixture
def kit(harness):
    """A group on the broker of this run."""
    made = KafkaKit(harness)
    yield made
    made.close()


@pytest.fixture
def hurt(private):
    """A group on the broker that may be killed; the broker runs again afterwards."""
    made = KafkaKit(private)
    yield made
    private.broker.resume()
    if not private.broker.is_running:
        private.broker.start()
    private.broker.proxy.forward()
    made.close()


@pytest.fixture
def together(transaction_harness):
    """A group with `release=transaction`."""
    made = KafkaKit(transaction_harness)
    yield made
    made.close()


@pytest.fixture
def topic(kit):
    """An existing, empty target topic."""
    return kit.topic()
