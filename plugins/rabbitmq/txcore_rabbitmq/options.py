"""The options of a `rabbitmq://` URL: their names, units, ranges and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

from txcore.backends.options import Server, account_of, choice, parse_options, seconds, servers_of, split_url, whole
from txcore.backends.tls import ContextOptions
from txcore.errors import ConfigError

SCHEME: Final = "rabbitmq"
PORT: Final = 5672
TLS_PORT: Final = 5671
PARTITION_COUNT_MAX: Final = 1_024
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
_SEGMENT_RANGE: Final = (100_000, 3_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ContextOptions):
    """One backend's settings, from a URL.

    Attributes:
        hosts: Nodes of one cluster, tried in turn.
        user, password, vhost: The login, and the virtual host; no user and password with EXTERNAL.
    """

    hosts: tuple[Server, ...] = (Server("127.0.0.1", PORT),)
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    partitions: int = whole(4, 1, PARTITION_COUNT_MAX, "of a group that is made without a number; they never change")
    delivery_timeout_s: float = seconds(
        2.0, 0.05, 3_600, "from handing an item over to its being settled; a release may take twice that and a little"
    )
    merge_delay_s: float = seconds(0.005, 0, 10, "how long an op may wait for others to share its record")
    connect_timeout_s: float = seconds(3.0, 0.05, 600, "for a connection and its login")
    control_timeout_s: float = seconds(10.0, 0.05, 3_600, "for making groups and loading checkpoints")
    heartbeat_s: int = whole(10, 1, 600, "of the publishing and the reading connection")
    claim_heartbeat_s: int = whole(5, 1, 60, "of a checker's connection; a frozen one is noticed after two to three")
    drain_s: float = seconds(20.0, 0.1, 3_600, "longest time for a checker to finish a partition that another one gets")
    half_retention_s: int = whole(
        7 * 86_400, 60, 10 * 366 * 86_400, "`x-max-age` of halves, in seconds; ops are kept twice as long"
    )
    half_segment_bytes: int = whole(
        50_000_000, *_SEGMENT_RANGE, "segment size of the half streams; retention frees whole segments only"
    )
    half_length_bytes: int = whole(
        0,
        0,
        1 << 50,
        "bound on a half stream, which then drops its oldest halves; at least two segments, or 0 for none",
    )
    op_segment_bytes: int = whole(20_000_000, *_SEGMENT_RANGE, "segment size of the op streams")
    replicas: int = whole(0, 0, 15, "nodes that hold each stream of a new group; 0 for the broker's default")
    body_size_max: int = whole(
        1_000_000,
        1_024,
        512 << 20,
        "bytes of one encoded half; tried at the start against the broker's `max_message_size` "
        "(16 MiB since 4.0, 128 MiB before)",
    )
    window_count: int = whole(4_000, 1, 1_000_000, "messages that may wait for a confirm")
    window_bytes: int = whole(32_000_000, 1_024, 1 << 40, "bytes of bodies that may wait for a confirm")
    queue_count: int = whole(
        100_000,
        1,
        10_000_000,
        "messages that may wait for the connection or the window; beyond, halves and targets are refused (`BusyError`)",
    )
    queue_bytes: int = whole(64_000_000, 1_024, 1 << 40, "bytes of bodies that may wait like that")
    sasl: str = choice(
        PLAIN,
        (PLAIN, EXTERNAL),
        "by the URL's user and password; or by the name in `tls_cert`, without a user in the URL",
    )

    @property
    def host(self) -> str:
        """The first node's name."""
        return self.hosts[0][0]

    @property
    def port(self) -> int:
        """The first node's port."""
        return self.hosts[0][1]


def parse_url(url: str) -> Options:
    """Return the settings in *url*, `rabbitmq://user:password@host:port[,host:port]/vhost?option=value`.

    User, password and virtual host are percent-encoded; an empty path is the virtual host `/`.

    Raises:
        ConfigError: an option is unknown, of the wrong kind or out of range; `key` names it.
    """
    (user, password), vhost = account_of(url), unquote(split_url(url).path[1:])
    login = {"user": user, "password": password or ""} if user or password else {}
    options = parse_options(Options, url, vhost=vhost or "/", **login)
    if 0 < options.half_length_bytes < 2 * options.half_segment_bytes:
        raise ConfigError(
            "half_length_bytes is at least two segments (half_segment_bytes), as only whole segments are dropped",
            key="half_length_bytes",
        )
    if options.sasl == EXTERNAL:
        if not options.tls_cert:
            raise ConfigError("sasl=EXTERNAL signs in by a certificate: it needs tls_cert and tls_key", key="sasl")
        if login:
            raise ConfigError("sasl=EXTERNAL signs in by the certificate, without a user in the URL", key="sasl")
        options = replace(options, user="", password="")
    return replace(options, hosts=servers_of(url, TLS_PORT if options.is_encrypted else PORT))
