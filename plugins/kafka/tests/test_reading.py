"""Reading of logs and checkpoints: truncation, ends, damaged records."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from txcore_conformance import raw
from txcore_conformance.kit import Kit, error_of
from txcore_kafka import readers
from txcore_kafka.options import checkpoint_topic, topic_name
from txcore_kafka.readers import Connection
from txcore_kafka.testing import TIMEOUT_S, KafkaHarness

from txcore.errors import BackendUnavailableError, ConfigError, DataLossError
from txcore.records import Checkpoint, LogKind, OpKind, Position, Status

HALF, OP = LogKind.HALF, LogKind.OP


def loss(kit, reader):
    with pytest.raises(DataLossError) as raised:
        kit.until(lambda: reader.read(10), "the loss")
    return raised.value


def test_a_log_of_which_nothing_is_left_continues_at_its_end(kit, topic):
    """The loss of a whole log names the next record's offset; a reader opened there gets the next record."""
    raw.appended(kit, topic, 5)
    kit.harness.trim(kit.group, HALF, 0, 5)
    for start in (None, Position(2)):
        reader = kit.backend.read(kit.group, HALF, 0, start)
        assert loss(kit, reader).first == 5
        assert loss(kit, reader).first == 5, "reading on says it again"
        reader.close()
    reader = kit.backend.read(kit.group, HALF, 0, Position(5))
    assert list(reader.read(10)) == []
    (half,) = raw.appended(kit, topic, 1)
    assert [record.body for record in kit.until(lambda: reader.read(10))] == [half.body]
    reader.close()


def leading_node(cluster, log):
    """Return the node that leads partition 0 of *log*, as a client that connects now learns; None if none does."""
    admin = AdminClient({"bootstrap.servers": cluster.url.partition("://")[2], "log_level": 2})
    found = admin.list_topics(log, TIMEOUT_S)
    leader = found.brokers.get(found.topics[log].partitions[0].leader)
    return next((node for node in cluster.nodes if leader and node.url.endswith(f":{leader.port}")), None)


def read_or_none(reader):
    try:
        return reader.read(10)
    except BackendUnavailableError:
        return None


class NotYet:
    """The driver's consumer; its first question is answered with an error."""

    def __init__(self, consumer, code):
        self.consumer = consumer
        self.code = code
        self.asked = 0

    def get_watermark_offsets(self, *args, **options):
        self.asked += 1
        if self.asked == 1:
            raise KafkaException(KafkaError(self.code))
        return self.consumer.get_watermark_offsets(*args, **options)

    def __getattr__(self, name):
        return getattr(self.consumer, name)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(KafkaError.NOT_LEADER_FOR_PARTITION, id="the leader has moved"),
        pytest.param(KafkaError._UNKNOWN_PARTITION, id="the topic is new"),
    ],
)
def test_a_broker_that_does_not_know_yet_is_asked_again(kit, topic, code):
    """A reader returns no record, and no error, while the broker does not know the log yet; then it asks again."""
    (half,) = raw.appended(kit, topic, 1)
    reader = kit.backend.read(kit.group, HALF, half.partition)
    connection = reader._readers.asking(kit.group)
    connection.consumer = NotYet(connection.consumer, code)
    assert list(reader.read(10)) == []
    assert [record.body for record in kit.until(lambda: reader.read(10))] == [half.body]
    reader.close()


@pytest.mark.heavy
def test_a_reader_continues_after_its_log_had_no_leader(cluster):
    """A client that learned that a log has no leader asks again, and does not trust that answer for minutes."""
    harness = KafkaHarness(cluster.nodes[0])
    harness.start()
    harness.url = f"{cluster.url}?replicas=1"
    harness.timeout_s = 60.0
    kit = Kit(harness)
    kit.wait(kit.backend.ensure_group(kit.group, 2))
    (half,) = raw.appended(kit, kit.topic(), 1)
    log = topic_name(kit.group, HALF)
    leader = leading_node(cluster, log)
    reader = kit.backend.read(kit.group, HALF, 0, None)
    leader.kill()
    kit.until(lambda: leading_node(cluster, log) is None, "the log without a leader")
    kit.until(lambda: isinstance(error_of(lambda: reader.read(10), 10), BackendUnavailableError), "the outage")
    leader.start()
    kit.until(lambda: leading_node(cluster, log), "the leader")
    assert [record.body for record in kit.until(lambda: read_or_none(reader), "the log")] == [half.body]
    reader.close()
    kit.close()


def test_a_log_that_is_shorter_than_it_was_is_a_loss(kit, topic):
    """A start after the log's end is a DataLossError: the topic is new, or a replica returned without its end."""
    raw.appended(kit, topic, 3)
    reader = kit.backend.read(kit.group, HALF, 0, Position(1_000))
    error = loss(kit, reader)
    assert (error.asked, error.first) == (1_000, 0)
    reader.close()


def test_records_that_go_while_they_are_read_are_a_loss(kit, topic):
    """A reader that is slower than retention raises DataLossError instead of jumping over the gap."""
    raw.appended(kit, topic, 3)
    reader = kit.backend.read(kit.group, HALF, 0)
    assert len(kit.until(lambda: reader.read(10))) == 3
    reader._connection.consumer.pause(reader._connection.consumer.assignment())
    raw.appended(kit, topic, 5)
    kit.harness.trim(kit.group, HALF, 0, 6)
    reader._connection.consumer.resume(reader._connection.consumer.assignment())

    error = loss(kit, reader)
    assert (error.asked, error.first) == (3, 6)
    reader.close()


def test_everything_there_is_read_before_the_first_empty_result(kit, topic):
    """A new reader returns all stored records before its first empty result."""
    for count in (1, 400):
        raw.appended(kit, topic, count)
        reader = kit.backend.read(kit.group, HALF, 0)
        seen = 0
        while records := reader.read(50):
            seen += len(records)
        assert seen == kit.offsets(topic_name(kit.group, HALF))[1]
        reader.close()


def test_records_are_read_again_on_one_connection_wherever_they_are(kit, topic, monkeypatch):
    """Fetch reads near and distant records on one connection, and does not return the records between them."""
    monkeypatch.setattr(readers, "NEAR_COUNT", 3)
    made = []

    def connected(config):
        made.append(config)
        return Connection(config)

    monkeypatch.setattr(readers, "Connection", connected)
    halves = raw.appended(kit, topic, 30)
    reader = kit.backend.read(kit.group, HALF, 0)
    for wanted in ([7], [0, 1, 4, 20, 29], [0, 1, 4, 20, 29], list(range(30)), [28, 3]):
        found = reader.fetch([Position(each) for each in wanted]).result(30)
        assert {each: halves[each].body for each in wanted} == {key: each.body for key, each in found.items()}
    assert len(made) == 1
    reader.close()


def test_records_that_are_gone_are_missing_where_others_are_read_again(kit, topic):
    """Fetch leaves out positions before the log's beginning and after its end, and returns the other records."""
    halves = raw.appended(kit, topic, 10)
    kit.harness.trim(kit.group, HALF, 0, 5)
    reader = kit.backend.read(kit.group, HALF, 0, Position(5))
    for wanted in ((2, 3, 7), (7, 900), (900,)):
        found = reader.fetch([Position(each) for each in wanted]).result(30)
        assert [each.body for each in found.values()] == ([halves[7].body] if 7 in wanted else [])
    reader.close()


def test_records_come_from_other_clients_too(kit):
    """Every record of the log is returned undecoded; the core handles records that it cannot decode."""
    kit.connect()
    kit.publish(topic_name(kit.group, OP), b"no op of ours", partition=1)
    found = raw.read(kit, OP, len, partition=1)
    assert [record.body for record in found] == [b"no op of ours"]


def test_of_many_checkpoints_the_last_one_counts(kit):
    """Each checkpoint is one record of its topic, and the last one is loaded."""
    claim = kit.backend.claim(kit.group, "me")
    for number in range(200):
        future = claim.checkpoint(0, Checkpoint(Position(number), Position(number), b"t" * 16, bytes(100)))
    kit.wait(future)
    assert kit.wait(kit.connect().load_checkpoint(kit.group, 0)).half == 199
    assert kit.wait(kit.connect().load_checkpoint(kit.group, 1)) is None
    assert kit.offsets(checkpoint_topic(kit.group))[1] == 200
    kit.wait(claim.close(5))


def test_a_damaged_checkpoint_is_none(kit):
    """A damaged checkpoint is loaded as None, as a checkpoint only saves work."""
    backend = kit.connect()
    kit.publish(checkpoint_topic(kit.group), b"damaged")
    assert kit.wait(backend.load_checkpoint(kit.group, 0)) is None


def test_the_largest_note_is_stored(kit):
    """A note of the largest size is stored, far above the 4096 bytes of a committed offset's metadata."""
    note = bytes(range(256)) * (kit.promises.note_size_max // 256)
    claim = kit.backend.claim(kit.group, "me")
    kit.wait(claim.checkpoint(1, Checkpoint(Position(1), None, b"t" * 16, note)))
    assert kit.wait(kit.backend.load_checkpoint(kit.group, 1)).note == note
    kit.wait(claim.close(5))


def test_a_group_that_was_deleted_is_gone(kit):
    """A new client that reads a deleted group gets a ConfigError; the group is not created again."""
    kit.connect()
    for kind in LogKind:
        kit.delete(topic_name(kit.group, kind))

    def error():
        fresh = kit.connect(partition_count=0)
        return error_of(lambda: fresh.read(kit.group, HALF, 0).read(1), kit.timeout_s)

    kit.until(lambda: isinstance(error(), ConfigError), "the news that there is no such group")


@pytest.fixture
def early_rest(monkeypatch):
    monkeypatch.setattr("txcore_kafka.reading.REST_AFTER_S", 0.2)


@pytest.mark.parametrize("kind", [HALF, OP])
def test_a_log_on_which_nothing_happens_is_read_without_a_consumer(kit, topic, kind, early_rest):
    """A reader gives its consumer up in a quiet log, and creates one for new records; each record is read once."""
    reader = kit.backend.read(kit.group, kind, 0)
    assert list(reader.read(10)) == []
    assert reader._connection is None, "an empty log has never had one"
    found = []
    for count in (1, 2, 3):
        if kind is HALF:
            raw.appended(kit, topic, 1)
        else:
            assert raw.mark(kit, OpKind.TICK)[1].status is Status.DURABLE
        kit.until(lambda wanted=count: found.extend(reader.read(10)) or len(found) == wanted, "the record")
        kit.until(lambda: not list(reader.read(10)) and reader._connection is None, "the rest")
    assert [record.position for record in found] == [0, 1, 2]
    reader.close()


def read_in_time(kit, reader):
    """Return the records of one read; a read for which the broker was too slow is repeated."""

    def attempt():
        began_s, patience_s = time.monotonic(), reader._readers.patience_s
        records = list(reader.read(10))
        was_slow = time.monotonic() - began_s >= patience_s or reader._miss_count
        return None if not records and was_slow else (records,)

    return kit.until(attempt, "a read that the broker answers in time")[0]


def test_after_a_mark_a_resting_reader_has_everything_before_it(kit, topic):
    """After a mark of its backend is stored, a resting reader's next read returns all records before the mark."""
    halves, ops = kit.backend.read(kit.group, HALF, 0), kit.backend.read(kit.group, OP, 0)
    for number in range(5):
        assert list(halves.read(10)) == list(ops.read(10)) == [] if not number else True
        (half,) = raw.appended(kit, topic, 1)
        assert raw.mark(kit, OpKind.TICK)[1].status is Status.DURABLE
        assert [half.body] == [record.body for record in read_in_time(kit, halves)]
        assert len(read_in_time(kit, ops)) == 1
        for reader in (halves, ops):
            reader._disconnect()
            reader._begin()
            assert reader._connection is None
    halves.close()
    ops.close()


def test_a_resting_reader_reports_an_outage(hurt):
    """A resting reader raises BackendUnavailableError during an outage."""
    reader = hurt.backend.read(hurt.group, HALF, 0)
    assert list(reader.read(10)) == []
    assert reader._connection is None
    hurt.broker.kill()
    with pytest.raises(BackendUnavailableError):
        hurt.until(lambda: reader.read(1), "the news")
    reader.close()


def test_the_end_lies_after_what_an_open_transaction_holds_back(kit, topic):
    """A reader does not pass the end while an open transaction has a record before it, and passes it afterwards."""
    raw.appended(kit, topic, 2)
    half_topic = topic_name(kit.group, HALF)
    producer = kit.plain_producer(**{"transactional.id": f"stranger-{kit.group}"})
    producer.init_transactions(TIMEOUT_S)
    reader = kit.backend.read(kit.group, HALF, 0)
    bodies = []

    def has_passed(end):
        bodies.extend(record.body for record in reader.read(10))
        return reader.passed >= end

    for is_aborted in (True, False):
        before = kit.wait(reader.end())
        producer.begin_transaction()
        producer.produce(half_topic, b"of a stranger", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        end = kit.wait(reader.end())
        assert end == before + 2, "the stranger's record and a marker"
        kit.until(lambda before=before: has_passed(before))
        assert reader.passed == before, "it is not read before the transaction has ended"
        (producer.abort_transaction if is_aborted else producer.commit_transaction)(TIMEOUT_S)
        kit.until(lambda end=end: has_passed(end))
    assert (len(bodies), bodies[-1]) == (3, b"of a stranger")
    kit.until(lambda: has_passed(kit.offsets(half_topic)[1]))
    kit.history.unjudged = "a stranger wrote to its half log"
    reader.close()


def test_a_reader_that_rests_after_control_records_gives_up_its_consumer(kit, topic):
    """A reader rests although only control records come after its last record; a question for the end wakes it."""
    half_topic = topic_name(kit.group, HALF)
    raw.appended(kit, topic, 1)
    producer = kit.plain_producer(**{"transactional.id": f"stranger-{kit.group}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(half_topic, b"of a stranger", partition=0)
    producer.abort_transaction(TIMEOUT_S)
    reader = kit.backend.read(kit.group, HALF, 0)
    kit.until(lambda: reader.read(10))
    kit.until(lambda: reader.read(10) is None or (reader._rest is not None and reader._connection is None))
    raw.appended(kit, topic, 1)
    assert len(raw.read_to(kit, reader, kit.wait(reader.end()))) == 1
    kit.history.unjudged = "a stranger wrote to its half log"
    reader.close()
