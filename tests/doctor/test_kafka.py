"""Kafka: each check is broken on a real broker."""

from __future__ import annotations

import uuid

import confluent_kafka
import pytest
import txcore_kafka.doctor as kafka_doctor
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from txcore_conformance import brokers
from txcore_conformance.required import obtained

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.findings import Level, Request, examine
from txcore.registry import open_doctor


class Admin:
    """The actions of an operator."""

    def __init__(self, url):
        self.url = url
        self._client = AdminClient({"bootstrap.servers": url.partition("://")[2], "log_level": 2})

    def create(self, topic, partitions=1, replicas=-1, **settings):
        config = {name.replace("_", "."): value for name, value in settings.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=config)
        self._client.create_topics([new])[topic].result(20)

    def set(self, topic, setting, value):
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._client.incremental_alter_configs([resource])[resource].result(20)

    def delete(self, topic):
        self._client.delete_topics([topic])[topic].result(20)

    def grow(self, topic, partitions):
        self._client.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)


@pytest.fixture(scope="module")
def broker(start):
    """A broker for this module alone, because a setting broken here would break other tests."""
    with start("kafka") as broker:
        yield broker


@pytest.fixture(scope="module")
def trio():
    """A durable cluster of three brokers, all in one rack."""
    cluster = obtained("kafka", lambda: brokers.cluster("kafka", broker_rack="cellar"))
    yield cluster
    cluster.remove()


@pytest.fixture(scope="module")
def admin(trio):
    return Admin(trio.url)


@pytest.fixture
def group(trio, make_group):
    """A group of two partitions on the cluster."""
    name = f"g{uuid.uuid4().hex[:8]}"
    make_group(trio.url, name, 2)
    return name


@pytest.fixture
def line(trio, group, broker_line):
    """Return a function that compares the line of the marked check for this group on the cluster."""

    def look(level, *words, options="", **request):
        # Each broker gets new topics and settings by itself, a little later.
        broker_line(f"{trio.url}{options}", group, patience_s=20, **request)(level, *words)

    return look


def level_in(url, name, request):
    """Return the current level of one line; "" while the cluster does not report it."""
    examination = open_doctor(url, request)
    try:
        levels = [line.finding.level.value for line in examine(examination).lines if line.name == name]
    finally:
        examination.close()
    return levels[0] if levels else ""


def test_cluster_is_well(trio, group, admin, eventually):
    """Each line is OK on three brokers with replicas everywhere, except the line about their rack."""
    topic = f"mail-{group}"
    admin.create(topic)

    def report():
        examination = open_doctor(trio.url, Request(group, (topic,)))
        try:
            return examine(examination)
        finally:
            examination.close()

    # Each broker gets new topics by itself, a little later.
    expected = ["kafka.anonymous", "kafka.racks", "kafka.rights"]
    eventually(lambda: expected == [each.name for each in report().lines if each.finding.level is not Level.OK])
    assert len(report().lines) == len(kafka_doctor.CHECKS)


def test_unreachable_broker_is_one_sentence():
    """The error names the server at which no broker listens."""
    with pytest.raises(BackendUnavailableError, match=r"Kafka at 127\.0\.0\.1:1 cannot be reached"):
        open_doctor("kafka://127.0.0.1:1", Request("g"))


def test_wrong_password_is_one_sentence(start):
    """The error says that the login is refused, and does not show the password."""
    with start("kafka", credentials=True) as broker:
        open_doctor(broker.credentials_url, Request("g")).close()
        with pytest.raises(BackendUnavailableError, match="refuses the login") as caught:
            open_doctor(broker.credentials_url.replace(":secret@", ":wrong-one@"), Request("g"))
        assert "wrong-one" not in str(caught.value)


def test_unknown_option_is_refused_before_anything_is_asked():
    """The doctor refuses the option as the backend does, before it connects."""
    with pytest.raises(ConfigError, match="no option 'nope'"):
        open_doctor("kafka://127.0.0.1:1?nope=1", Request("g"))


@pytest.mark.breaks("kafka.client")
def test_client(line, monkeypatch):
    """The doctor fails on a librdkafka version that may skip records."""
    line("OK", "librdkafka 2.")
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("2.10.1", 0))
    line("FAIL", "2.10.1 is older", "pip install")


@pytest.mark.breaks("kafka.version")
def test_old_broker(line, broker_line, monkeypatch):
    """The doctor knows the version of a real 3.9; brokers from 4.0 do not report it."""
    line("OK", "4.0 or later")
    try:
        old = brokers.kafka("3.9", own=True)
    except brokers.ServerUnavailableError as error:
        pytest.skip(str(error))
    try:
        look = broker_line(old.url, "g")
        look("OK", "Kafka 3.9")
        monkeypatch.setattr(kafka_doctor, "VERSION_KEPT", "4.0")
        look("WARN", "Kafka 3.9", "no fixes any more", "upgrade to 4.0")
        monkeypatch.setattr(kafka_doctor, "VERSION_OLDEST", "3.10")
        look("FAIL", "older than 3.10")
    finally:
        old.remove()


@pytest.mark.breaks("kafka.brokers")
def test_brokers(line, broker, broker_line):
    """The doctor fails on a cluster of one broker."""
    line("OK", "3 brokers")
    broker_line(broker.url, "g")("FAIL", "1 broker", "two more brokers")


@pytest.mark.breaks("kafka.racks")
def test_racks(line, broker, broker_line):
    """The doctor warns if all three brokers are in one rack."""
    broker_line(broker.url, "g")("OK", "report no racks")
    line("WARN", "all 3 brokers are in rack 'cellar'", "broker.rack")


@pytest.mark.breaks("kafka.auto-create")
def test_auto_create(line, start, broker_line):
    """The doctor warns about Kafka's default, which creates topics automatically."""
    line("OK")
    with start("kafka", auto_create_topics_enable="true") as careless:
        broker_line(careless.url, "g")("WARN", "auto.create.topics.enable is true", "auto.create.topics.enable=false")


@pytest.mark.breaks("kafka.session-timeout")
def test_session_timeout(line, start, broker_line):
    """The doctor fails if the broker's bounds exclude the checkers' session timeout."""
    line("OK", "session_timeout_s=10")
    with start("kafka", group_max_session_timeout_ms="8000") as narrow:
        broker_line(narrow.url, "g")("FAIL", "from 1 to 8 s, not 10", "group.max.session.timeout.ms=10000")
        broker_line(f"{narrow.url}?session_timeout_s=8", "g")("OK")


@pytest.mark.breaks("kafka.transactions")
def test_transactions(line):
    """The doctor warns about the option `release=transaction`."""
    line("OK", "release=steps")
    line("WARN", "librdkafka #5423", "read_committed", options="?release=transaction")


@pytest.mark.breaks("kafka.hanging-transactions")
def test_hanging_transactions(line, group):
    """The doctor warns that a killed broker may leave a transaction open if releases are transactions."""
    line("OK", "release=steps")
    words = ("without its marker", "halves stay undecided", "release=steps", f"find-hanging --topic txc.{group}.op")
    line("WARN", *words, options="?release=transaction")


@pytest.mark.breaks("kafka.internal-topics")
def test_internal_topics(line, broker, broker_line):
    """The doctor warns if an internal topic has one replica, because ownership would be lost with it."""
    line("OK", "__consumer_offsets have 3")
    line("OK", "__transaction_state", options="?release=transaction")
    broker_line(broker.url, "g")("WARN", "__consumer_offsets will have 1 replica", "offsets.topic.replication.factor=3")


@pytest.mark.breaks("kafka.internal-topics")
def test_internal_topic_of_transactions(start, broker_line):
    """The doctor fails on one replica of the transactions' topic if transactions are used."""
    with start("kafka", offsets_topic_replication_factor="3") as other:
        look = broker_line(f"{other.url}?release=transaction", "g")
        look("FAIL", "__transaction_state will have 1 replica", "transaction.state.log.replication.factor=3")


@pytest.mark.breaks("kafka.topics")
def test_topics(line, group, admin, trio, broker_line, eventually):
    """The doctor fails if a topic has another number of partitions, or if the group has no topics."""
    line("OK", "4 topics with 2 partitions")
    broker_line(trio.url, "unused")("FAIL", "group 'unused' has no topics")
    admin.grow(f"txc.{group}.op", 3)
    request = Request(group)
    eventually(lambda: level_in(trio.url, "kafka.topics", request) == "FAIL")
    line("FAIL", "partitions differ", f"txc.{group}.op 3")


@pytest.mark.breaks("kafka.topics")
def test_missing_topic(line, group, admin, eventually):
    """The doctor names a topic of the group that was deleted."""
    line("OK")
    admin.delete(f"txc.{group}.parked")
    eventually(lambda: level_in(f"{admin.url}", "kafka.topics", Request(group)) == "FAIL")
    line("FAIL", f"topics are missing: txc.{group}.parked")


@pytest.mark.breaks("kafka.replicas")
def test_replicas(line, broker, broker_line, make_group):
    """The doctor fails if the group's topics have one replica."""
    line("OK")
    make_group(broker.url, "alone", 1)
    broker_line(broker.url, "alone", patience_s=20)(
        "FAIL", "replication factor 1", "txc.alone.", "kafka-reassign-partitions.sh"
    )


@pytest.mark.breaks("kafka.in-sync")
def test_in_sync(line, trio, group, make_group, broker_line, eventually):
    """The doctor warns about a missing replica after a broker is killed, and fails on a partition without a leader."""
    line("OK")
    alone = f"alone-{group}"
    make_group(f"{trio.url}?replicas=1", alone, 6)
    trio.nodes[2].kill()
    try:
        eventually(lambda: level_in(trio.url, "kafka.in-sync", Request(group)) == "WARN")
        line("WARN", "a replica lacks", "--under-replicated")
        eventually(lambda: level_in(trio.url, "kafka.in-sync", Request(alone)) == "FAIL")
        broker_line(trio.url, alone, patience_s=20)("FAIL", "without a leader", "start the broker")
    finally:
        trio.start()
    eventually(lambda: level_in(trio.url, "kafka.in-sync", Request(group)) == "OK")


@pytest.mark.breaks("kafka.min-in-sync")
def test_min_in_sync(line, group, admin):
    """The doctor fails on one required replica, and warns if all three are required."""
    line("OK")
    admin.set(f"txc.{group}.op", "min.insync.replicas", "1")
    line("FAIL", f"min.insync.replicas is 1 on txc.{group}.op", "--add-config min.insync.replicas=2")
    admin.set(f"txc.{group}.op", "min.insync.replicas", "3")
    line("WARN", "any broker's absence stops writing")


@pytest.mark.breaks("kafka.unclean-election")
def test_unclean_election(line, group, admin):
    """The doctor fails if a replica that lacks records may become leader."""
    line("OK")
    admin.set(f"txc.{group}.half", "unclean.leader.election.enable", "true")
    line("FAIL", f"true on txc.{group}.half", "--add-config unclean.leader.election.enable=false")


@pytest.mark.breaks("kafka.timestamps")
def test_timestamps(line, group, admin):
    """The doctor fails if producers' clocks set the timestamps."""
    line("OK")
    admin.set(f"txc.{group}.half", "message.timestamp.type", "CreateTime")
    line("FAIL", f"is CreateTime on txc.{group}.half", "message.timestamp.type=LogAppendTime")


@pytest.mark.breaks("kafka.cleanup")
def test_cleanup(line, group, admin):
    """The doctor fails on a compacted op log, because compaction removes records that are still needed."""
    line("OK")
    admin.set(f"txc.{group}.op", "cleanup.policy", "compact")
    line("FAIL", f"cleanup.policy is compact on txc.{group}.op", "cleanup.policy=delete")


@pytest.mark.breaks("kafka.retention")
def test_retention(line, group, admin):
    """The doctor fails on a retention that is too short or too small, or if ops expire before their halves."""
    line("OK", "for 7 days", "for 14 days")
    line("FAIL", "less than twice the check horizon of 5 days", "retention.ms=864000000", horizon_s=5 * 86_400)
    admin.set(f"txc.{group}.op", "retention.ms", "86400000")
    line("FAIL", "finished halves would look undecided", "retention.ms=1209600000")
    admin.set(f"txc.{group}.half", "retention.bytes", "1000000")
    line("FAIL", "retention.bytes is 1000000", "retention.bytes=-1")


@pytest.mark.breaks("kafka.message-size")
def test_message_size(line, group, admin):
    """The doctor fails if the largest record with its envelope does not fit."""
    line("OK")
    admin.set(f"txc.{group}.parked", "max.message.bytes", "5000")
    line("FAIL", f"max.message.bytes is 5000 on txc.{group}.parked", "max.message.bytes=1004296")


@pytest.mark.breaks("kafka.targets")
def test_targets(line, group, admin):
    """The doctor fails on a target that does not exist, such as a misspelt one."""
    line("WARN", "no target was named")
    topic = f"mail-{group}"
    admin.create(topic)
    line("OK", "1 target found", targets=(topic,))
    line("FAIL", "targets do not exist: lost", "kafka-topics.sh --create --topic lost", targets=(topic, "lost"))


@pytest.mark.breaks("kafka.target-settings")
def test_target_settings(line, group, admin):
    """The doctor examines the durability of the targets too, because they store the messages."""
    good, lone, small, unclean, tight = (f"{name}-{group}" for name in ("good", "lone", "small", "unclean", "tight"))
    admin.create(good)
    admin.create(lone, replicas=1, min_insync_replicas="1")
    admin.create(small, max_message_bytes="50000")
    admin.create(unclean, unclean_leader_election_enable="true")
    admin.create(tight, min_insync_replicas="1")
    line("OK", "as durable as the group: 1 target", targets=(good,))
    line("FAIL", f"replication factor 1 on {lone}", targets=(good, lone))
    line("FAIL", f"max.message.bytes is 50000 on {small}", "max.message.bytes=100000", targets=(small,))
    line("FAIL", f"unclean.leader.election.enable is true on {unclean}", targets=(unclean,))
    line("FAIL", f"min.insync.replicas is 1 on {tight}", targets=(tight,))
