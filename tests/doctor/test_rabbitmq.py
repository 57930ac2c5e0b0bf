"""RabbitMQ: each check is broken on a real broker."""

from __future__ import annotations

import json
import threading
import urllib.request
import uuid

import pika
import pytest
import txcore_rabbitmq.doctor as rabbitmq_doctor
from txcore_conformance import brokers
from txcore_conformance.required import obtained

import txcore
from txcore import CheckPolicy, LocalTransactionState, Message, TransactionListener, TransactionProducer
from txcore.doctor.backend_checks import port_examination
from txcore.errors import BackendUnavailableError
from txcore.findings import Level, Request, examine
from txcore.registry import open_doctor


class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half):
        return LocalTransactionState.UNKNOWN


@pytest.fixture(scope="module")
def broker(start):
    """A broker for this module alone, as durable as one node can be; a setting broken here would break other tests."""
    settings = {"disk_free_limit.absolute": "2GB", "frame_max": "131072"}
    with start("rabbitmq", **settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def trio():
    """A durable cluster of three nodes."""
    cluster = obtained("rabbitmq", lambda: brokers.cluster("rabbitmq", **{"disk_free_limit.absolute": "2GB"}))
    yield cluster
    cluster.remove()


@pytest.fixture
def group(broker, make_group):
    """A group of two partitions."""
    name = f"g{uuid.uuid4().hex[:8]}"
    make_group(broker.url, name, 2)
    return name


@pytest.fixture
def line(broker, group, broker_line):
    """Return a function that compares the line of the marked check for this group, with the management API."""

    def look(level, *words, url=broker.url, monitor=broker.monitor_url, **options):
        broker_line(url, group, monitor_url=monitor, **options)(level, *words)

    return look


@pytest.fixture
def channel(broker):
    """A channel with pika's functions."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url.replace("rabbitmq://", "amqp://") + "%2F"))
    yield connection.channel()
    connection.close()


def test_cluster_is_well(trio, make_group, eventually):
    """Each line is OK on three nodes with replicas everywhere."""
    url, monitor = trio.url, trio.nodes[0].monitor_url
    make_group(url, "orders", 2)
    connection = pika.BlockingConnection(pika.URLParameters(trio.nodes[0].url.replace("rabbitmq:", "amqp:") + "%2F"))
    connection.channel().queue_declare("mail", durable=True, arguments={"x-queue-type": "quorum"})
    connection.close()
    request = Request("orders", ("mail",), monitor_url=monitor)

    def report():
        examination = open_doctor(url, request)
        try:
            return examine(examination)
        finally:
            examination.close()

    # The management API shows new queues a few seconds late.
    expected = ["rabbitmq.anonymous", "rabbitmq.rights"]  # the cluster has no users of its own
    eventually(lambda: expected == [each.name for each in report().lines if each.finding.level is not Level.OK])
    assert len(report().lines) == len(rabbitmq_doctor.CHECKS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("guest:guest", "guest:wrong"), "user or password are refused"),
        (("{port}/", "{port}/nowhere"), "the virtual host is missing"),
        (("{port}/", "1/"), "cannot be reached"),
    ],
)
def test_refused_credentials_are_one_sentence(broker, change, words):
    """The error does not show the password."""
    old, new = (part.replace("{port}", broker.url.rstrip("/").rpartition(":")[2]) for part in change)
    with pytest.raises(BackendUnavailableError, match=words) as caught:
        open_doctor(broker.url.replace(old, new), Request("g"))
    assert "wrong" not in str(caught.value)


@pytest.mark.breaks("rabbitmq.version")
def test_old_server(line, monkeypatch, broker):
    """The doctor fails on a server that is too old, and warns about one without fixes."""
    monkeypatch.setattr(rabbitmq_doctor, "VERSION_KEPT", broker.version)
    line("OK", broker.version)
    monkeypatch.setattr(rabbitmq_doctor, "VERSION_KEPT", "90")
    line("WARN", "no fixes any more", "upgrade to 90")
    monkeypatch.setattr(rabbitmq_doctor, "VERSION_OLDEST", "80")
    line("FAIL", "older than 80")


@pytest.mark.breaks("rabbitmq.client")
def test_client(line, monkeypatch):
    """The doctor fails on an untested pika."""
    line("OK", "pika 1.")
    monkeypatch.setattr(pika, "__version__", "2.0.0")
    line("FAIL", "pika 2.0.0", "pip install")


@pytest.mark.breaks("rabbitmq.heartbeat")
def test_heartbeat(line, broker):
    """The doctor warns about a long heartbeat, which finds a frozen checker late."""
    line("OK", "of claims 5 s")
    line("WARN", "only after about 90 s", "claim_heartbeat_s=5", url=f"{broker.url}?claim_heartbeat_s=30")


@pytest.mark.breaks("rabbitmq.frame-max")
def test_frame_max(line, start, broker_line):
    """The doctor fails on a small frame, because headers of 64 KiB would close the connection."""
    line("OK", "131,072 B")
    with start("rabbitmq", frame_max="8192") as narrow:
        broker_line(narrow.url, "g")("FAIL", "frame_max is 8,192 B", "frame_max = 131072")


@pytest.mark.breaks("rabbitmq.alarm")
def test_alarm(line, broker):
    """The doctor fails on a memory alarm, which blocks publishers."""
    line("OK")
    broker.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        line("FAIL", "blocks publishers", "rabbitmq-diagnostics alarms")
    finally:
        broker.control("set_vm_memory_high_watermark", "0.6")
    line("OK")


@pytest.mark.breaks("rabbitmq.message-size")
def test_message_size(line, broker, start, broker_line):
    """The doctor fails if the broker's limit is below body_size_max or below the requested size."""
    line("OK", "1,004,096 B")
    line("FAIL", "is refused", "max_message_size = 30004096", body_size=30_000_000)
    with start("rabbitmq", max_message_size="200000") as small:
        broker_line(small.url, "g")("FAIL", "a record of 1,004,096 B is refused", "smaller body_size_max")
        broker_line(f"{small.url}?body_size_max=150000", "g")("OK", "154,096 B")


@pytest.mark.breaks("rabbitmq.streams")
def test_streams(line, group, channel, broker, broker_line, make_group):
    """The doctor fails if an exchange or a stream was deleted, or if the group does not exist."""
    line("OK", "8 streams of 2 partitions")
    channel.exchange_delete(f"txc.{group}.checks")
    line("FAIL", f"missing: exchange txc.{group}.checks", "txcore topics create")
    make_group(broker.url, group, 2)
    line("OK", "8 streams of 2 partitions")
    channel.queue_delete(f"txc.{group}.op.1")
    line("FAIL", f"1 of 8 streams are missing: txc.{group}.op.1")
    broker_line(broker.url, "unused")("FAIL", "group 'unused' has no streams")
    assert f"txc.{group}.op.1" not in broker.control("list_queues", "name")


@pytest.mark.breaks("rabbitmq.arguments")
def test_arguments(line, broker):
    """The doctor fails if the URL's options differ from the group's."""
    line("OK")
    line("FAIL", "inequivalent arg", "x-max-age", url=f"{broker.url}?half_retention_s=100000")


@pytest.mark.breaks("rabbitmq.parked")
def test_parked(line, channel, group, broker, make_group):
    """The doctor fails if parked messages expire, as in a group made before 0.1; its remedy works."""
    line("OK", "never expire")
    name = f"txc.{group}.parked.1"
    channel.queue_delete(name)
    old = {"x-queue-type": "stream", "x-max-age": "1209600s", "x-stream-max-segment-size-bytes": 20_000_000}
    channel.queue_declare(name, durable=True, arguments=old)
    line("FAIL", f"parked records expire: {name} with x-max-age", f"rabbitmqctl delete_queue {name}")
    channel.queue_delete(name)
    make_group(broker.url, group, 2)
    line("OK", "never expire")


@pytest.mark.breaks("rabbitmq.targets")
def test_targets(line, channel, group):
    """The doctor finds queues and exchanges, and reports names that AMQP cannot carry."""
    line("WARN", "no target was named")
    channel.queue_declare(f"{group}.mail", durable=True)
    channel.exchange_declare(f"{group}.events", "topic", durable=True)
    line("OK", "2 targets found", targets=(f"{group}.mail", f"{group}.events/order.created"))
    line("FAIL", "queue 'lost' does not exist", "exchange 'gone' does not", targets=("lost", "gone/order.created"))
    line("FAIL", "longer than 255 bytes", targets=("x" * 300,))


@pytest.mark.breaks("rabbitmq.management")
def test_management(line, broker, group, broker_line):
    """The doctor reports a missing URL, a dead port and a missing right, and skips the checks that need the API."""
    line("OK", "answers for")
    line("WARN", "AMQP does not report it", "--monitor http://127.0.0.1:15672", monitor="")
    line("WARN", "cannot be reached", "check --monitor", monitor="http://127.0.0.1:1")
    line("WARN", "is an http URL", monitor="ftp://127.0.0.1")
    place = broker.monitor_url.removeprefix("http://")
    line("WARN", "401", "set_user_tags viewer monitoring", monitor=f"http://viewer:secret@{place}")
    line("OK", monitor=f"http://guest:guest@{place}/")
    examination = open_doctor(broker.url, Request(group))
    skipped = {name for name, needed in examine(examination).skipped if needed == "rabbitmq.management"}
    examination.close()
    assert "rabbitmq.replicas" in skipped


@pytest.mark.breaks("rabbitmq.nodes")
def test_nodes(line, trio, make_group, broker_line, eventually):
    """The doctor fails on a cluster of one node, and on a node that is down."""
    line("FAIL", "1 node", "join_cluster")
    make_group(trio.url, "nodes", 1)
    other = broker_line(trio.nodes[0].url, "nodes", monitor_url=trio.nodes[0].monitor_url)
    other("OK", "3 nodes run")
    trio.nodes[2].kill()
    try:
        eventually(lambda: is_shown(trio, "rabbitmq.nodes", Level.FAIL))
        other("FAIL", "1 of 3 nodes are down", "rabbitmqctl start_app")
    finally:
        trio.start()


@pytest.mark.breaks("rabbitmq.replicas")
def test_replicas(line, group, trio, make_group, broker_line, eventually):
    """The doctor fails on streams with one replica, and on a replica that is offline."""
    eventually(lambda: not_seen_late(line))
    line("FAIL", "fewer than 3 replicas: 8 of 8 streams", "rabbitmq-streams add_replica")
    make_group(trio.url, "replicas", 1)
    eventually(lambda: is_shown(trio, "rabbitmq.replicas", Level.OK, "replicas"))
    trio.nodes[1].kill()
    try:
        eventually(lambda: is_shown(trio, "rabbitmq.replicas", Level.FAIL, "replicas"))
        broker_line(trio.nodes[0].url, "replicas", monitor_url=trio.nodes[0].monitor_url)("FAIL", "offline")
    finally:
        trio.start()


def not_seen_late(line):
    """Return whether the line names all eight streams, which the management API shows a few seconds late."""
    try:
        line("FAIL", "8 of 8 streams")
    except AssertionError:
        return False
    return True


def is_shown(trio, name, level, group="nodes"):
    """Return whether the line has this level; the management API lags by a few seconds."""
    examination = open_doctor(trio.nodes[0].url, Request(group, monitor_url=trio.nodes[0].monitor_url))
    try:
        return any(line.name == name and line.finding.level is level for line in examine(examination).lines)
    finally:
        examination.close()


@pytest.mark.breaks("rabbitmq.policies")
def test_policies(line, broker, group, eventually):
    """The doctor fails on a policy for all queues that shortens the streams' retention."""
    eventually(lambda: seen_streams(broker, group) == 8)
    line("OK")
    broker.control("set_policy", "short", ".*", '{"max-age":"1h"}', "--apply-to", "all")
    try:
        eventually(lambda: has_policy(broker, group, 8))
        line("FAIL", "policy 'short' sets max-age on 8 streams", "clear_policy -p / short")
    finally:
        broker.control("clear_policy", "short")
    eventually(lambda: has_policy(broker, group, 0))
    line("OK")


def has_policy(broker, group, count):
    """Return whether *count* of the group's streams are shown with a policy."""
    queues = [queue for queue in managed(broker, "queues") if queue["name"].startswith(f"txc.{group}.")]
    return count == sum("max-age" in (queue.get("effective_policy_definition") or {}) for queue in queues)


@pytest.mark.breaks("rabbitmq.disk-limit")
def test_disk_limit(line, broker, eventually):
    """The doctor warns about RabbitMQ's default of 50 MB, which fills in a second."""
    line("OK")
    broker.control("set_disk_free_limit", "50MB")
    try:
        eventually(lambda: managed(broker, "nodes")[0]["disk_free_limit"] < 100_000_000)
        line("WARN", "disk_free_limit is 50 MB", "disk_free_limit.absolute = 2GB")
    finally:
        broker.control("set_disk_free_limit", "2GB")


@pytest.mark.breaks("rabbitmq.partitions")
def test_split(line, monkeypatch):
    """The doctor warns if metadata is not in Khepri, and fails on a split cluster.

    The management API's answers are changed, with a second node and a split, because a single node cannot be split.
    """
    line("OK")
    real = rabbitmq_doctor.RabbitmqSubject.managed

    def two_nodes(self, path):
        answer = real(self, path)
        if path == "nodes":
            return [*answer, {**answer[0], "name": "rabbit@other"}]
        return [{**flag, "state": "disabled"} if flag["name"] == "khepri_db" else flag for flag in answer]

    monkeypatch.setattr(rabbitmq_doctor.RabbitmqSubject, "managed", two_nodes)
    line("WARN", "not in Khepri", "pause_minority")

    def split(self, path):
        return [{**node, "partitions": ["rabbit@other"]} for node in two_nodes(self, path)]

    monkeypatch.setattr(rabbitmq_doctor.RabbitmqSubject, "managed", split)
    line("FAIL", "the cluster is split")


@pytest.mark.breaks("rabbitmq.target-queues")
def test_target_queues(line, channel, group, broker, eventually):
    """The doctor fails on a classic queue, which is not replicated, and on a quorum queue with one replica."""
    line("OK", "no target is a queue", targets=("events/order.created",))
    channel.queue_declare(f"{group}.classic", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare(f"{group}.quorum", durable=True, arguments={"x-queue-type": "quorum"})
    eventually(
        lambda: {f"{group}.classic", f"{group}.quorum"} <= {queue["name"] for queue in managed(broker, "queues")}
    )
    line("FAIL", "1 target queue of type classic", "x-queue-type=quorum", targets=(f"{group}.classic",))
    line("FAIL", "fewer than 3 replicas", "rabbitmq-queues add_member", targets=(f"{group}.quorum",))
    line("WARN", "1 of 1 do not exist", targets=("lost",))


# -- port checks that need such a broker -------------------------------------------------------------------------------


def port_finding(url, name, clock=None, **options):
    """Return one line of the checks on the port."""
    backend = txcore.connect(url)
    try:
        report = examine(port_examination(backend, Request(**options), clock))
        return next(line.finding for line in report.lines if line.name == name)
    finally:
        backend.close().result(10)


@pytest.mark.breaks("port.retention")
def test_retention(broker, group):
    """The doctor fails if halves expire before twice the horizon."""
    assert port_finding(broker.url, "port.retention", group=group).level is Level.OK
    finding = port_finding(broker.url, "port.retention", group=group, horizon_s=5 * 86_400)
    assert finding.level is Level.FAIL
    assert "kept for 7 days, less than twice the check horizon of 5 days" in finding.text
    assert "half_retention_s=864000" in finding.change


def test_group_with_other_settings(broker, group):
    """The check of the group on the port also fails."""
    finding = port_finding(f"{broker.url}?half_retention_s=100000", "port.group", group=group)
    assert (finding.level, "inequivalent arg" in finding.text) == (Level.FAIL, True)


def test_undecided_half_near_its_end(broker, make_group, wrong_clock):
    """The doctor fails on a half after more than half of its retention, by the doctor's clock."""
    url = f"{broker.url}?half_retention_s=600"
    make_group(url, "pending", 1)
    backend = txcore.connect(url)
    producer = TransactionProducer(backend, "pending", listener=Listener(), policy=CheckPolicy(immunity_s=60))
    queue = uuid.uuid4().hex
    connection = pika.BlockingConnection(pika.URLParameters(broker.url.replace("rabbitmq://", "amqp://") + "%2F"))
    connection.channel().queue_declare(queue)
    connection.close()
    producer.send_message_in_transaction(Message(queue, b"x"), None)
    producer.close()
    backend.close().result(10)
    finding = port_finding(url, "port.pending", group="pending")
    assert (finding.level, "1 undecided" in finding.text) == (Level.OK, True)
    finding = port_finding(url, "port.pending", wrong_clock(400), group="pending")
    assert (finding.level, "more than half of the 10 min" in finding.text) == (Level.FAIL, True), finding


def test_slow_probe(start, make_group):
    """The doctor warns about the slowest mark if the broker stops for a while."""
    with start("rabbitmq") as slow:
        make_group(slow.url, "g", 1)
        backend = txcore.connect(f"{slow.url}?delivery_timeout_s=3")
        resume = threading.Timer(2.2, slow.resume)
        original = backend.mark
        count = 0

        def mark(*arguments, **options):
            nonlocal count
            count += 1
            if count == 20:
                slow.pause()
                resume.start()
            return original(*arguments, **options)

        backend.mark = mark
        try:
            report = examine(port_examination(backend, Request("g")))
        finally:
            resume.join()
            backend.close().result(10)
        finding = next(line.finding for line in report.lines if line.name == "port.probe")
        assert (finding.level, "more than a quarter" in finding.text) == (Level.WARN, True), finding


def managed(broker, path):
    """Return the management API's answer to a plain request."""
    manager = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    manager.add_password(None, broker.monitor_url, "guest", "guest")
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    with opener.open(f"{broker.monitor_url}/api/{path}") as answer:
        return json.load(answer)


def seen_streams(broker, group):
    """Return how many of the group's streams the management API shows already."""
    return sum(queue["name"].startswith(f"txc.{group}.") for queue in managed(broker, "queues"))
