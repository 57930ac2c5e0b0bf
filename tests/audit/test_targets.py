"""Target topics on real brokers: cut, emptied, made anew, or of other programs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets

import pytest
from beds import Bed, found_in
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from nats.aio.client import Client
from nats.js.api import StreamConfig
from txcore_conformance import brokers
from txcore_conformance.kit import wait_until
from txcore_conformance.required import obtained
from txcore_spark.command import lines_of
from txcore_spark.repair import repair
from txcore_spark.report import page
from txcore_spark.selftest.writers import write_rows

from txcore.audit.verdicts import Verdict

WAIT_S = 120.0


class Kafka:
    """A Kafka broker, with what an administrator or retention does to its topics."""

    def __init__(self, url):
        self.url = url
        self.servers = url.partition("://")[2]
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})

    def names(self, tag):
        return (f"orders-{tag}", f"mail-{tag}")

    def sections(self, topics):
        """Return further sections of the configuration."""
        return ""

    def create(self, topic, **config):
        """Create a topic of two partitions, and wait until the broker knows it."""

        def is_created():
            with contextlib.suppress(KafkaException):
                self.admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(WAIT_S)
            return self._is_there(topic)

        wait_until(is_created, f"topic {topic}", WAIT_S)

    def _is_there(self, topic):
        return self.admin.list_topics(topic, WAIT_S).topics[topic].error is None

    def fill(self, topic, count):
        """Append records of another program."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 2})
        for number in range(count):
            producer.produce(topic, b"foreign %d" % number, partition=number % 2)
        assert 0 == producer.flush(WAIT_S)

    def empty(self, topic):
        """Delete every record, as retention does."""
        places = [TopicPartition(topic, partition, -1) for partition in range(2)]
        for answer in self.admin.delete_records(places).values():
            answer.result(WAIT_S)

    def remake(self, topic):
        """Delete the topic and make it anew."""
        self.admin.delete_topics([topic])[topic].result(WAIT_S)
        wait_until(lambda: not self._is_there(topic), f"the end of {topic}", WAIT_S)
        self.create(topic)


class Nats:
    """A NATS server whose stream of targets is deleted and made anew."""

    def __init__(self, url):
        self.url = url

    def names(self, tag):
        return (f"orders.{tag}", f"mail.{tag}")

    def sections(self, topics):
        return ""

    def remake(self, topic):
        """Delete the stream that holds the topic, and make it anew with the same subjects."""
        asyncio.run(self._remake(topic))

    async def _remake(self, topic):
        client = Client()
        await client.connect(self.url)
        context = client.jetstream()
        name = await context.find_stream_name_by_subject(topic)
        config = (await context.stream_info(name)).config
        await context.delete_stream(name)
        await context.add_stream(StreamConfig(name=name, subjects=config.subjects))
        await client.close()


class Rabbitmq:
    """A RabbitMQ broker whose streams beside the queues are deleted and made anew."""

    def __init__(self, url):
        self.url = url

    def names(self, tag):
        return (f"orders-{tag}/key", f"mail-{tag}/key")

    def sections(self, topics):
        taps = ", ".join(f'"{topic}={topic.partition("/")[0]}.tap"' for topic in topics)
        return f"[audit.backends.main]\ntaps = [{taps}]"

    def remake(self, topic):
        """Delete the stream that taps the topic, and bind a new one of its name."""
        pika = importlib.import_module("pika")
        connection = pika.BlockingConnection(pika.URLParameters(self.url.replace("rabbitmq://", "amqp://")))
        channel = connection.channel()
        exchange, _, key = topic.partition("/")
        channel.queue_delete(f"{exchange}.tap")
        channel.queue_declare(f"{exchange}.tap", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(f"{exchange}.tap", exchange, key)
        connection.close()


KINDS = {"kafka": Kafka, "nats": Nats, "rabbitmq": Rabbitmq}


@pytest.fixture(scope="module", params=list(KINDS))
def world(request):
    """A broker of each kind."""
    broker = obtained(request.param, lambda: brokers.start(request.param, own=True))
    yield KINDS[request.param](broker.url)
    broker.remove()


@pytest.fixture
def bed(world, tmp_path):
    """A new group with two new topics on the broker."""
    tag = secrets.token_hex(4)
    topics = world.names(tag)
    made = Bed(tmp_path, f"shop-{tag}", url=world.url, topics=topics, sections=world.sections(topics))
    yield made
    made.writer.close()


@pytest.fixture
def kafka(world):
    """The broker, if it is Kafka: the others' topics cannot be emptied from outside, or cannot be listed."""
    if not isinstance(world, Kafka):
        pytest.skip("Kafka's topics only")
    return world


def said(bed, manifest):
    """Return the words of the terminal and of the report."""
    return "\n".join(lines_of(manifest, "")) + page(manifest, bed.store().findings(manifest, 100))


def test_target_that_was_made_anew_is_a_gap_and_nothing_is_published_twice(engine, world, bed):
    """What the first topic held was read; what the new one holds is read from its beginning; no message is LOST.

    Without the broker's mark of creation, equal positions of the new topic would count as read.
    """
    audit = bed.audit(engine)
    bed.write(*[None] * 10)
    assert 0 == audit.incremental()["exit_code"]
    world.remake(bed.topics[0])
    bed.write(*[None] * 60)
    manifest = audit.incremental()
    assert {"COVERAGE_GAP"} == set(manifest["counts"])
    assert 3 == manifest["exit_code"]
    assert any("made anew" in gap["why"] for gap in manifest["gaps"])
    lines = []
    assert 0 == repair(bed.loaded(), manifest["number"], only=(), apply=False, say=lines.append)
    assert "0 of 0 findings" in lines[-1]
    bed.write(Verdict.LOST)
    last = audit.incremental()
    assert not last["gaps"], last["gaps"]


def test_repair_looks_at_the_target_once_more(engine, world, bed):
    """A message that arrived after the run is not published a second time; one that is missing is."""
    late, _ = bed.write(Verdict.LOST, Verdict.LOST)
    manifest = bed.audit(engine).once()
    assert {"LOST": 2} == manifest["counts"]
    bed.writer.write([(late.partition, bed.maker.target(bed.half_of(late), 0))])
    lines = []
    assert 0 == repair(bed.loaded(), manifest["number"], only=(), apply=True, say=lines.append)
    printed = "\n".join(lines)
    assert "nothing is missing any more" in printed
    assert "1 repaired, 0 failed" in lines[-1]
    again = bed.audit(engine).once()
    assert {} == found_in(bed.store(), again)


def test_own_topic_that_was_cut_before_the_first_run_is_a_gap(engine, kafka, bed):
    """The default mode says so; nothing counts as LOST that may have been there."""
    bed.write(*[None] * 10)
    kafka.empty(bed.topics[0])
    manifest = bed.audit(engine).incremental()
    assert (3, {"COVERAGE_GAP"}) == (manifest["exit_code"], set(manifest["counts"]))
    assert {bed.topics[0]} == {gap["name"] for gap in manifest["gaps"]}


def test_foreign_topic_that_retention_emptied_hides_nothing(engine, kafka, bed):
    """Retention in a topic of other programs moves no border of the group: its lost message is found."""
    foreign = f"foreign-{secrets.token_hex(4)}"
    kafka.create(foreign)
    kafka.fill(foreign, 40)
    kafka.empty(foreign)
    for topics in ("[]", '"all"'):
        bed.sections = f"[audit.backends.main]\ntopics = {topics}"
        (lost,) = bed.write(Verdict.LOST)
        for manifest in (bed.audit(engine).incremental(), bed.audit(engine).once()):
            assert 2 == manifest["exit_code"]
            assert {"LOST"} == found_in(bed.store(), manifest)[lost.transaction_id]
            assert {"LOST"} == set(manifest["counts"])


def test_only_the_group_s_topics_are_read_unless_all_are_wanted(engine, kafka, bed):
    """The default reads what the halves name and says what it did not read; "all" finds a forgery elsewhere."""
    foreign, compacted = f"foreign-{secrets.token_hex(4)}", f"compacted-{secrets.token_hex(4)}"
    kafka.create(foreign)
    kafka.create(compacted, **{"cleanup.policy": "compact"})
    kafka.fill(foreign, 500)
    (phantom,) = bed.write(Verdict.PHANTOM, parts={"other"})
    forged = next(each for each in phantom.records if each.log == "target")
    kafka_forged = type(forged)("target", forged.body, foreign, forged.key, forged.headers)
    bed.writer.write([(phantom.partition, kafka_forged)])
    bed.write(*[None] * 5)
    manifest = bed.audit(engine).once()
    assert (0, {}) == (manifest["exit_code"], manifest["counts"])
    assert manifest["records"] < 100
    assert 2 == said(bed, manifest).count("no half of these groups names")
    assert foreign in said(bed, manifest)
    bed.sections = '[audit.backends.main]\ntopics = "all"'
    everything = bed.audit(engine).once()
    assert {phantom.transaction_id: {"PHANTOM"}} == found_in(bed.store(), everything)
    assert 500 < everything["records"]
    assert compacted in said(bed, everything)


def test_sent_message_whose_topic_nothing_names_is_a_gap(engine, world, bed):
    """RabbitMQ lists no topics, and a row of the message table that was sent names none; with a tap it is LOST."""
    if not isinstance(world, Rabbitmq):
        pytest.skip("the other brokers list their topics")
    (sent,) = bed.write(None, parts=())
    write_rows(bed.database, "txcore_tx", bed.group, [(sent.transaction_id, 3, b"")])
    tapped, bed.sections = bed.sections, ""
    manifest = bed.audit(engine).incremental()
    assert (3, {"COVERAGE_GAP"}) == (manifest["exit_code"], set(manifest["counts"]))
    assert "topics that nothing names" in manifest["gaps"][0]["why"]
    bed.sections = tapped
    again = bed.audit(engine).incremental()
    assert {sent.transaction_id: {"LOST"}} == found_in(bed.store(), again)
    assert not again["gaps"]
