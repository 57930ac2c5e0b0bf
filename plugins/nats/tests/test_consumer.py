"""Consuming a target: from the first message, once per group, and after the last acknowledgement."""

from __future__ import annotations

import secrets

import pytest
import txcore_nats
from txcore_conformance import raw

from txcore.errors import ClosedError


@pytest.fixture
def opened(kit):
    """Open consumers, and close them at the end of the test."""
    consumers = []

    def opened(topic, group="readers", **options):
        consumers.append(txcore_nats.PLUGIN.open_consumer(kit.address(**options), topic, group))
        return consumers[-1]

    yield opened
    for consumer in consumers:
        consumer.close()


@pytest.fixture
def topic():
    return f"shop.orders-{secrets.token_hex(4)}"


def send(kit, topic, *bodies):
    halves = [raw.half(kit, topic, body=body, key=b"\x00key") for body in bodies]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.commit(half) for half in halves])


def received(kit, consumer, count):
    found = []
    kit.until(lambda: found.extend(consumer.poll()) or len(found) >= count, "the messages")
    return found


def test_a_new_group_begins_with_the_first_message(kit, opened, topic):
    """Opening a consumer creates the topic; each group gets all messages with the key, body and headers sent."""
    first = opened(topic)
    send(kit, topic, b"1", b"2")
    for consumer in (first, opened(topic, "others")):
        messages = received(kit, consumer, 2)
        assert [message.body for message in messages] == [b"1", b"2"]
        assert messages[0].key == b"\x00key"
        assert {"txcore-id", "txcore-group", "txcore-by", "txcore-key"} == set(messages[0].headers)
        assert messages[0].position < messages[1].position


def test_a_successor_continues_after_the_last_acknowledgement(kit, opened, topic):
    """The next consumer gets all messages that were not acknowledged; the replaced one can no longer acknowledge."""
    killed = opened(topic)
    send(kit, topic, b"1", b"2", b"3")
    messages = received(kit, killed, 3)
    assert killed.ack(messages[0].position)
    successor = opened(topic)
    assert not killed.ack(messages[1].position)
    assert list(killed.poll()) == []
    assert [message.body for message in received(kit, successor, 2)] == [b"2", b"3"]
    assert successor.ack(messages[2].position)
    send(kit, topic, b"4")
    assert [message.body for message in received(kit, successor, 1)] == [b"4"]


def test_what_retention_took_is_skipped(kit, opened, topic):
    """A group whose next message is gone continues with the first one that is left."""
    consumer = opened(topic)
    send(kit, topic, b"1", b"2", b"3")
    messages = received(kit, consumer, 3)
    consumer.ack(messages[0].position)
    (stream,) = kit.api("STREAM.NAMES", subject=topic)["streams"]
    kit.api(f"STREAM.PURGE.{stream}", seq=messages[2].position)
    assert [message.body for message in received(kit, opened(topic), 1)] == [b"3"]


def test_a_closed_consumer_says_so(opened, topic):
    """A closed consumer refuses calls; closing it twice is allowed."""
    consumer = opened(topic)
    consumer.close()
    consumer.close()
    for call in (consumer.poll, lambda: consumer.ack(1)):
        with pytest.raises(ClosedError):
            call()
