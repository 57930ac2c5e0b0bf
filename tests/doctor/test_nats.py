"""NATS: each check is broken on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import uuid

import pytest
import txcore_nats.doctor as nats_doctor
from nats.aio.client import Client
from txcore_conformance import brokers
from txcore_conformance.required import obtained

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.findings import Level, Request, examine
from txcore.registry import open_doctor


class Admin:
    """The actions of an operator, over JetStream's API."""

    def __init__(self, url):
        self._url = url

    def ask(self, name, request=None):
        async def ask():
            client = Client()
            await client.connect(self._url)
            try:
                message = await client.request(f"$JS.API.{name}", json.dumps(request or {}).encode(), timeout=10)
            finally:
                await client.close()
            return json.loads(message.data)

        answer = asyncio.run(ask())
        assert "error" not in answer, answer
        return answer

    def create(self, name, *subjects, **config):
        self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": list(subjects), **config})

    def edit(self, name, **config):
        old = self.ask(f"STREAM.INFO.{name}")["config"]
        self.ask(f"STREAM.UPDATE.{name}", {**old, **config})

    def remake(self, name, **config):
        """Delete a stream and create it again, as for settings that cannot be edited."""
        old = self.ask(f"STREAM.INFO.{name}")["config"]
        old.pop("metadata", None)
        self.delete(name)
        self.ask(f"STREAM.CREATE.{name}", {**old, **config})

    def delete(self, name):
        self.ask(f"STREAM.DELETE.{name}")

    def publish(self, subject, body):
        async def publish():
            client = Client()
            await client.connect(self._url)
            try:
                await client.request(subject, body, timeout=10)
            finally:
                await client.close()

        asyncio.run(publish())


@pytest.fixture(scope="module")
def broker(start):
    """A server for this module alone, because a setting broken here would break other tests."""
    with start("nats") as broker:
        yield broker


@pytest.fixture(scope="module")
def trio():
    """A durable cluster of three servers."""
    cluster = obtained("nats", lambda: brokers.cluster("nats"))
    yield cluster
    cluster.remove()


@pytest.fixture(scope="module")
def admin(broker):
    return Admin(broker.url)


@pytest.fixture
def group(broker, make_group):
    """A group of two partitions."""
    name = f"g{uuid.uuid4().hex[:8]}"
    make_group(broker.url, name, 2)
    return name


@pytest.fixture
def line(broker, group, broker_line):
    """Return a function that compares the line of the marked check for this group."""

    def look(level, *words, options="", **request):
        broker_line(f"{broker.url}{options}", group, **request)(level, *words)

    return look


def level_in(url, name, request):
    """Return the current level of one line; "" while the cluster does not report it."""
    try:
        examination = open_doctor(url, request)
    except BackendUnavailableError:
        return ""
    try:
        levels = [line.finding.level.value for line in examine(examination).lines if line.name == name]
    finally:
        examination.close()
    return levels[0] if levels else ""


def test_cluster_is_well(trio, make_group, eventually):
    """Each line is OK on three servers that sync, with replicas everywhere."""
    make_group(f"{trio.url}?replicas=3", "orders", 2)
    Admin(trio.nodes[0].url).create("mail", "mail.>", num_replicas=3, storage="file", discard="new")
    request = Request("orders", ("mail.sent",), monitor_url=trio.nodes[0].monitor_url)

    def report():
        examination = open_doctor(trio.url, request)
        try:
            return examine(examination)
        finally:
            examination.close()

    # New replicas are current a little later.
    expected = ["nats.anonymous", "nats.rights"]  # the cluster has no users of its own
    eventually(lambda: expected == [each.name for each in report().lines if each.finding.level is not Level.OK])
    assert len(report().lines) == len(nats_doctor.CHECKS)


def test_refused_credentials_are_one_sentence(start):
    """The error does not show the password."""
    with pytest.raises(BackendUnavailableError, match=r"NATS at 127\.0\.0\.1:1 cannot be reached: Connection refused"):
        open_doctor("nats://127.0.0.1:1", Request("g"))
    with start("nats", credentials=True) as broker:
        open_doctor(broker.credentials_url, Request("g")).close()
        with pytest.raises(BackendUnavailableError, match="refuses the credentials") as caught:
            open_doctor(broker.credentials_url.replace(":secret@", ":wrong-one@"), Request("g"))
        assert "wrong-one" not in str(caught.value)


def test_refusal_is_reported_after_its_reason_was_lost_at_first():
    """A server reports the refusal and closes the connection; the doctor connects again if the report was lost."""
    answers = itertools.chain([b""] * 6, itertools.repeat(b"-ERR 'Authorization Violation'\r\n"))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    client.sendall(b'INFO {"auth_required": true, "max_payload": 1024}\r\n')
                    while b"PING" not in client.recv(4096):
                        pass
                    client.sendall(next(answers))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(BackendUnavailableError, match="refuses the credentials"):
            open_doctor(f"nats://user:wrong@127.0.0.1:{listener.getsockname()[1]}", Request("g"))
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_unknown_option_is_refused_before_anything_is_asked():
    """The doctor refuses the option as the backend does, before it connects."""
    with pytest.raises(ConfigError, match="no option 'nope'"):
        open_doctor("nats://127.0.0.1:1?nope=1", Request("g"))


@pytest.mark.breaks("nats.client")
def test_client(line, monkeypatch):
    """The doctor fails on a nats-py that is too old."""
    line("OK", "nats-py 2.")
    monkeypatch.setattr(nats_doctor, "installed_version", lambda _name: "2.3.1")
    line("FAIL", "nats-py 2.3.1 is older", "pip install")


@pytest.mark.breaks("nats.version")
def test_version(line, broker, monkeypatch):
    """The doctor fails on a version that is too old or loses streams, and warns about one that lacks a fix."""
    line("OK", broker.version)
    monkeypatch.setattr(nats_doctor, "VERSION_KEPT", "90.1")
    line("WARN", "not mended in it", "upgrade to 90.1")
    monkeypatch.setattr(nats_doctor, "BAD_VERSIONS", {broker.version})
    line("FAIL", "loses whole streams")
    monkeypatch.setattr(nats_doctor, "VERSION_OLDEST", "80")
    line("FAIL", "older than 80")


@pytest.fixture
def old():
    """The distribution's own server, if it is a 2.9."""
    try:
        broker = brokers.nats("distribution", own=True)
    except brokers.ServerUnavailableError as error:
        pytest.skip(str(error))
    try:
        if not broker.version.startswith("2.9."):
            pytest.skip(f"the distribution has NATS {broker.version}, not 2.9")
        yield broker
    finally:
        broker.remove()


@pytest.mark.breaks("nats.version")
@pytest.mark.breaks("nats.sync-interval")
def test_a_real_old_server(old, make_group):
    """The doctor warns about NATS 2.9, and fails on its sync interval of two minutes."""
    make_group(old.url, "g", 1)
    examination = open_doctor(old.url, Request("g", monitor_url=old.monitor_url))
    found = {line.name: line.finding for line in examine(examination).lines}
    examination.close()
    assert (found["nats.version"].level, old.version in found["nats.version"].text) == (Level.WARN, True)
    assert found["nats.sync-interval"].level is Level.FAIL
    assert "syncs every 2 minutes" in found["nats.sync-interval"].text


@pytest.mark.breaks("nats.jetstream")
def test_jetstream(line, start, broker_line):
    """The doctor fails on an account without JetStream."""
    line("OK", "API level")
    accounts = '{A: {users: [{user: "txcore", password: "secret"}]}}'
    with start("nats", accounts=accounts) as bare:
        url = bare.url.replace("nats://", "nats://txcore:secret@")
        broker_line(url, "g")("FAIL", "JetStream", "jetstream {} in the server's config")


@pytest.mark.breaks("nats.limits")
def test_limits(line, start, make_group, broker_line):
    """The doctor warns if an account's storage is nearly full, and fails if it demands a size for each stream."""
    line("OK", "no limit")
    accounts = '{A: {users: [{user: "txcore", password: "secret"}], jetstream: {max_file: 2000000}}}'
    with start("nats", accounts=accounts) as narrow:
        url = narrow.url.replace("nats://", "nats://txcore:secret@")
        admin = Admin(url)
        admin.create("filler", "filler")
        broker_line(url, "g")("OK", "2,000,000 B")
        for _ in range(18):
            admin.publish("filler", bytes(100_000))
        broker_line(url, "g")("WARN", "of the account's 2,000,000 B are used", "nsc edit account")
    demanding = accounts.replace("max_file: 2000000", "max_file: 2000000, max_bytes_required: true")
    with start("nats", accounts=demanding) as demanding_server:
        url = demanding_server.url.replace("nats://", "nats://txcore:secret@")
        broker_line(url, "g")("FAIL", "demands a size for each stream", "max_bytes_required: false")


@pytest.mark.breaks("nats.payload")
def test_payload(line, start, broker_line):
    """The doctor fails if the server's limit is below the size of a half."""
    line("OK", "1,048,576 B")
    line("FAIL", "less than a half of 3,006,144 B", "max_payload: 3006144", body_size=3_000_000)
    with start("nats", max_payload="200000") as small:
        broker_line(small.url, "g")("FAIL", "max_payload is 200,000 B", "smaller body_size_max")
        broker_line(f"{small.url}?body_size_max=150000", "g")("OK")


@pytest.mark.breaks("nats.sync-interval")
def test_sync_interval(line, broker, trio, start, broker_line):
    """The doctor fails on the default of two minutes, which only the monitoring port reports."""
    line("WARN", "the server does not report it to clients", "--monitor http://127.0.0.1:8222")
    line("WARN", "cannot be read", "check --monitor", monitor_url="http://127.0.0.1:1")
    line("WARN", "is an http URL", monitor_url="ftp://127.0.0.1")
    line("FAIL", "sync_interval is 2 min", "sync_interval: always", monitor_url=broker.monitor_url)
    broker_line(trio.url, "g", monitor_url=trio.nodes[0].monitor_url)("OK", "always")
    with start("nats", **{"jetstream.sync_interval": '"500ms"'}) as often:
        broker_line(often.url, "g", monitor_url=often.monitor_url)("WARN", "sync_interval is 500 ms")


@pytest.mark.breaks("nats.atomic")
def test_atomic(line, admin, group):
    """The doctor fails if the stream in the URL is missing or accepts no atomic batches."""
    line("OK", "release=plain")
    name = f"shop-{group}"
    options = f"?release=atomic&stream={name}"
    line("FAIL", f"no stream '{name}'", options=options)
    admin.create(name, f"{name}.>")
    line("FAIL", "takes no atomic batches", "--allow-batch", options=options)
    admin.edit(name, allow_atomic=True)
    line("OK", "takes atomic batches", options=options)


@pytest.mark.breaks("nats.atomic")
def test_atomic_on_an_old_server(old, broker_line):
    """The doctor fails if the server is older than 2.12, which introduced batches."""
    broker_line(f"{old.url}?release=atomic&stream=shop", "g")("FAIL", "the API has level 0", "release=plain")


@pytest.mark.breaks("nats.streams")
def test_streams(line, group, admin, broker, broker_line):
    """The doctor fails if a stream was deleted, or if the group does not exist."""
    line("OK", "4 streams")
    admin.delete(f"txc_{group}_parked")
    line("FAIL", f"streams are missing: txc_{group}_parked")
    broker_line(broker.url, "unused")("FAIL", "group 'unused' has no streams")


@pytest.mark.breaks("nats.storage")
def test_storage(line, group, admin):
    """The doctor fails on a stream in memory."""
    line("OK")
    admin.remake(f"txc_{group}_op", storage="memory")
    line("FAIL", f"storage is memory on txc_{group}_op", "cannot be changed")


@pytest.mark.breaks("nats.replicas")
def test_replicas(line, group, trio, make_group, broker_line):
    """The doctor fails if the group's streams have one replica."""
    line("FAIL", f"1 replica of KV_txc_{group}", "--replicas=3 (for each)", "replicas=3 in the URL")
    make_group(f"{trio.url}?replicas=3", "replicas", 1)
    broker_line(trio.url, "replicas")("OK", "3 or more replicas")


@pytest.mark.breaks("nats.in-sync")
def test_in_sync(line, trio, make_group, broker_line, eventually):
    """The doctor warns while a server is down, until its replicas are current again."""
    line("OK")
    make_group(f"{trio.url}?replicas=3", "sync", 1)
    url = trio.nodes[0].url
    eventually(lambda: level_in(url, "nats.in-sync", Request("sync")) == "OK")
    trio.nodes[2].kill()
    try:
        eventually(lambda: level_in(url, "nats.in-sync", Request("sync")) == "WARN")
        broker_line(url, "sync")("WARN", "is not current on", "nats server report jetstream")
    finally:
        trio.start()
    eventually(lambda: level_in(url, "nats.in-sync", Request("sync")) == "OK")


@pytest.mark.breaks("nats.discard")
def test_discard(line, group, admin):
    """The doctor fails on the default, which discards the oldest records."""
    line("OK")
    admin.edit(f"txc_{group}_half", discard="old")
    line("FAIL", f"discard is old on txc_{group}_half", f"nats stream edit txc_{group}_half --discard=new")


@pytest.mark.breaks("nats.max-age")
def test_max_age(line, group, admin):
    """The doctor fails if halves expire within the check horizon."""
    line("OK")
    admin.edit(f"txc_{group}_half", max_age=3_600 * 10**9, duplicate_window=60 * 10**9)
    line("FAIL", f"max_age is 60 min on txc_{group}_half", "check horizon of 24 h", "--max-age=0")
    line("OK", horizon_s=60)


@pytest.mark.breaks("nats.room")
def test_room(line, group, admin):
    """The doctor warns if the half log is nearly full."""
    line("OK")
    admin.edit(f"txc_{group}_half", max_bytes=1_000_000)
    for _ in range(9):
        admin.publish(f"txc.{group}.h.0", bytes(100_000))
    line(
        "WARN", f"txc_{group}_half holds", "of 1,000,000 B: at its bound new halves are refused", "--max-bytes=2000000"
    )


@pytest.mark.breaks("nats.persist-mode")
def test_persist_mode(line, group, admin):
    """The doctor fails on a stream that acknowledges a record before it stores it."""
    line("OK")
    admin.remake(f"txc_{group}_op", persist_mode="async")
    line("FAIL", f"persist_mode is async on txc_{group}_op")


@pytest.mark.breaks("nats.flags")
def test_flags(line, group, admin):
    """The doctor fails on a sealed stream, and warns about one that cannot be purged."""
    line("OK")
    admin.remake(f"txc_{group}_op", deny_purge=True)
    line("WARN", f"txc_{group}_op deny purging", "stay for ever")
    admin.edit(f"txc_{group}_parked", sealed=True)
    line("FAIL", f"txc_{group}_parked is sealed")


@pytest.mark.breaks("nats.targets")
def test_targets(line, group, admin):
    """The doctor fails on a target subject without a stream."""
    line("WARN", "no target was named")
    admin.create(f"mail-{group}", f"mail.{group}.>")
    line("OK", "in streams: 1 target", targets=(f"mail.{group}.sent",))
    line("FAIL", "in no stream: lost.sent", "nats stream add NAME --subjects=lost.sent", targets=("lost.sent",))


@pytest.mark.breaks("nats.target-streams")
def test_target_streams(line, group, trio, broker_line):
    """The doctor examines the durability of the target streams too, because they store the messages."""
    admin = Admin(trio.nodes[0].url)
    made = {
        "good": {},
        "memory": {"storage": "memory"},
        "alone": {"num_replicas": 1},
        "unsaid": {"no_ack": True},
        "forgetful": {"duplicate_window": 10**9},
        "small": {"max_msg_size": 50_000},
        "ring": {"max_msgs": 1000, "discard": "old"},
    }
    for name, config in made.items():
        admin.create(f"{name}-{group}", f"{name}.{group}", **{"num_replicas": 3, "storage": "file"} | config)

    def look(name, level, *words):
        broker_line(trio.nodes[0].url, group, targets=(f"{name}.{group}",))(level, *words)

    look("good", "OK", "durable: 1 target stream")
    look("memory", "FAIL", f"storage is memory on memory-{group}")
    look("alone", "FAIL", f"1 replica of alone-{group}", "--replicas=3")
    look("unsaid", "FAIL", "acknowledges nothing")
    look("forgetful", "FAIL", "shorter than 2 min", "--dupe-window=120s")
    look("small", "FAIL", "max_msg_size is 50,000 B", "--max-msg-size=102048")
    look("ring", "WARN", "bounded with discard old", "--discard=new")
