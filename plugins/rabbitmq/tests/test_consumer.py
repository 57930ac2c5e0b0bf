"""The consumer for demos: a stream as topic, several groups, one active consumer per group, and takeover."""

from __future__ import annotations

import pytest
from txcore_conformance import raw
from txcore_conformance.demo import consuming
from txcore_conformance.kit import error_of
from txcore_rabbitmq import PLUGIN

import txcore
from txcore.errors import BackendUnavailableError, ClosedError, ConfigError
from txcore.records import Status


class Readers:
    """The consumers of one topic, which are closed at the end."""

    def __init__(self, kit):
        self._kit = kit
        self.topic = f"topic-{kit.group}"
        self._opened = []

    def open(self, group):
        consumer = PLUGIN.open_consumer(self._kit.address(), self.topic, group)
        self._opened.append(consumer)
        return consumer

    def publish(self, *bodies):
        halves = [raw.half(self._kit, self.topic, body=body, headers={"colour": "red"}) for body in bodies]
        raw.append(self._kit, *halves)
        for half in halves:
            assert [outcome.status for outcome in raw.release(self._kit, raw.commit(half))] == [Status.DURABLE]

    def take(self, consumer, count):
        received = []
        self._kit.until(lambda: received.extend(consumer.poll()) or len(received) >= count)
        return received

    def close(self):
        for consumer in self._opened:
            consumer.close()


@pytest.fixture
def readers(kit):
    made = Readers(kit)
    yield made
    made.close()


def bodies(received):
    return [message.body for message in received]


def test_the_topic_is_made_and_every_group_begins_with_its_first_message(readers):
    """Each group, even a late one, gets all messages of the topic with their bodies, keys and headers."""
    early = readers.open("early")
    readers.publish(b"first", b"second")
    late = readers.open("late")
    for consumer in (early, late):
        first, second = readers.take(consumer, 2)
        assert (consumer.topic, first.key, first.body, first.headers["colour"]) == (
            readers.topic,
            b"key",
            b"first",
            "red",
        )
        assert "x-stream-offset" not in first.headers
        assert second.position > first.position
        assert consumer.ack(second.position)
        assert consumer.poll() == []


def test_a_successor_continues_after_the_last_ack(readers):
    """The next consumer of the group polls again all messages that were not acknowledged."""
    first = readers.open("group")
    readers.publish(b"0", b"1", b"2", b"3")
    received = readers.take(first, 4)
    assert first.ack(received[1].position)
    first.close()
    second = readers.open("group")
    assert bodies(readers.take(second, 2)) == [b"2", b"3"]
    with pytest.raises(ClosedError):
        first.poll()


def test_one_consumer_of_a_group_is_active(kit, readers):
    """A second consumer gets no messages until the first is closed, and then all that were not acknowledged."""
    active, waiting = readers.open("group"), readers.open("group")
    readers.publish(b"0", b"1")
    received = readers.take(active, 2)
    assert waiting.poll() == []
    assert not waiting.ack(received[0].position)
    active.close()
    assert bodies(readers.take(waiting, 2)) == [b"0", b"1"]


def test_a_killed_consumers_successor_continues(kit, readers):
    """After a consumer is killed, the next one gets exactly the messages that were not acknowledged."""
    readers.open("other")  # creates the topic
    readers.publish(*[b"%d" % number for number in range(5)])
    child = kit.child("consume", kit.address(), readers.topic, "group")
    assert child.stdout.readline() == "received 5\n"
    child.kill()
    assert bodies(readers.take(readers.open("group"), 3)) == [b"2", b"3", b"4"]


def test_a_long_topic_arrives_whole_and_in_order(kit, readers):
    """A consumer gets a topic with more messages than its prefetch completely and in order."""
    consumer = readers.open("group")
    halves = [raw.half(kit, readers.topic, body=b"%d" % number) for number in range(1_000)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.commit(half) for half in halves])
    received = readers.take(consumer, 1_000)
    assert bodies(received) == [half.messages[0].body for half in halves]


def test_the_demo_finds_it(kit, readers):
    """The demo opens this consumer for a RabbitMQ URL; an unknown option or a wrong queue type is refused by name."""
    consumer = consuming.open_consumer(kit.address(), readers.topic, "demo")
    consumer.close()
    consumer.close()
    with pytest.raises(ConfigError, match="nope"):
        consuming.open_consumer(kit.address(nope=1), readers.topic, "demo")
    queue = kit.queue()
    with pytest.raises(ConfigError, match="x-queue-type"):
        consuming.open_consumer(kit.address(), queue, "demo")
    with pytest.raises(BackendUnavailableError):
        consuming.open_consumer("rabbitmq://127.0.0.1:9/", "topic", "demo")


def test_a_consumer_outlives_its_broker(hurt):
    """A consumer polls no messages while the broker is away, and then continues after its last ack."""
    readers = Readers(hurt)
    consumer = readers.open("group")
    readers.publish(b"0", b"1")
    received = readers.take(consumer, 2)
    assert consumer.ack(received[0].position)
    hurt.broker.kill()
    try:
        hurt.until(lambda: consumer.poll() == [])
        assert not consumer.ack(received[1].position)
    finally:
        hurt.broker.start()
    hurt.timeout_s = 60.0
    assert bodies(readers.take(consumer, 1)) == [b"1"]
    readers.close()


def test_a_topic_that_became_a_queue_is_reported(kit, readers):
    """A consumer whose topic was deleted and declared again as a queue says so; it does not wait for ever."""
    consumer = readers.open("group")
    readers.publish(b"0")
    readers.take(consumer, 1)
    channel = kit.channel()
    channel.queue_delete(readers.topic)
    channel.queue_declare(readers.topic, durable=True, arguments={"x-queue-type": "quorum"})
    kit.until(lambda: isinstance(error_of(consumer.poll, kit.timeout_s), ConfigError))


def test_a_transaction_reaches_the_consumer(kit, readers):
    """A committed transaction's message reaches the consumer with its key and body."""
    consumer = readers.open("group")
    producer = kit.producer()
    transaction = producer.begin()
    transaction.publish(txcore.Message(readers.topic, b"hello", key=b"k"))
    transaction.prepare()
    transaction.commit()
    (message,) = readers.take(consumer, 1)
    assert (message.key, message.body) == (b"k", b"hello")
