"""`Reader.end`: the offset after a marker, which a deposed leader cannot acknowledge and no reader returns."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from txcore_conformance import raw
from txcore_conformance.deposed import wrong_ends
from txcore_conformance.kit import Kit, error_of
from txcore_kafka.ends import END_KEY, Log
from txcore_kafka.options import topic_name
from txcore_kafka.testing import TIMEOUT_S, KafkaHarness

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError
from txcore.records import LogKind, Position

HALF = LogKind.HALF


def keys_of(kit, kind, partition=0):
    """Return the keys of all records in a log, as a plain client reads them."""
    topic = topic_name(kit.group, kind)
    consumer = Consumer({"bootstrap.servers": kit.servers, "group.id": "plain", "log_level": 2})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S, cached=False)
        consumer.assign([TopicPartition(topic, partition, low)])
        found = []
        kit.until(lambda: found.extend(consumer.consume(500, 0.1)) or len(found) >= high - low)
        return [message.key() for message in found]
    finally:
        consumer.close()


class Deposed:
    """The driver's consumer with a leader that has no records from *high* on."""

    def __init__(self, consumer, high):
        self.consumer = consumer
        self.high = high

    def get_watermark_offsets(self, *_args, **_options):
        return 0, self.high

    def offsets_for_times(self, places, **_options):
        return [TopicPartition(each.topic, each.partition, self.high) for each in places]

    def __getattr__(self, name):
        return getattr(self.consumer, name)


def depose(reader, high):
    """Let a deposed leader answer for every log of *reader*'s backend; return a function that ends this."""
    connection = reader._readers.asking(reader._group)
    connection.consumer = Deposed(connection.consumer, high)

    def end():
        connection.consumer = connection.consumer.consumer

    return end


def test_what_a_deposed_leader_says_is_no_end(kit, topic):
    """The end is after all acknowledged records, although a deposed leader reports a lower high watermark."""
    reader = kit.connect().read(kit.group, HALF, 0)
    first = raw.appended(kit, topic, 2)
    records = raw.read_to(kit, reader, kit.wait(reader.end()))
    assert [record.body for record in records] == [half.body for half in first]
    passed = reader.passed
    heard = depose(reader, int(passed))
    later = raw.appended(kit, topic, 3)
    end = kit.wait(reader.end())
    heard()
    assert end == passed + 3 + 1
    assert [record.body for record in raw.read_to(kit, reader, end)] == [half.body for half in later]
    reader.close()


def test_what_a_deposed_leader_does_not_have_is_no_loss(kit, topic):
    """A reader whose position a deposed leader does not have reports no loss; it continues with the new leader."""
    halves = raw.appended(kit, topic, 5)
    backend = kit.connect()
    reader = backend.read(kit.group, HALF, 0, Position(4))
    heard = depose(reader, 2)
    until_s = time.monotonic() + 2.0
    while time.monotonic() < until_s:
        assert list(reader.read(10)) == []
    heard()
    assert [record.body for record in kit.until(lambda: reader.read(10))] == [halves[4].body]
    reader.close()


def test_the_thread_that_waits_for_an_end_need_not_find_its_group(kit, topic):
    """The worker can wait for an end whose group the client must look up, as another thread looks up the group."""
    backend = kit.connect()
    raw.append(kit, raw.half(kit, topic), backend=backend)
    backend._control.partition_counts.clear()
    asked = backend._worker.submit(lambda: backend._readers.log_ends.ask(Log(kit.group, HALF, 0)).result())
    assert kit.wait(asked) == 2


def test_what_a_deposed_leader_does_not_have_is_not_gone(kit, topic):
    """A fetch of a record that only a deposed leader lacks is a BackendTimeoutError; the record is not missing."""
    halves = raw.appended(kit, topic, 5)
    reader = kit.connect().read(kit.group, HALF, 0)
    reader._readers._read = lambda *_: None
    heard = depose(reader, 2)
    for wanted in ([4], [1, 4]):
        found = reader.fetch([Position(each) for each in wanted])
        assert isinstance(found.exception(30), BackendTimeoutError)
    heard()
    del reader._readers._read
    assert [record.body for record in kit.wait(reader.fetch([Position(4)])).values()] == [halves[4].body]
    reader.close()


@pytest.mark.parametrize("kind", list(LogKind))
def test_markers_are_shared_and_hidden(kit, kind):
    """Questions asked while a marker is under way share the next marker; neither read nor fetch returns markers."""
    reader, other = (kit.connect().read(kit.group, kind, 0) for _ in range(2))
    ends = [kit.wait(future) for future in [reader.end() for _ in range(200)]]
    assert ends == sorted(ends)
    keys = keys_of(kit, kind)
    assert set(keys) == {END_KEY}
    assert 1 <= len(keys) <= 20
    for each in (reader, other):
        assert raw.read_to(kit, each, ends[-1]) == []
    assert kit.wait(reader.fetch([Position(0)])) == {}
    for each in (reader, other):
        each.close()


def test_a_quiet_log_is_passed_without_a_consumer(kit):
    """A resting reader passes its own marker without a consumer, if the marker is the only new record."""
    reader = kit.connect().read(kit.group, HALF, 0)
    kit.until(lambda: list(reader.read(10)) == [] and reader._rest is not None, "the bounds of the log")
    for _ in range(3):
        end = kit.wait(reader.end())
        assert list(reader.read(10)) == []
        assert reader.passed == end
        assert reader._connection is None
    reader.close()


def test_the_end_of_a_group_that_was_deleted_is_a_config_error(kit):
    """A question for the end of a deleted group is a ConfigError, although the client knew the group before."""
    reader = kit.connect().read(kit.group, HALF, 0)
    kit.wait(reader.end())
    for kind in LogKind:
        kit.delete(topic_name(kit.group, kind))
    kit.until(lambda: isinstance(error_of(reader.end, kit.timeout_s), ConfigError), "the news that it is gone")
    reader.close()


def test_an_outage_is_a_timely_error_and_then_an_answer(hurt):
    """While the broker is frozen, each question for an end fails in time; later questions are answered again."""
    reader = hurt.connect(delivery_timeout_s="1.5").read(hurt.group, HALF, 0)
    hurt.wait(reader.end())
    hurt.broker.pause()
    began_s = time.monotonic()
    asked = [reader.end() for _ in range(3)]
    for future in asked:
        assert isinstance(future.exception(20), BackendTimeoutError | BackendUnavailableError)
    assert time.monotonic() - began_s < 10.0
    hurt.broker.resume()
    hurt.until(lambda: error_of(reader.end, hurt.timeout_s) is None, "the answer")
    reader.close()


@pytest.mark.heavy
def test_a_leader_that_was_deposed_while_it_was_frozen_reports_no_end(cluster):
    """No end is wrong while a deposed leader thaws and answers before it learns of the new leader."""
    harness = KafkaHarness(cluster.nodes[0])
    harness.start()
    harness.url = f"{cluster.url}?replicas=3&delivery_timeout_s=30"
    harness.timeout_s = 90.0
    kit = Kit(harness)
    kit.wait(kit.backend.ensure_group(kit.group, 2))
    admin = AdminClient({"bootstrap.servers": cluster.url.partition("://")[2], "log_level": 2})
    log = topic_name(kit.group, HALF)

    def leading(client):
        try:
            found = client.list_topics(log, TIMEOUT_S).topics[log].partitions.get(0)
        except KafkaException:
            return -1
        return -1 if found is None else found.leader

    kit.until(lambda: leading(admin) != -1)
    number = leading(admin)
    port = admin.list_topics(timeout=TIMEOUT_S).brokers[number].port
    leader = next(node for node in cluster.nodes if node.url.endswith(f":{port}"))
    rest = ",".join(node.url.partition("://")[2] for node in cluster.nodes if node is not leader)
    other = AdminClient({"bootstrap.servers": rest, "log_level": 2})
    rest_url = f"kafka://{rest}?replicas=3&delivery_timeout_s=30"
    topic = kit.topic()
    asking = harness.open(harness.url)
    has_other_leader = lambda: leading(other) not in {number, -1}  # noqa: E731
    assert wrong_ends(kit, topic, leader, asking, lambda: harness.open(rest_url), has_other_leader) == 0
    kit.wait(asking.close(5.0))
    kit.close()
