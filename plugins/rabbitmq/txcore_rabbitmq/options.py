"""The options of a `rabbitmq://` URL: their names, units, ranges and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from txcore import ranges
from txcore.errors import ConfigError

SCHEME: Final = "rabbitmq"
PORT: Final = 5672
TLS_PORT: Final = 5671
PARTITION_COUNT_MAX: Final = 1_024
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_SEGMENT_RANGE: Final = (100_000, 3_000_000_000)


@dataclass(frozen=True, slots=True)
class Options:
    """One backend's settings; each field from `partitions` on is a query parameter of the URL.

    Attributes:
        hosts: Nodes of one cluster, tried in turn.
        partitions: Partitions of a group that is created without a number.
        delivery_timeout_s: Longest time of one delivery, from handing a message over until it is settled.
        merge_delay_s: How long an op may wait for others to share its record.
        connect_timeout_s: Longest time for a connection and its login.
        control_timeout_s: Longest time for creating a group or loading a checkpoint.
        heartbeat_s: Heartbeat of the publishing and the reading connection.
        claim_heartbeat_s: Heartbeat of a claim's connection; a frozen owner is noticed after two to three.
        drain_s: How long a checker may finish its work on a revoked partition, before it loses the partition.
        half_retention_s: `x-max-age` of the half streams; ops are kept twice as long.
        half_segment_bytes: Segment size of the half streams; retention frees whole segments only.
        half_length_bytes: `x-max-length-bytes` of the half streams; 0 for none. A full stream drops its oldest halves.
        op_segment_bytes: Segment size of the op streams.
        replicas: Nodes that hold each stream of a new group (`x-initial-cluster-size`); 0 for the broker's default.
        body_size_max: Largest half record; must leave room below the broker's `max_message_size`.
        window_count: Messages that may wait for their confirms.
        window_bytes: Bytes of bodies that may wait for their confirms.
        queue_count: Messages that may wait for the connection or the window; above that, new ones are refused.
        queue_bytes: Bytes of bodies that may wait for the connection or the window.
        tls: Use TLS; then the port is 5671 by default.
        tls_verify: Verify the broker's certificate and name.
        tls_ca_file: Certificates to trust, instead of the system's.
        tls_certificate_file: The client's own certificate.
        tls_key_file: The key of this certificate, if it is not in the same file.
        tls_server_name: The name that the broker's certificate must have, if it is not the host's.
    """

    hosts: tuple[tuple[str, int], ...] = (("127.0.0.1", PORT),)
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    partitions: int = 4
    delivery_timeout_s: float = 2.0
    merge_delay_s: float = 0.005
    connect_timeout_s: float = 3.0
    control_timeout_s: float = 10.0
    heartbeat_s: int = 10
    claim_heartbeat_s: int = 5
    drain_s: float = 20.0
    half_retention_s: int = 7 * 86_400
    half_segment_bytes: int = 50_000_000
    half_length_bytes: int = 0
    op_segment_bytes: int = 20_000_000
    replicas: int = 0
    body_size_max: int = 1_000_000
    window_count: int = 4_000
    window_bytes: int = 32_000_000
    queue_count: int = 100_000
    queue_bytes: int = 64_000_000
    tls: bool = False
    tls_verify: bool = True
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""

    @property
    def host(self) -> str:
        """The first node's name."""
        return self.hosts[0][0]

    @property
    def port(self) -> int:
        """The first node's port."""
        return self.hosts[0][1]


def parse_url(url: str, options: Mapping[str, str] | None = None) -> Options:
    """Return the settings in *url*, `rabbitmq://user:password@host:port[,host:port]/vhost?option=value`.

    User, password and virtual host are percent-encoded; an empty path is the virtual host `/`. *options* are those of
    the query, if they were parsed already.

    Raises:
        ConfigError: an option is unknown, of the wrong kind or out of range; `key` names it.
    """
    head, _, query = url.partition("#")[0].partition("?")
    authority, _, path = head.removeprefix(f"{SCHEME}://").partition("/")
    if options is None:
        options = dict(parse_qsl(query, keep_blank_values=True))
    values = {key: _value(key, text) for key, text in options.items()}
    login, _, nodes = authority.rpartition("@")
    if login:
        user, _, password = login.partition(":")
        values |= {"user": unquote(user), "password": unquote(password)}
    if path:
        values["vhost"] = unquote(path)
    port = TLS_PORT if values.get("tls") else PORT
    values["hosts"] = tuple(_node(node, port) for node in nodes.split(","))
    return _verified(Options(**values))


def _verified(options: Options) -> Options:
    if not options.tls:
        for key in ("tls_ca_file", "tls_certificate_file", "tls_key_file", "tls_server_name"):
            if getattr(options, key):
                raise ConfigError(f"{key} needs tls=true", key=key)
    if options.tls_key_file and not options.tls_certificate_file:
        raise ConfigError("tls_key_file needs tls_certificate_file", key="tls_key_file")
    if 0 < options.half_length_bytes < 2 * options.half_segment_bytes:
        raise ConfigError(
            "half_length_bytes is at least two segments (half_segment_bytes), as only whole segments are dropped",
            key="half_length_bytes",
        )
    return options


def _node(text: str, port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        colon, number = rest[:1], rest[1:]
    else:
        host, colon, number = text.partition(":")
    if not colon:
        return host or "127.0.0.1", port
    if not number.isdecimal() or not 0 < int(number) < 65_536:
        raise ConfigError(f"{number!r} is no port; write host:port, and a password percent-encoded", key="port")
    return host or "127.0.0.1", int(number)


_RANGES: Final[Mapping[str, tuple[ranges.Kind, float, float]]] = {
    "partitions": (int, 1, PARTITION_COUNT_MAX),
    "delivery_timeout_s": (float, 0.05, 3_600),
    "merge_delay_s": (float, 0, 10),
    "connect_timeout_s": (float, 0.05, 600),
    "control_timeout_s": (float, 0.05, 3_600),
    "heartbeat_s": (int, 1, 600),
    "claim_heartbeat_s": (int, 1, 60),
    "drain_s": (float, 0.1, 3_600),
    "half_retention_s": (int, 60, 10 * 366 * 86_400),
    "half_segment_bytes": (int, *_SEGMENT_RANGE),
    "half_length_bytes": (int, 0, 1 << 50),
    "op_segment_bytes": (int, *_SEGMENT_RANGE),
    "replicas": (int, 0, 15),
    "body_size_max": (int, 1_024, 512 << 20),
    "window_count": (int, 1, 1_000_000),
    "window_bytes": (int, 1_024, 1 << 40),
    "queue_count": (int, 1, 10_000_000),
    "queue_bytes": (int, 1_024, 1 << 40),
}
_SWITCHES: Final = frozenset({"tls", "tls_verify"})
_TEXTS: Final = frozenset({"tls_ca_file", "tls_certificate_file", "tls_key_file", "tls_server_name"})


def _value(key: str, text: str) -> Any:
    if key in _RANGES:
        return ranges.parse(key, text, *_RANGES[key])
    if key in _SWITCHES:
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"{key} is true or false, not {text!r}", key=key)
        return text.lower() in _TRUE
    if key in _TEXTS:
        return text
    known = ", ".join((*_RANGES, *sorted(_SWITCHES), *sorted(_TEXTS)))
    raise ConfigError(f"the rabbitmq backend has no option {key!r}; it has {known}", key=key)
