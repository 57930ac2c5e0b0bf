"""What the conformance suite does not know of Redis: its URL, the server's settings, its memory and its scripts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import redis
import txcore_redis
from txcore_conformance import raw
from txcore_conformance.brokers.security import make_certificates
from txcore_conformance.kit import Kit, Recorder, error_of
from txcore_conformance.required import obtained
from txcore_redis import GUARANTEES, PLUGIN
from txcore_redis.errors import failure_of
from txcore_redis.options import Options, parse_url
from txcore_redis.ownership import RedisClaim
from txcore_redis.scripts import appended_ms_of, id_of, position_of
from txcore_redis.testing import RedisBroker, RedisHarness

from txcore import CheckPolicy
from txcore.backends.options import option_table
from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, ConfigError, NotSentError
from txcore.records import LogKind, Status

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def harness():
    made = RedisHarness()
    obtained("redis", made.start)
    yield made
    made.stop()


@pytest.fixture
def client(harness):
    with redis.Redis(port=int(harness.broker.url.rpartition(":")[2])) as made:
        yield made
        made.config_set("maxmemory", 0)
        made.config_set("maxmemory-policy", "noeviction")
        made.config_set("appendonly", "yes")


@pytest.fixture
def kit(harness, client):
    made = Kit(harness)
    made.history.unjudged = "the server's settings change under it"
    yield made
    made.close()


def test_a_url_has_one_server_a_database_and_an_account():
    """The parts of a URL are found; the password is in no `repr`."""
    options = parse_url("redis://me:s%40cret@host:7000/3?lease_s=2")
    assert (str(options.server), options.database, options.user, options.password) == ("host:7000", 3, "me", "s@cret")
    assert options.lease_s == 2
    assert "s@cret" not in repr(options)
    assert parse_url("redis://host") == parse_url("redis://host:6379/0")


@pytest.mark.parametrize(
    "url", ["redis://a,b", "redis://host/db", "redis://host?nope=1", "redis://host?persistence=no"]
)
def test_a_wrong_url_is_a_config_error(url):
    """Several servers, a database that is no number, and wrong options are refused."""
    with pytest.raises(ConfigError):
        parse_url(url)


def test_the_readme_has_the_options(request):
    """The table in the README is the one that the kit makes of the declarations."""
    assert option_table(Options) in (request.path.parents[1] / "README.md").read_text(encoding="utf-8")


def test_a_backend_needs_fewer_than_1500_lines():
    """What the README and the guide say of the size is true, harness, docstrings and blanks counted."""
    files = [*Path(txcore_redis.__file__).parent.glob("*.py")]
    assert 1_000 < sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 1_500


def test_a_producer_with_the_default_policy_can_be_made():
    """The time of a release leaves room within the default immunity."""
    assert GUARANTEES[0].capabilities.release_time_max_s + 1 < CheckPolicy().immunity_s


def test_a_position_is_an_id_and_keeps_the_order():
    """Ids become numbers in the same order, and back."""
    ids = [b"0-1", b"1764043200000-0", b"1764043200000-1", b"1764043200001-0"]
    positions = [position_of(each) for each in ids]
    assert positions == sorted(positions)
    assert [id_of(each).encode() for each in positions] == ids
    assert appended_ms_of(positions[2]) == 1764043200000


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (redis.exceptions.NoScriptError("No matching script"), Status.REFUSED),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), Status.REFUSED),
        (redis.exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), Status.REFUSED),
        (redis.exceptions.ResponseError("ERR user_script:3: something in its middle"), Status.UNKNOWN),
    ],
)
def test_only_errors_from_before_a_write_are_certain(error, status):
    """An error in the middle of a script may follow a write, so it is UNKNOWN."""
    assert failure_of(error).status is status


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [("appendonly", "no", "append-only"), ("maxmemory-policy", "allkeys-lru", "evicts")],
)
def test_a_server_that_forgets_is_refused(kit, client, setting, value, text):
    """A server without an append-only file, or one that may evict keys, is a ConfigError."""
    client.config_set("maxmemory", "1gb")
    client.config_set(setting, value)
    error = error_of(lambda: kit.backend.ensure_group(kit.group), TIMEOUT_S)
    assert isinstance(error, ConfigError)
    assert text in str(error)


def test_a_full_server_refuses_and_drops_nothing(kit, client):
    """At `maxmemory` a half and a release are REFUSED; with room again both are stored."""
    topic = kit.topic()
    half = raw.half(kit, topic)
    raw.append(kit, half)
    client.config_set("maxmemory", 1)
    refused = [*raw.append(kit, raw.half(kit, topic)), *raw.release(kit, raw.commit(half))]
    assert [each.status for each in refused] == [Status.REFUSED] * 2
    assert all(isinstance(each.error, NotSentError) for each in refused)
    client.config_set("maxmemory", 0)
    assert [each.status for each in raw.release(kit, raw.commit(half))] == [Status.DURABLE]
    assert kit.bodies(topic) == [b"payload"]


def test_a_server_that_forgot_the_scripts_gets_them_again(kit, client):
    """After SCRIPT FLUSH one request is REFUSED, and the next one works on the same connection."""
    topic = kit.topic()
    raw.append(kit, raw.half(kit, topic))
    client.script_flush()
    assert [each.status for each in raw.append(kit, raw.half(kit, topic))] == [Status.REFUSED]
    assert [each.status for each in raw.append(kit, raw.half(kit, topic))] == [Status.DURABLE]


def test_a_frozen_server_settles_everything_in_time(kit, harness):
    """Requests under way are UNKNOWN, later ones REFUSED, each once; a reader says that the server is unreachable."""
    topic = kit.topic()
    backend = kit.enlist(harness.open(f"{harness.url}&delivery_timeout_s=1&control_timeout_s=1&queue_max=1000"))
    raw.append(kit, raw.half(kit, topic), backend=backend)
    with harness.broker.paused():
        batches = [Recorder([raw.half(kit, topic)]) for _ in range(3)]
        for batch in batches:
            backend.append_halves(batch)
        crowded = Recorder([raw.half(kit, topic) for _ in range(1_000)])
        backend.append_halves(crowded)
        for batch in (*batches, crowded):
            batch.wait(backend, TIMEOUT_S)
        assert batches[0].outcomes[0].status is Status.UNKNOWN
        assert isinstance(batches[0].outcomes[0].error, BackendTimeoutError)
        assert isinstance(crowded.outcomes[0].error, BusyError)
        with pytest.raises(BackendUnavailableError):
            backend.read(kit.group, LogKind.HALF, 0).read(1)
    assert [each.status for each in raw.append(kit, raw.half(kit, topic))] == [Status.DURABLE]


def test_a_read_that_took_too_long_asks_for_less(kit, harness):
    """Large records must not keep a reader from ever getting an answer in time."""
    topic = kit.topic()
    backend = kit.enlist(harness.open(f"{harness.url}&control_timeout_s=1"))
    reader = backend.read(kit.group, LogKind.HALF, 0)
    assert not reader.read(4)
    raw.append(kit, *[raw.half(kit, topic) for _ in range(4)])
    with harness.broker.paused(), pytest.raises(BackendUnavailableError):
        reader.read(4)
    assert [len(reader.read(4)) for _ in range(3)] == [2, 2, 0]


def test_a_member_that_expires_between_its_heartbeat_and_its_move_goes_on(kit, harness, monkeypatch):
    """The view after the move has no member then; the next heartbeat brings the member back."""
    compute, expired = RedisClaim._moves, []

    def expire_and_compute(claim, *view):
        if not expired:
            expired.append(harness.expire_member(kit.group, "alone"))
        return compute(claim, *view)

    monkeypatch.setattr(RedisClaim, "_moves", expire_and_compute)
    claim = kit.open().claim(kit.group, "alone")
    held = set()
    kit.until(lambda: held.update(event.partition for event in claim.poll()) or held, "the partitions")
    assert expired
    kit.wait(claim.close(kit.timeout_s))


class TlsBroker(RedisBroker):
    def _command(self):
        made = self.certificates = self.certificates or make_certificates(self.folder / "certificates")
        files = ["--tls-cert-file", made.cert_file("server"), "--tls-key-file", made.key_file("server")]
        own = ["--tls-port", self.proxy_port, *files, "--tls-ca-cert-file", made.ca_file, "--tls-auth-clients", "yes"]
        return [*super()._command(), *map(str, own)]


def test_tls_with_a_clients_certificate():
    """An encrypted connection works with the authority and a client's certificate, and not with another authority."""
    broker = TlsBroker()
    obtained("redis", broker.start)
    url = f"redis://127.0.0.1:{broker.proxy_port}?tls_cert={broker.cert_file}&tls_key={broker.key_file}"
    try:
        with PLUGIN.connect(f"{url}&tls_ca={broker.ca_file}") as backend:
            assert backend.ensure_group("orders", 2).result(TIMEOUT_S) == 2
        with PLUGIN.connect(f"{url}&tls_ca={broker.stranger_ca_file}") as backend:
            error = error_of(lambda: backend.ensure_group("orders"), TIMEOUT_S)
        assert isinstance(error, BackendUnavailableError)
        assert "certificate" in str(error).lower()
    finally:
        broker.remove()


def test_closing_while_the_server_is_frozen_is_bounded_and_ends_the_threads(kit, harness):
    """`close` settles what is under way as UNKNOWN, and no thread of the backend is left."""
    topic = kit.topic()
    backend = kit.enlist(harness.open(f"{harness.url}&delivery_timeout_s=60"))
    raw.append(kit, raw.half(kit, topic), backend=backend)
    with harness.broker.paused():
        batch = Recorder([raw.half(kit, topic)])
        backend.append_halves(batch)
        backend.close(1.0).result(TIMEOUT_S)
        assert batch.outcomes[0].status is Status.UNKNOWN
    lanes = {thread for thread in threading.enumerate() if thread.name.startswith("txcore-redis")}
    kit.close()
    for thread in lanes:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
