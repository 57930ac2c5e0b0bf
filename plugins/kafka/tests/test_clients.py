"""Clients of the driver that never end: librdkafka may wait for ever for one of its own threads."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException
from txcore_conformance import raw
from txcore_kafka import clients, control, ownership
from txcore_kafka.options import Options
from txcore_kafka.readers import Connection

from txcore.backends.holdings import Holdings
from txcore.clock import SystemClock
from txcore.errors import BackendTimeoutError
from txcore.port import failed
from txcore.records import Checkpoint, ClaimEventKind, LogKind, Position

HALF = LogKind.HALF


@pytest.fixture
def endless(monkeypatch):
    """Consumers whose close returns only after the test; yields the list of those that are being closed."""
    closing, over, close = [], threading.Event(), clients._WeakConsumer.close

    def hang(consumer):
        closing.append(consumer)
        close(consumer)  # a member has left its group before the driver hangs
        over.wait()

    monkeypatch.setattr(clients._WeakConsumer, "close", hang)
    yield closing
    over.set()


def test_closing_a_reader_does_not_wait_for_its_consumer(kit, topic, endless):
    """A reader that is closed leaves its consumer to another thread; other readers continue."""
    (half,) = raw.appended(kit, topic, 1)
    for _ in range(2):
        reader = kit.backend.read(kit.group, HALF, half.partition)
        assert [record.body for record in kit.until(lambda reader=reader: reader.read(10))] == [half.body]
        reader.close()
    kit.until(lambda: len(endless) == 2, "two consumers that do not end")


def test_loading_a_checkpoint_does_not_wait_for_its_consumer(kit, endless):
    """The worker answers the next request although the consumer of the last one does not end."""
    checkpoint = Checkpoint(Position(3), Position(4))
    member = kit.backend.claim(kit.group, "m")
    member.checkpoint(0, checkpoint).result(kit.timeout_s)
    for _ in range(2):
        assert kit.backend.load_checkpoint(kit.group, 0).result(kit.timeout_s) == checkpoint
    kit.until(lambda: len(endless) >= 2, "two consumers that do not end")


def test_an_admin_client_without_an_answer_is_replaced(monkeypatch):
    """After a request that timed out the next one has a new client, which looks for the cluster's controller anew."""
    made = []

    class Silent:
        def __init__(self, _settings):
            made.append(self)

        def describe_topics(self, _topics, **_settings):
            return {"target": failed(KafkaException(KafkaError(KafkaError._TIMED_OUT)))}

    monkeypatch.setattr(control, "make_admin", Silent)
    asking = control.Control(Options(), SystemClock(), clients.ConnectionNews())
    for count in (1, 2):
        with pytest.raises(BackendTimeoutError):
            asking.look(["target"])
        assert len(made) == count


def test_a_failed_fetch_does_not_wait_for_its_consumer(kit, topic, endless, monkeypatch):
    """After a fetch that fails, its consumer ends on another thread, and the next fetch succeeds."""
    (half,) = raw.appended(kit, topic, 1)
    reader = kit.backend.read(kit.group, HALF, half.partition)
    (record,) = kit.until(lambda: reader.read(10))
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "__init__", _failing(Connection.__init__))
        assert isinstance(reader.fetch([record.position]).exception(kit.timeout_s), Exception)
    assert reader.fetch([record.position]).result(kit.timeout_s)[record.position].body == half.body
    reader.close()


def _failing(init):
    def failing(connection, config):
        init(connection, config)
        consumer = connection.consumer

        class Failing:
            close = consumer.close

            def assign(self, _places):
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        connection.consumer = Failing()

    return failing


def test_a_member_joins_again_although_its_consumer_does_not_end(kit, endless, monkeypatch):
    """A claim that has met an error loses its partitions and gets them again with a new consumer."""
    monkeypatch.setattr(ownership, "LEAVE_MAX_S", 0.1)
    claim = kit.backend.claim(kit.group, "m")
    heard = []

    def hears(kind):
        heard.extend(event.kind for event in claim.poll())
        return heard.count(kind) >= 2

    kit.until(lambda: hears(ClaimEventKind.ASSIGNED), "the partitions")

    is_stuck = Holdings.is_stuck

    def fail(_):
        monkeypatch.setattr(Holdings, "is_stuck", is_stuck)
        raise KafkaException(KafkaError(KafkaError._FAIL))

    monkeypatch.setattr(Holdings, "is_stuck", property(fail))
    kit.until(lambda: hears(ClaimEventKind.LOST), "the loss")
    heard.clear()
    kit.until(lambda: hears(ClaimEventKind.ASSIGNED), "the partitions again")
    assert len(endless) == 1
