"""Every reader on the real brokers: a reader may fail a read, but it never shortens one."""

from __future__ import annotations

import importlib
import itertools
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

import msgspec
from confluent_kafka import KafkaError, KafkaException
from txcore_conformance import brokers
from txcore_conformance.brokers.security import PASSWORD
from txcore_conformance.kit import error_of, wait_until
from txcore_conformance.required import obtained
from txcore_spark.anomalies import Maker, Written, identity_of
from txcore_spark.engines import session
from txcore_spark.engines.spark_keep import SparkKeep
from txcore_spark.job import Audit
from txcore_spark.plan import Range, Source
from txcore_spark.readers import reader_of
from txcore_spark.readers.ranges import read_range
from txcore_spark.rows import Kind, Place
from txcore_spark.selftest.run import compare, make_bed, plant, write_config
from txcore_spark.selftest.writers import open_writer
from txcore_spark.store import FINDINGS, Store

import txcore
from txcore.clock import SystemClock
from txcore.config import load
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, TxcoreError
from txcore.operator.proving import prove
from txcore.records import LogKind, OpKind
from txcore.runtime.drivers import BlockingBridge, run_blocking

COUNT = 120
TIMEOUT_S = 2.0
SECURED = {"tls": True, "credentials": True}
LOGS = ("half", "op", "target")
_numbers = itertools.count(1)


class World:
    """One kind of broker."""

    def __init__(self, name, folder, spark=None):
        self.name = name
        self.spark = spark  # reads with its own Kafka source
        # The first read of the Java process takes longer.
        self.timeout_s = 3 * TIMEOUT_S if spark else TIMEOUT_S
        self.broker = None
        self.writers = []
        if name == "sqlite":
            self.url = f"sqlite:///{folder}/broker.db"
        else:
            self.broker = obtained(name, lambda: brokers.start(name, own=True, **(SECURED if spark else {})))
            self.url = self.broker.url

    def close(self):
        for writer in self.writers:
            writer.close()
        if self.broker is not None:
            self.broker.remove()


class Group:
    """A new group with *count* transactions in it."""

    def __init__(self, world, count=COUNT):
        self.world = world
        self.bed = make_bed("main", world.url, "")
        backend = txcore.connect(world.url)
        # A broker that the previous test froze becomes its own controller a little later.
        wait_until(lambda: error_of(lambda: backend.ensure_group(self.bed.group, 2), 60.0) is None, "a group", 120.0)
        backend.close()
        self.writer = open_writer(world.url, self.bed.group)
        world.writers.append(self.writer)
        self.writer.prepare(self.bed.topics)
        self.ids = set()
        self.write(count)

    def write(self, count):
        keyless = not self.world.url.startswith(("kafka", "sqlite"))
        maker = Maker(self.bed.group, 2, self.bed.topics[:1], key_as_header=keyless)
        made = [
            maker.make(identity_of(time.time_ns() // 1_000_000, next(_numbers)), 1_700_000_000_000)
            for _ in range(count)
        ]
        self.ids |= {history.transaction_id for history in made}
        self.writer.write((each.partition, r) for each in made for r in each.records if r.log != "row")

    def source(self, log):
        if log != "target":
            return Source(1, "main", log, self.bed.group, self.bed.group)
        tap = self.bed.taps[0].partition("=")[2] if self.bed.taps else self.bed.topics[0]
        return Source(2, "main", log, tap, topic=self.bed.topics[0])

    def ranges(self, log, records_max=1_000_000):
        """Return the planned ranges of a log."""
        broker = reader_of(self.world.url).open_broker(self.world.url, 10.0)
        try:
            source = self.source(log)
            found = []
            for edge in broker.edges(source):
                if edge.first < edge.end:
                    place = Place(0, source.number, edge.partition, -1 if log == "target" else 0)
                    wanted = Range(
                        source, place, edge.first, edge.end, edge.count, self.world.timeout_s, {self.bed.group: 0}
                    )
                    found += broker.split(wanted, records_max)
            return found
        finally:
            broker.close()

    def read(self, ranges):
        """Return the rows of ranges as dictionaries."""
        if self.world.spark is not None:
            return self.read_with_spark(ranges)
        batches = [batch for each in ranges for batch in read_range(self.world.url, each)]
        return [row for batch in batches for row in batch.to_pylist() if row["kind"] != Kind.COST]

    def read_with_spark(self, ranges, url=""):
        keep = SparkKeep(self.world.spark.session, None, 0, is_landed=False)
        if ranges:
            importlib.import_module("txcore_spark.engines.native").land(
                self.world.spark.session, url or self.world.url, ranges, keep
            )
        return [each | {"tx": bytes(each["tx"])} for each in keep.rows().collect()]


def kinds(rows):
    """Return the kinds of rows."""
    return {Kind(row["kind"]).name for row in rows}


@pytest.fixture(scope="module", params=["sqlite", "nats", "kafka", "spark-kafka", "rabbitmq"])
def world(request, tmp_path_factory):
    """A broker of each kind, one after the other; for Kafka also with Spark's own source."""
    is_spark = request.param.startswith("spark-")
    spark = request.getfixturevalue("spark") if is_spark else None
    made = World(request.param.removeprefix("spark-"), tmp_path_factory.mktemp("broker"), spark)
    if is_spark:
        require_kafka_source(spark)
    yield made
    made.close()


def require_kafka_source(spark):
    """Skip without the jars, unless Kafka is required."""
    try:
        importlib.import_module("txcore_spark.engines.native").require(spark.session)
    except ConfigError as error:
        if brokers.is_required("kafka"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.mark.parametrize("log", LOGS)
def test_everything_is_read_once_in_ranges_of_any_size(world, log):
    """One range or many small ranges give each transaction once, and one cover for each range."""
    group = Group(world)
    for records_max in (1_000_000, 25):
        ranges = group.ranges(log, records_max)
        rows = group.read(ranges)
        facts = [row for row in rows if row["kind"] < Kind.COVER]
        assert COUNT == len({(row["partition"], row["position"]) for row in facts}) == len(facts)
        assert group.ids == {row["tx"] for row in facts}
        assert len(ranges) == sum(row["kind"] == Kind.COVER for row in rows)


def test_what_marks_the_end_of_a_log_is_no_record(world):
    """A checker appends a marker to find the end of a log; the audit counts and skips it."""
    group = Group(world)
    backend = txcore.connect(world.url)
    for kind in (LogKind.HALF, LogKind.OP):
        for partition in range(2):
            reader = backend.read(group.bed.group, kind, partition)
            if not hasattr(reader, "end"):
                pytest.skip(f"{world.name} does not report ends yet")
            reader.end().result(30.0)
            reader.close()
    backend.close().result(10.0)
    for log in ("half", "op"):
        ranges = group.ranges(log)
        rows = group.read(ranges)
        assert group.ids == {row["tx"] for row in rows if row["kind"] < Kind.COVER}
        assert kinds(rows) <= {"HALF", "OP", "COVER"}
        assert len(ranges) == sum(row["kind"] == Kind.COVER for row in rows)


def test_a_proof_is_at_the_place_that_its_copy_names(world):
    """The audit's readers number the records of the op log as the reader that a copy's writer uses."""
    group = Group(world)
    maker = Maker(group.bed.group, 2, group.bed.topics[:1], key_as_header=False)
    identity = identity_of(time.time_ns() // 1_000_000, next(_numbers))
    half = maker.half(identity, 1_700_000_000_000, 1, fenced=True, patience_ms=0)
    copy = msgspec.structs.replace(half, generation=1)
    with txcore.connect(world.url) as backend:
        record = run_blocking(prove(backend, copy, by="ops", clock=SystemClock()), BlockingBridge(backend))
    group.writer.write([(copy.partition, Written("half", record.body))])
    rows = [row for log in ("half", "op") for row in group.read(group.ranges(log))]
    (found,) = [row for row in rows if row["kind"] == Kind.COPY]
    (tick,) = [row for row in rows if row["kind"] == Kind.OP and row["code"] == OpKind.TICK]
    assert (found["partition"], found["place"], found["text"]) == (
        tick["partition"],
        tick["position"],
        tick["tx"].hex(),
    )


def test_an_empty_log_is_read_as_empty(world):
    """An empty log has no range, or one whose cover counts 0 records."""
    group = Group(world, count=0)
    rows = [row for log in LOGS for row in group.read(group.ranges(log))]
    assert kinds(rows) <= {"COVER"}
    assert 0 == sum(row["hash"] for row in rows)


def test_record_written_after_the_frozen_end_is_not_read(world):
    """A live writer does not change a planned range."""
    group = Group(world)
    known = set(group.ids)
    ranges = group.ranges("half")
    group.write(50)
    assert known == {row["tx"] for row in group.read(ranges) if row["kind"] == Kind.HALF}


def test_a_paused_broker_leaves_a_gap_and_no_cover(world):
    """After the range's timeout each range has a gap with its reason, and no cover."""
    if world.broker is None:
        pytest.skip("a file cannot be paused")
    group = Group(world)
    # Short: Kafka counts a node as dead after 9 s of silence.
    ranges = [replace(each, timeout_s=TIMEOUT_S) for each in group.ranges("half")]
    world.broker.pause()
    try:
        rows = group.read(ranges)
    finally:
        world.broker.resume()
    assert {"GAP"} == kinds(rows)
    assert len(ranges) == len(rows)
    assert all(row["text"] for row in rows)


def test_a_slow_broker_is_waited_for(world):
    """A reader waits for a broker that stops for a while and continues, and reads everything."""
    if world.broker is None:
        pytest.skip("a file is not slow")
    group = Group(world)
    ranges = group.ranges("half")
    world.broker.pause()
    waking = threading.Timer(world.timeout_s / 4, world.broker.resume)
    waking.start()
    rows = group.read(ranges)
    waking.join()
    assert "COVER" in kinds(rows)
    assert "GAP" not in kinds(rows)
    assert group.ids == {row["tx"] for row in rows if row["kind"] == Kind.HALF}


@pytest.mark.parametrize("scheme", ["rabbitmq", "nats"])
def test_a_connection_may_take_as_long_as_a_record(scheme):
    """A server that is slow to answer is waited for, longer than an application waits for a connection."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}?connect_timeout_s=0.1"
        began_s = time.monotonic()
        with pytest.raises((BackendTimeoutError, BackendUnavailableError)):
            reader_of(url).open_broker(url, 1.0)
    assert time.monotonic() - began_s > 0.9


def test_records_that_retention_deletes_after_the_plan_leave_a_gap(world):
    """Records are deleted between planning and reading; the next plan reports that the log's beginning is missing."""
    group = Group(world)
    ranges = group.ranges("half")
    if not trimmed(world, group, ranges):
        pytest.skip("this broker drops whole segments only")
    rows = group.read(ranges)
    assert {wanted.place.partition for wanted in ranges} == {
        row["partition"] for row in rows if row["kind"] == Kind.GAP
    }
    assert not any(row["kind"] == Kind.COVER for row in rows)
    broker = reader_of(world.url).open_broker(world.url, 10.0)
    edges = broker.edges(group.source("half"))
    broker.close()
    assert all(edge.is_truncated for edge in edges)


def trimmed(world, group, ranges):
    """Delete the first records of each range, and return whether the broker can."""
    if world.name == "sqlite":
        for wanted in ranges:
            group.writer._connection.execute(
                "DELETE FROM half WHERE position = (SELECT MIN(position) FROM half WHERE partition = ? AND group_id ="
                " (SELECT group_id FROM producer_group WHERE name = ?))",
                (wanted.place.partition, group.bed.group),
            )
        return True
    if world.name == "rabbitmq":
        return False
    harness = {"kafka": "txcore_kafka.testing:KafkaHarness", "nats": "txcore_nats.testing:NatsHarness"}[world.name]
    module, _, name = harness.partition(":")
    made = getattr(importlib.import_module(module), name)(world.broker)
    made.start()
    for wanted in ranges:
        made.trim(group.bed.group, LogKind.HALF, wanted.place.partition, (wanted.start + wanted.end) // 2)
    made.stop()
    return True


class Leaderless:
    """A consumer whose first questions find no leader; with *count* of -1, all of them."""

    def __init__(self, consumer, count):
        self._consumer = consumer
        self._count = count

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def get_watermark_offsets(self, *arguments, **options):
        if self._count:
            self._count -= 1
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return self._consumer.get_watermark_offsets(*arguments, **options)


@contextmanager
def leaderless(world, count, timeout_s):
    """Provide the audit's view of a cluster of which the first questions find no leader."""
    if world.name != "kafka":
        pytest.skip("only Kafka has leaders that a client must find")
    broker = reader_of(world.url).open_broker(world.url, timeout_s)
    broker._consumers = {level: Leaderless(each, count) for level, each in broker._consumers.items()}
    yield broker
    broker.close()


def test_a_partition_whose_leader_moves_is_asked_for_again(world):
    """The third question gets the answer."""
    with leaderless(world, 2, 10.0) as broker:
        assert sum(each.count for each in broker.edges(Group(world).source("half"))) == COUNT


def test_a_partition_that_stays_without_a_leader_is_an_error(world):
    """After the time that the reader waits for a record; an audit makes it a gap."""
    with leaderless(world, -1, TIMEOUT_S) as broker, pytest.raises(BackendTimeoutError, match="bounds"):
        broker.edges(Group(world).source("half"))


def test_a_queue_that_cannot_be_replayed_is_refused_and_unchanged(world):
    """On RabbitMQ, reading a queue would take messages from its consumers, so the audit refuses it."""
    if world.name != "rabbitmq":
        pytest.skip("only RabbitMQ has such queues")
    group = Group(world)
    queue = group.bed.topics[0].partition("/")[0]
    broker = reader_of(world.url).open_broker(world.url, 10.0)
    with pytest.raises(TxcoreError, match="cannot be replayed"):
        broker.edges(Source(9, "main", "target", queue, topic=queue))
    assert COUNT == broker._count(queue)
    broker.close()


def test_spark_reads_over_tls_with_a_password(world):
    """Java's clients get the URL's settings; a wrong password leads to gaps, whose text does not show it."""
    if world.spark is None:
        pytest.skip("the other readers' drivers have tests of their own")
    group = Group(world)
    ranges = group.ranges("half")
    url = f"{world.broker.credentials_url}?tls_ca={world.broker.ca_file}"
    assert group.ids == {row["tx"] for row in group.read_with_spark(ranges, url) if row["kind"] == Kind.HALF}
    refused = group.read_with_spark(ranges, url.replace(PASSWORD, "wrong-one"))
    assert {"GAP"} == kinds(refused)
    assert not any("wrong-one" in row["text"] for row in refused)
    assert all("uthentication" in row["text"] for row in refused), refused[0]["text"]


def test_every_fault_on_kafka_is_found_with_both_sources(world, tmp_path):
    """Two faults of each kind give the same verdicts, counts and ends with both sources."""
    if world.spark is None:
        pytest.skip("it needs both")
    bed = make_bed("main", world.url, f"sqlite:///{tmp_path}/shop.db")
    plant(bed, 80, 2, lambda _: None)
    path, manifests = write_config([bed], tmp_path), []
    for source in ("spark", "python"):
        loaded = load(path, settings=[f"audit.kafka_source={source}"], environment={})
        store = Store(loaded.config.audit.store)
        manifests.append(Audit(world.spark, loaded, store).once())
        found = world.spark.session.read.parquet(store.place(manifests[-1]["number"], FINDINGS)).select("tx", "verdict")
        assert compare([bed], [each.asDict() for each in found.collect()]).is_good
    compared = ("counts", "severities", "records", "strange", "transactions", "gaps", "ends", "latencies")
    assert {key: manifests[0][key] for key in compared} == {key: manifests[1][key] for key in compared}
    assert not manifests[0]["gaps"]


def test_without_its_jars_spark_s_kafka_source_is_refused():
    """The error names the setting for the jars, and nothing is read."""
    native = importlib.import_module("txcore_spark.engines.native")
    with pytest.raises(ConfigError, match=r"audit\.spark_jars") as raised:
        native.require(SimpleNamespace(read=None))
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="no client certificate"):
        native.settings_of("kafka://h:1?tls_cert=a&tls_key=b", 1.0)
    with pytest.raises(ConfigError, match="always checks certificates"):
        native.settings_of("kafka://h:1?tls_verify=false", 1.0)
    with pytest.raises(ConfigError, match="no bearer tokens"):
        native.settings_of("kafka://h:1?token_file=token", 1.0)
    with pytest.raises(ConfigError, match="there is no jar"):
        session._jars("/nowhere")
    settings = native.settings_of("kafka://me:a%22b@h:1?tls=true&sasl=SCRAM-SHA-256", 1.0)
    assert "SASL_SSL" == settings["kafka.security.protocol"]
    assert settings["kafka.sasl.jaas.config"].endswith('ScramLoginModule required username="me" password="a\\"b";')
