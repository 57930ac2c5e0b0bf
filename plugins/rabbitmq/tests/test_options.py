"""The parts of a URL: logins, nodes, virtual hosts, options; no broker is needed."""

from __future__ import annotations

import pytest
from txcore_rabbitmq import PLUGIN, Options, parse_url
from txcore_rabbitmq.backend import RabbitmqBackend
from txcore_rabbitmq.names import log_name, stream_arguments

import txcore
from txcore.errors import ConfigError
from txcore.records import LogKind


def test_a_host_alone_has_rabbitmqs_defaults():
    """A URL with a host alone has the port, user, password and virtual host of a new installation."""
    assert Options() == parse_url("rabbitmq://127.0.0.1") == parse_url("rabbitmq://127.0.0.1/")
    options = Options()
    assert (
        options.host,
        options.port,
        options.user,
        options.password,
        options.vhost,
    ) == ("127.0.0.1", 5672, "guest", "guest", "/")
    with pytest.raises(ConfigError):
        parse_url("rabbitmq:///")


def test_login_and_virtual_host_are_percent_encoded():
    """User, password and virtual host may have any characters, percent-encoded."""
    options = parse_url("rabbitmq://us%40er:p%3Aa%2Fs%25s@broker:1234/a%2Fb%3F?partitions=8&delivery_timeout_s=0.5")
    assert (options.user, options.password, options.vhost) == ("us@er", "p:a/s%s", "a/b?")
    assert (options.hosts, options.partitions, options.delivery_timeout_s) == ((("broker", 1234),), 8, 0.5)


def test_an_empty_password_stays_empty():
    """A URL `user:@host` has an empty password, not the default one."""
    assert (parse_url("rabbitmq://ann:@h").user, parse_url("rabbitmq://ann:@h").password) == ("ann", "")


@pytest.mark.parametrize(
    ("authority", "hosts"),
    [
        ("a,b:1,c:2", (("a", 5672), ("b", 1), ("c", 2))),
        ("[::1]", (("::1", 5672),)),
        ("[::1]:7,127.0.0.1", (("::1", 7), ("127.0.0.1", 5672))),
    ],
)
def test_nodes_of_one_cluster(authority, hosts):
    """Several nodes are separated by commas; IPv6 is written in brackets."""
    assert hosts == parse_url(f"rabbitmq://{authority}/").hosts


def test_tls_has_a_port_of_its_own():
    """The default port with TLS is 5671."""
    assert [parse_url(f"rabbitmq://h{rest}").port for rest in ("?tls=true", "?tls_ca=a", ":5?tls=on", "")] == [
        5671,
        5671,
        5,
        5672,
    ]


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("nope=1", "nope"),
        ("partitions=0", "partitions"),
        ("partitions=two", "partitions"),
        ("partitions=2000", "partitions"),
        ("delivery_timeout_s=-1", "delivery_timeout_s"),
        ("delivery_timeout_s=nan", "delivery_timeout_s"),
        ("delivery_timeout_s=", "delivery_timeout_s"),
        ("half_segment_bytes=5", "half_segment_bytes"),
        ("half_length_bytes=1000", "half_length_bytes"),
        ("tls=maybe", "tls"),
        ("tls=false&tls_ca=ca.pem", "tls"),
        ("tls_key=key.pem", "tls_cert"),
        ("tls_ca=does-not-exist.pem", "tls_ca"),
        ("user=ann", "user"),
        ("sasl=GSSAPI", "sasl"),
        ("sasl=EXTERNAL", "sasl"),
        ("sasl=EXTERNAL&tls=true", "sasl"),
    ],
)
def test_a_wrong_option_is_named(query, key):
    """An option that is unknown, of the wrong kind, out of range or incomplete is a ConfigError with its key."""
    with pytest.raises(ConfigError) as raised:
        txcore.connect(f"rabbitmq://ann:s3cret@host/?{query}")
    assert key == raised.value.key
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("authority", ["ann:s3cret@h:x", "ann:s3cret@h:0", "ann:s3cret@h:70000"])
def test_a_wrong_port_is_named_without_the_password(authority):
    """The error for a port that is no valid number has the key `url`, and does not show the password."""
    with pytest.raises(ConfigError) as raised:
        parse_url(f"rabbitmq://{authority}/")
    assert raised.value.key == "url"
    assert "s3cret" not in str(raised.value)


def test_the_password_is_in_no_representation():
    """The repr of options and of the backend does not show the password."""
    options = parse_url("rabbitmq://ann:s3cret@host/")
    assert options.password == "s3cret"
    assert "s3cret" not in repr(options) + repr(RabbitmqBackend(options))


@pytest.mark.parametrize("guarantees", PLUGIN.guarantees)
def test_guarantees_are_those_of_an_opened_backend(guarantees):
    """The documented capabilities are those of the backend from `txcore.connect`; no broker is contacted for them."""
    url = guarantees.url.replace("user:password@host:5672/vhost", "127.0.0.1:9")
    backend = txcore.connect(url)
    assert guarantees.capabilities == backend.capabilities
    backend.close().result(5)


def test_names_and_arguments_are_stable():
    """Names and arguments of streams do not change: tools find logs by name, and the broker compares arguments."""
    assert log_name("orders", LogKind.HALF, 3) == "txc.orders.half.3"
    assert stream_arguments(Options(), "orders", 3) == {
        "txc.orders.op.3": {
            "x-queue-type": "stream",
            "x-max-age": "1209600s",
            "x-stream-max-segment-size-bytes": 20_000_000,
        },
        "txc.orders.parked.3": {
            "x-queue-type": "stream",
            "x-stream-max-segment-size-bytes": 20_000_000,
        },
        "txc.orders.checkpoint.3": {
            "x-queue-type": "stream",
            "x-max-length-bytes": 2_000_000,
            "x-stream-max-segment-size-bytes": 1_000_000,
        },
        "txc.orders.half.3": {
            "x-queue-type": "stream",
            "x-max-age": "604800s",
            "x-stream-max-segment-size-bytes": 50_000_000,
        },
    }


def test_a_certificate_signs_in_without_a_user():
    """With EXTERNAL the options have no user and password, and a user in the URL contradicts it."""
    options = parse_url("rabbitmq://h?sasl=external&tls_cert=a&tls_key=b")
    assert (options.sasl, options.user, options.password, options.port) == ("EXTERNAL", "", "", 5671)
    with pytest.raises(ConfigError) as raised:
        parse_url("rabbitmq://ann:s3cret@h?sasl=EXTERNAL&tls_cert=a&tls_key=b")
    assert raised.value.key == "sasl"
    assert "s3cret" not in str(raised.value)
