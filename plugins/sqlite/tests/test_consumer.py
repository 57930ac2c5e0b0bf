"""The consume API: stored offsets, independent groups, one active consumer."""

from __future__ import annotations

import pytest
from txcore_sqlite import Options, SqliteBackend
from txcore_sqlite.consumer import SqliteConsumer, read_topic

from txcore.errors import BusyError, ClosedError, UsageError


@pytest.fixture
def consumers(kit):
    made = []

    def consumer(group="readers", *, source=None, **arguments):
        made.append(SqliteConsumer(source or kit.path, "created", group, **arguments))
        return made[-1]

    yield consumer
    for each in made:
        each.close()


def publish(kit, backend, *bodies):
    kit.release(backend, *[kit.end(kit.half(body=body)) for body in bodies])


def bodies(received):
    return [each.body for each in received]


def test_each_message_is_polled_once_in_order(kit, backend, consumers):
    """A consumer gets each published message once, in order, and later messages after them."""
    consumer = consumers()
    assert consumer.poll() == []
    publish(kit, backend, b"1", b"2", b"3")
    assert bodies(consumer.poll(2)) == [b"1", b"2"]
    assert bodies(consumer.poll(2)) == [b"3"]
    publish(kit, backend, b"4")
    assert bodies(consumer.poll()) == [b"4"]
    assert consumer.poll() == []


def test_what_was_not_acknowledged_comes_again(kit, backend, consumers):
    """The next consumer of the group starts after the last acknowledged message."""
    publish(kit, backend, b"1", b"2", b"3")
    consumer = consumers()
    received = consumer.poll()
    assert consumer.ack(received[0].position)
    consumer.close()
    assert bodies(consumers().poll()) == [b"2", b"3"]


def test_an_older_acknowledgement_does_not_go_back(kit, backend, consumers):
    """An acknowledgement is cumulative; a later one of an earlier position changes nothing."""
    publish(kit, backend, b"1", b"2", b"3")
    consumer = consumers()
    received = consumer.poll()
    consumer.ack(received[1].position)
    consumer.ack(received[0].position)
    consumer.close()
    assert bodies(consumers().poll()) == [b"3"]


def test_groups_are_independent(kit, backend, consumers):
    """Every group gets every message."""
    publish(kit, backend, b"1", b"2")
    first, second = consumers("first"), consumers("second")
    first.ack(first.poll()[-1].position)
    assert bodies(second.poll()) == [b"1", b"2"]


def test_one_consumer_of_a_group_is_active(kit, backend, consumers):
    """A second consumer of the group gets nothing until the first one closes."""
    publish(kit, backend, b"1")
    first, second = consumers(), consumers()
    assert bodies(first.poll()) == [b"1"]
    assert second.poll() == []
    first.close()
    assert bodies(second.poll()) == [b"1"]


def test_a_silent_consumer_is_replaced_and_cannot_acknowledge(kit, backend, consumers, clock):
    """After lease_s without a poll another consumer takes over; the first one's acknowledgement is not stored."""
    publish(kit, backend, b"1")
    first, second = consumers(clock=clock), consumers(clock=clock)
    (message,) = first.poll()
    clock.now_ms += 4_999
    assert second.poll() == []
    clock.now_ms += 1
    assert bodies(second.poll()) == [b"1"]
    assert first.ack(message.position) is False
    assert first.poll() == []
    assert second.ack(message.position) is True


def test_a_polling_consumer_keeps_its_place(kit, backend, consumers, clock):
    """Polling renews the lease, and continues after the last polled message although nothing was acknowledged."""
    publish(kit, backend, b"1", b"2", b"3")
    first, second = consumers(clock=clock), consumers(clock=clock)
    for expected in (b"1", b"2", b"3"):
        assert [expected] == bodies(first.poll(1))
        clock.now_ms += 4_000
        assert second.poll() == []


def test_a_killed_consumer_is_replaced(kit, opened, consumers):
    """Another consumer gets the messages that a killed process had polled, after the lease expired."""
    backend = opened(lease_s=0.5)
    publish(kit, backend, b"1", b"2")
    child = kit.child("consume", kit.path, "created")
    assert child.stdout.readline() == "2\n"
    child.kill()
    child.wait(20)
    consumer = consumers(source=backend)
    assert bodies(kit.until(consumer.poll)) == [b"1", b"2"]


def test_a_locked_file_is_busy(kit, backend, consumers):
    """An acknowledgement that cannot be stored within busy_timeout_s raises; it is stored after the lock is free."""
    publish(kit, backend, b"1")
    short = SqliteBackend(kit.path, Options(busy_timeout_s=0.1))
    consumer = consumers(source=short)
    (message,) = consumer.poll()
    with kit.lock(), pytest.raises(BusyError):
        consumer.ack(message.position)
    assert consumer.ack(message.position)
    short.close().result(5)


def test_a_closed_consumer_refuses_calls(consumers):
    """A closed consumer refuses every call except close."""
    consumer = consumers()
    consumer.close()
    consumer.close()
    for call in (consumer.poll, lambda: consumer.ack(1)):
        with pytest.raises(ClosedError):
            call()


def test_a_url_is_not_a_file():
    """A URL in the place of a path is refused; no file of that name is created."""
    with pytest.raises(UsageError):
        read_topic("sqlite:///broker.db", "created")


def test_a_topic_that_was_not_made_is_empty(kit, backend):
    """A topic that does not exist reads as empty, as it may be created later."""
    assert read_topic(kit.path, "never made") == []
