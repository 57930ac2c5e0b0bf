"""The options of a URL, and their effects that need no broker."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from txcore_kafka import PLUGIN, Options, parse_url
from txcore_kafka.codec import record_size
from txcore_kafka.guarantees import capabilities_of
from txcore_kafka.options import checkpoint_topic, is_own_topic, topic_name, topic_settings

import txcore
from txcore.errors import ConfigError
from txcore.producer.policies import require_room
from txcore.records import LogKind


def parsed(**options):
    return parse_url(f"kafka://host?{urlencode(options)}")


def test_the_servers_are_those_of_the_url():
    """A URL may name several servers, with ports or Kafka's own port; names and passwords are decoded."""
    options = parse_url("kafka://us%40er:p%3Aw%2F@one:19092,two,[::1]:9093")
    assert options.servers == "one:19092,two:9092,[::1]:9093"
    assert (options.user, options.password, options.sasl) == ("us@er", "p:w/", "PLAIN")


@pytest.mark.parametrize(
    ("url", "options", "key"),
    [
        ("kafka://", {}, "url"),
        ("kafka://host:no", {}, "url"),
        ("kafka://host:0", {}, "url"),
        ("kafka://one,,two", {}, "url"),
        ("kafka://host/topic", {}, "url"),
        ("kafka://host", {"linger": "5"}, "linger"),
        ("kafka://host", {"partitions": "0"}, "partitions"),
        ("kafka://host", {"partitions": "four"}, "partitions"),
        ("kafka://host", {"replicas": "-1"}, "replicas"),
        ("kafka://host", {"delivery_timeout_s": "0.1"}, "delivery_timeout_s"),
        ("kafka://host", {"delivery_timeout_s": "nan"}, "delivery_timeout_s"),
        ("kafka://host", {"session_timeout_s": "5"}, "session_timeout_s"),
        ("kafka://host", {"release": "twice"}, "release"),
        ("kafka://host", {"compression": "zip"}, "compression"),
        ("kafka://host", {"tls": "maybe"}, "tls"),
        ("kafka://host", {"tls_ca": ""}, "tls_ca"),
        ("kafka://host", {"tls_cert": "a.pem"}, "tls_key"),
        ("kafka://host", {"tls_server_name": "other"}, "tls_server_name"),
        ("kafka://host", {"sasl": "PLAIN"}, "sasl"),
        ("kafka://user:word@host", {"sasl": "GSSAPI"}, "sasl"),
        ("kafka://user:word@host", {"sasl": "OAUTHBEARER"}, "sasl"),
        ("kafka://user:word@host", {"sasl": "PLAIN", "token_url": "https://issuer"}, "token_url"),
        ("kafka://user:word@host", {"token_url": "http://issuer"}, "token_url"),
        ("kafka://host", {"token_url": "https://issuer"}, "token_url"),
        ("kafka://user:word@host", {"token_file": "token"}, "token_file"),
        ("kafka://user:word@host", {"token_url": "https://issuer", "token_file": "token"}, "token_file"),
        ("kafka://host", {"token_file": "token", "token_scope": "all"}, "token_scope"),
        ("kafka://user:word@host", {"token_ca": "ca.pem"}, "token_ca"),
    ],
)
def test_what_cannot_be_used_is_named(url, options, key):
    """The error for an unusable URL or option has the option as its key."""
    with pytest.raises(ConfigError) as raised:
        parse_url(f"{url}?{urlencode(options)}")
    assert raised.value.key == key


def test_a_repr_shows_no_password():
    """The repr of options shows neither the user's nor the key's password."""
    options = parse_url("kafka://user:hush@host?tls_key_password=quiet&tls_key=k&tls_cert=c")
    assert "hush" not in repr(options)
    assert "quiet" not in repr(options)
    assert options.connection()["sasl.password"] == "hush"
    assert options.connection()["ssl.key.password"] == "quiet"


@pytest.mark.parametrize(
    ("url", "options", "protocol"),
    [
        ("kafka://host", {}, "PLAINTEXT"),
        ("kafka://host", {"tls": "true"}, "SSL"),
        ("kafka://host", {"tls_ca": "ca.pem"}, "SSL"),
        ("kafka://host", {"tls_verify": "false"}, "SSL"),
        ("kafka://user:word@host", {}, "SASL_PLAINTEXT"),
        ("kafka://user:word@host", {"tls": "on", "sasl": "scram-sha-512"}, "SASL_SSL"),
        ("kafka://user:word@host", {"tls": "on", "token_url": "https://issuer"}, "SASL_SSL"),
    ],
)
def test_tls_and_credentials_make_the_protocol(url, options, protocol):
    """The security protocol follows from TLS and credentials, in any combination."""
    assert parse_url(f"{url}?{urlencode(options)}").connection()["security.protocol"] == protocol


@pytest.mark.parametrize("form", PLUGIN.guarantees, ids=lambda form: form.url)
def test_guarantees_are_those_of_the_opened_backend(form):
    """Each form's capabilities are those of a backend opened with its URL."""
    backend = txcore.connect(form.url)
    assert backend.capabilities == form.capabilities
    assert backend.close().result(5) is None


def test_verification_and_replicas_are_given_in_kafka_s_terms():
    """librdkafka verifies certificates unless `tls_verify=false`, and -1 is Kafka's default of replicas."""
    assert "enable.ssl.certificate.verification" not in parsed().connection()
    assert parsed(tls_verify="false").connection()["enable.ssl.certificate.verification"] is False
    assert (parsed().replication_factor, parsed(replicas="3").replication_factor) == (-1, 3)


def test_the_delivery_timeout_is_what_a_producer_must_leave():
    """The release time is the delivery timeout and a tick; with transactions, 1.5 times the longest life of one."""
    assert capabilities_of(parsed(delivery_timeout_s="5")).release_time_max_s == pytest.approx(5.2)
    options = parsed(release="transaction", transaction_timeout_s="10", transaction_sweep_s="10")
    assert capabilities_of(options).release_time_max_s == pytest.approx(30)


def test_transactions_refuse_a_short_immunity_by_name():
    """An immunity of 30 s is too short for transactions, and the error names the setting and the number."""
    room_s = capabilities_of(parsed(release="transaction")).release_time_max_s
    with pytest.raises(ConfigError, match="above 30 s") as raised:
        require_room(txcore.CheckPolicy(immunity_s=30.0), room_s)
    assert raised.value.key == "immunity_s"
    require_room(txcore.CheckPolicy(immunity_s=30.1), room_s)


def test_topics_are_named_after_their_group():
    """The topics' names contain the group's name, and txcore's own topics are recognized by their names."""
    names = [topic_name("orders", kind) for kind in LogKind] + [checkpoint_topic("orders")]
    assert names == ["txc.orders.half", "txc.orders.op", "txc.orders.parked", "txc.orders.checkpoint"]
    assert all(is_own_topic(name) for name in (*names, "__consumer_offsets"))
    assert not any(is_own_topic(name) for name in ("orders", "txc.orders", "half", "my.txc.orders.half"))


def test_the_half_topic_is_made_last():
    """The half topic is created last, so that it exists only if the others exist."""
    settings = topic_settings(parsed(half_retention_s="100"), "orders")
    assert list(settings)[-1] == "txc.orders.half"
    assert [settings[name].get("retention.ms") for name in settings] == ["200000", "-1", None, "100000"]


def test_a_records_size_is_never_underrated():
    """A record's size covers its key, body and headers, with room for our three headers."""
    headers = {"name": "value", "raw": b"\0" * 1_000, "ü": "ä"}
    size = record_size(b"key", b"x" * 10_000, headers)
    assert 10_000 + 3 + 4 + 5 + 3 + 1_000 + 2 + 2 + 61 + 250 < size < 12_000


def test_defaults_are_the_documented_ones():
    """Options that the URL does not set have the documented defaults."""
    options = Options()
    assert (options.delivery_timeout_s, options.session_timeout_s, options.body_size_max) == (3.0, 10.0, 1_000_000)
    assert options.record_bytes_max <= 1_048_588, "Kafka's default for max.message.bytes must do"
