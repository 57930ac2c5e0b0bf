"""Logs and checkpoints as they are read back: truncation, ends, damaged records."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from txcore_conformance import raw
from txcore_conformance.kit import error_of
from txcore_kafka.options import checkpoint_topic, topic_name

from txcore.errors import ConfigError, DataLossError
from txcore.records import Checkpoint, LogKind, Position, Status

HALF, OP = LogKind.HALF, LogKind.OP


def appended(kit, topic, count):
    halves = [raw.half(kit, topic) for _ in range(count)]
    assert {outcome.status for outcome in raw.append(kit, *halves)} == {Status.DURABLE}
    return halves


def loss(kit, reader):
    with pytest.raises(DataLossError) as raised:
        kit.until(lambda: reader.read(10), "the loss")
    return raised.value


def test_a_log_of_which_nothing_is_left_goes_on_at_its_end(kit, topic):
    """The loss names where the next record will be; a reader opened there gets it."""
    appended(kit, topic, 5)
    kit.harness.trim(kit.group, HALF, 0, 5)
    for start in (None, Position(2)):
        reader = kit.backend.read(kit.group, HALF, 0, start)
        assert loss(kit, reader).first == 5
        assert loss(kit, reader).first == 5, "reading on says it again"
        reader.close()
    reader = kit.backend.read(kit.group, HALF, 0, Position(5))
    assert list(reader.read(10)) == []
    (half,) = appended(kit, topic, 1)
    assert [record.body for record in kit.until(lambda: reader.read(10))] == [half.body]
    reader.close()


class LeaderMoves:
    """The driver's consumer; the broker asked first is not the partition's leader any more."""

    def __init__(self, consumer):
        self.consumer = consumer
        self.asked = 0

    def get_watermark_offsets(self, *args, **options):
        self.asked += 1
        if self.asked == 1:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return self.consumer.get_watermark_offsets(*args, **options)

    def __getattr__(self, name):
        return getattr(self.consumer, name)


def test_a_leader_that_has_just_moved_is_asked_again(kit, topic):
    """It is no error to whoever reads, only nothing yet."""
    (half,) = appended(kit, topic, 1)
    reader = kit.backend.read(kit.group, HALF, half.partition)
    connection = reader._require_connection()
    connection.consumer = LeaderMoves(connection.consumer)
    assert list(reader.read(10)) == []
    assert [record.body for record in kit.until(lambda: reader.read(10))] == [half.body]
    reader.close()


def test_a_log_that_is_shorter_than_it_was_is_a_loss(kit, topic):
    """A position beyond the end: the topic was made anew, or its last replica came back without its tail."""
    appended(kit, topic, 3)
    reader = kit.backend.read(kit.group, HALF, 0, Position(1_000))
    error = loss(kit, reader)
    assert (error.asked, error.first) == (1_000, 0)
    reader.close()


def test_records_that_go_while_they_are_read_are_a_loss(kit, topic):
    """A reader that lags behind retention says so instead of jumping over the gap."""
    appended(kit, topic, 3)
    reader = kit.backend.read(kit.group, HALF, 0)
    assert len(kit.until(lambda: reader.read(10))) == 3
    reader._connection.consumer.pause(reader._connection.consumer.assignment())
    appended(kit, topic, 5)
    kit.harness.trim(kit.group, HALF, 0, 6)
    reader._connection.consumer.resume(reader._connection.consumer.assignment())

    error = loss(kit, reader)
    assert (error.asked, error.first) == (3, 6)
    reader.close()


def test_everything_there_is_read_before_the_first_empty_result(kit, topic):
    """On a broker that answers, a fresh reader brings all that was there when it was opened."""
    for count in (1, 400):
        appended(kit, topic, count)
        reader = kit.backend.read(kit.group, HALF, 0)
        seen = 0
        while records := reader.read(50):
            seen += len(records)
        assert seen == kit.offsets(topic_name(kit.group, HALF))[1]
        reader.close()


def test_behind_a_mark_the_half_log_is_read_to_its_end(kit, topic):
    """What was appended before the mark comes before the next empty result, whoever appended it."""
    reader = kit.backend.read(kit.group, HALF, 0)
    other = kit.connect()
    for _ in range(10):
        assert list(reader.read(10)) == []
        half = raw.half(kit, topic)
        assert raw.append(kit, half, backend=other)[0].status is Status.DURABLE
        raw.mark(kit, raw.OpKind.TICK)
        assert [record.body for record in reader.read(10)] == [half.body]
    reader.close()


def test_records_come_from_other_clients_too(kit):
    """Whatever stands in the log is given out undecoded; poison is for the core."""
    kit.connect()
    kit.publish(topic_name(kit.group, OP), b"no op of ours", partition=1)
    found = raw.read(kit, OP, len, partition=1)
    assert [record.body for record in found] == [b"no op of ours"]


def test_of_many_checkpoints_the_last_one_counts(kit):
    """Each costs one record; loading reads one, however many there were."""
    claim = kit.backend.claim(kit.group, "me")
    for number in range(200):
        future = claim.checkpoint(0, Checkpoint(Position(number), Position(number), b"t" * 16, bytes(100)))
    kit.wait(future)
    assert kit.wait(kit.connect().load_checkpoint(kit.group, 0)).half == 199
    assert kit.wait(kit.connect().load_checkpoint(kit.group, 1)) is None
    assert kit.offsets(checkpoint_topic(kit.group))[1] == 200
    kit.wait(claim.close(5))


def test_a_damaged_checkpoint_is_none(kit):
    """It only saves work: without it everything is read."""
    backend = kit.connect()
    kit.publish(checkpoint_topic(kit.group), b"damaged")
    assert kit.wait(backend.load_checkpoint(kit.group, 0)) is None


def test_the_largest_note_is_stored(kit):
    """Far more than the 4096 bytes that a committed offset could carry."""
    note = bytes(range(256)) * (kit.promises.note_size_max // 256)
    claim = kit.backend.claim(kit.group, "me")
    kit.wait(claim.checkpoint(1, Checkpoint(Position(1), None, b"t" * 16, note)))
    assert kit.wait(kit.backend.load_checkpoint(kit.group, 1)).note == note
    kit.wait(claim.close(5))


def test_a_group_that_was_deleted_is_gone(kit):
    """Whoever comes new hears that there is no such group; nobody makes it in silence."""
    kit.connect()
    for kind in LogKind:
        kit.delete(topic_name(kit.group, kind))

    def error():
        fresh = kit.connect(partition_count=0)
        return error_of(lambda: fresh.read(kit.group, HALF, 0).read(1), kit.timeout_s)

    kit.until(lambda: isinstance(error(), ConfigError), "the news that there is no such group")
