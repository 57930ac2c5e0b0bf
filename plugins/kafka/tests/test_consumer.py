"""The plain consumer of the demo: its share of partitions, acknowledgements, takeover."""

from __future__ import annotations

import secrets

import pytest
from txcore_kafka import PLUGIN

from txcore.errors import ClosedError, ConfigError


@pytest.fixture
def consuming(kit):
    """Open consumers of one new topic, and close them at the end of the test."""
    opened = []
    topic, group = f"consumed-{secrets.token_hex(4)}", f"group-{secrets.token_hex(4)}"

    def opener(group=group):
        opened.append(PLUGIN.open_consumer(kit.address(), topic, group))
        return opened[-1]

    yield opener
    for consumer in opened:
        consumer.close()


def gathered(kit, count, *consumers):
    """Poll until *count* messages have arrived; return them."""
    found = []

    def has_all():
        for consumer in consumers:
            found.extend(consumer.poll())
        return len(found) >= count

    kit.until(has_all, f"{count} messages")
    return found


def publish(kit, topic, count):
    producer = kit.plain_producer()
    for number in range(count):
        producer.produce(topic, b"%02d" % number, b"key", headers={"name": "value"})
    assert producer.flush(10) == 0


def test_a_new_group_begins_with_the_first_message(kit, consuming):
    """Opening a consumer creates the topic; a new group reads it from the start, with keys, headers and positions."""
    consumer = consuming()
    publish(kit, consumer.topic, 10)
    received = gathered(kit, 10, consumer)
    assert [each.body for each in received] == [b"%02d" % number for number in range(10)]
    assert [each.position for each in received] == list(range(1, 11))
    assert (received[0].key, dict(received[0].headers)) == (b"key", {"name": b"value"})


def test_a_successor_continues_after_the_last_acknowledged(kit, consuming):
    """The next consumer of the group polls again all messages that were not acknowledged."""
    first = consuming()
    publish(kit, first.topic, 10)
    gathered(kit, 10, first)
    assert first.ack(4) is True
    first.close()
    first.close()
    assert [each.body for each in gathered(kit, 6, consuming())] == [b"%02d" % number for number in range(4, 10)]


def test_another_group_reads_for_itself(kit, consuming):
    """A group's acknowledgements do not change the messages that another group polls."""
    first, other = consuming(), consuming("other")
    publish(kit, first.topic, 3)
    assert first.ack(gathered(kit, 3, first)[-1].position) is True
    assert len(gathered(kit, 3, other)) == 3


def test_what_another_member_took_over_cannot_be_acknowledged(kit, consuming):
    """An acknowledgement returns False for messages of a partition that another member took over."""
    first = consuming()
    publish(kit, first.topic, 4)
    last = gathered(kit, 4, first)[-1].position
    second = consuming()
    kit.until(lambda: first.poll() or second.poll() or second._consumer.assignment(), "a share for the second")
    if first._consumer.assignment() and all(each[1] is not None for each in first._unacknowledged):
        pytest.fail("an eager rebalance takes everything away first")
    assert first.ack(last) is False


def test_only_committed_records_are_read(kit, consuming):
    """The consumer never returns records of an aborted transaction."""
    consumer = consuming()
    producer = kit.plain_producer(**{"transactional.id": secrets.token_hex(8)})
    producer.init_transactions(10)
    for body, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(consumer.topic, body, b"key")
        producer.flush(10)
        end()
    assert [each.body for each in gathered(kit, 1, consumer)] == [b"committed"]


def test_a_closed_consumer_refuses(consuming):
    """A closed consumer refuses every call except `close`."""
    consumer = consuming()
    consumer.close()
    for call in (consumer.poll, lambda: consumer.ack(1)):
        with pytest.raises(ClosedError):
            call()


def test_a_position_that_was_never_given_is_not_acknowledged(consuming):
    """An acknowledgement of a position that the consumer never returned is False."""
    assert consuming().ack(7) is False


def test_an_unknown_option_is_named(kit):
    """A consumer's URL with an unknown option is a ConfigError that names the option, as for a backend."""
    with pytest.raises(ConfigError) as raised:
        PLUGIN.open_consumer(kit.address(linger="5"), "topic", "group")
    assert raised.value.key == "linger"
