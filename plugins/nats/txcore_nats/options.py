"""The options of a `nats://` URL, the capabilities that follow, and the names of a group's streams and subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from txcore import ranges
from txcore.errors import ConfigError
from txcore.records import FINAL_KINDS, Capabilities, LogKind, OpKind

SCHEME: Final = "nats"
NAME_PREFIX: Final = "txc"
SHARED_PREFIX: Final = "txcs"
SHARED_STREAM_DEFAULT: Final = "txcore"
PORT_DEFAULT: Final = 4222
PARTITION_COUNT_MAX: Final = 256
GROUP_BYTES_MAX: Final = 128
BATCH_COUNT_MAX: Final = 4_000
NOTE_SIZE_MAX: Final = 32_000
EXPIRY_TICK_S: Final = 0.05
"""Resolution of deadlines, in seconds; an item may be settled this much later than its delivery timeout."""
UNIQUE_KINDS: Final = FINAL_KINDS | {OpKind.DISCARD}
"""Kinds of ops that share one subject for each transaction; each op is a compare-and-set on the one before it."""
RELEASES: Final = ("plain", "atomic")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
CLOCK_SKEW_MAX_S: Final = 10.0
"""Largest difference of clocks, in seconds, that does not shorten an immunity: streams of one group may have leaders on
different nodes."""


@dataclass(frozen=True, slots=True)
class Options:
    """One backend's settings; each field from `partitions` on is an option of the URL.

    Attributes:
        servers: Addresses to connect to; the client also tries servers that these report.
        partitions: Partitions of a group that is created without a number; 1 to 256.
        delivery_timeout_s: Longest time from handing an item over until it is settled; 0.1 to 60.
        control_timeout_s: How long a control call waits for the broker; 0.1 to 60.
        connect_timeout_s: How long one attempt to connect may take; 0.1 to 60.
        ping_interval_s: A connection whose pings stay unanswered for two intervals is given up; 0.5 to 600.
        lease_s: A member of a group that is silent for so long loses its partitions; 0.5 to 600.
        keep_s: How long decided halves and ops before the checkpoint are kept; 10 to 31,536,000.
        replicas: Replicas of each stream; 0 accepts the number of an existing stream and creates one replica.
        half_bytes_max: Size at which the half log refuses; 0 for no bound but the account's, -1 accepts the bound of an
            existing stream and creates one with 1 GiB.
        body_size_max: Largest encoded half; the server's `max_payload` must leave room above it.
        duplicate_window_s: For how long target streams must drop repeated ids; 0 if none needs to.
        release: "plain" (targets, then op) or "atomic" (both in one batch, NATS 2.12).
        stream: For `release=atomic`: the stream that holds the targets and takes the ops; "txcore" unless given.
        domain: JetStream domain of the streams, if it is not the connection's.
        tls: Demand an encrypted connection; implied by the next four.
        tls_ca, tls_cert, tls_key: PEM files: authorities to trust, and the client's certificate with its key.
        tls_hostname: The name that the server's certificate must have, if it is not the URL's.
        tls_first: Encrypt before the server sends anything (`handshake_first`).
        creds: A credentials file (JWT and key).
        nkey_seed: A file that holds an nkey seed.
    """

    servers: tuple[str, ...] = (f"nats://127.0.0.1:{PORT_DEFAULT}",)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    partitions: int = 4
    delivery_timeout_s: float = 2.0
    control_timeout_s: float = 5.0
    connect_timeout_s: float = 2.0
    ping_interval_s: float = 5.0
    lease_s: float = 5.0
    keep_s: float = 21_600.0
    replicas: int = 0
    half_bytes_max: int = -1
    body_size_max: int = 1_000_000
    duplicate_window_s: float = 120.0
    release: str = "plain"
    stream: str = ""
    domain: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_hostname: str = ""
    tls_first: bool = False
    creds: str = ""
    nkey_seed: str = ""

    @property
    def api_prefix(self) -> str:
        """The prefix of subjects for requests to JetStream."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def is_atomic(self) -> bool:
        """Whether targets and op are stored in one batch."""
        return self.release == "atomic"


OPTION_NAMES: Final = tuple(each.name for each in fields(Options))[4:]
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "partitions": (1, PARTITION_COUNT_MAX),
    "delivery_timeout_s": (0.1, 60),
    "control_timeout_s": (0.1, 60),
    "connect_timeout_s": (0.1, 60),
    "ping_interval_s": (0.5, 600),
    "lease_s": (0.5, 600),
    "keep_s": (10, 31_536_000),
    "replicas": (0, 5),
    "half_bytes_max": (-1, 1 << 62),
    "body_size_max": (1_024, 60 << 20),
    "duplicate_window_s": (0, 86_400),
}


def parse_url(url: str, options: Mapping[str, str]) -> Options:
    """Return the settings in *url*, `nats://user:password@host:port,host:port`, and in the *options* of its query.

    A user without a password is a token.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; `key` names it.
    """
    account, at, hosts = urlsplit(url).netloc.rpartition("@")
    values: dict[str, Any] = {}
    if hosts:
        values["servers"] = tuple(_server(host) for host in hosts.split(","))
    if at:
        user, colon, password = account.partition(":")
        values.update({"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)})
    for key, text in options.items():
        if key not in OPTION_NAMES:
            raise ConfigError(f"the nats backend has no option {key!r}; it has {', '.join(OPTION_NAMES)}", key=key)
        values[key] = _parse(key, text)
    if values.get("release") == "atomic":
        values.setdefault("stream", SHARED_STREAM_DEFAULT)
    parsed = Options(**values)
    _check(parsed)
    return parsed


def capabilities_of(options: Options) -> Capabilities:
    """Return the capabilities of a backend with these options."""
    return Capabilities(
        atomic_release=options.is_atomic,
        resolution_is_unique=True,
        fences_checkers=options.is_atomic,
        server_time=True,
        rejects_when_full=True,
        fsync_before_ack="configured",
        # An atomic release needs no ids: its op is refused the second time, and its targets with it.
        deduplicates_targets_s=0.0 if options.is_atomic else options.duplicate_window_s,
        body_size_max=options.body_size_max,
        batch_count_max=BATCH_COUNT_MAX,
        note_size_max=NOTE_SIZE_MAX,
        release_time_max_s=options.delivery_timeout_s + 2 * EXPIRY_TICK_S,
        half_retention_s=None,
        resolution_kept_s=options.keep_s,
        clock_skew_max_s=CLOCK_SKEW_MAX_S,
        notes={"fsync_before_ack": "the server's sync_interval: two minutes by default, `always` from 2.10 on"},
    )


class GroupNames:
    """The names of one group's streams and subjects."""

    __slots__ = ("_log_streams", "_prefix", "bucket", "group", "op_stream", "token")

    def __init__(self, group: str, options: Options) -> None:
        self.group = group
        self.token = _token(group)
        self.op_stream = options.stream if options.is_atomic else f"{NAME_PREFIX}_{self.token}_op"
        #: Prefix of ops and parked records; in a shared stream it begins with the same prefix for all groups.
        self._prefix = (
            f"{shared_prefix(options.stream)}.{self.token}" if options.is_atomic else f"{NAME_PREFIX}.{self.token}"
        )
        self.bucket = f"{NAME_PREFIX}_{self.token}"
        self._log_streams = {
            LogKind.HALF: f"{NAME_PREFIX}_{self.token}_half",
            LogKind.OP: self.op_stream,
            LogKind.PARKED: options.stream if options.is_atomic else f"{NAME_PREFIX}_{self.token}_parked",
        }

    @property
    def bucket_stream(self) -> str:
        """The stream of the key-value bucket."""
        return f"KV_{self.bucket}"

    def stream(self, kind: LogKind) -> str:
        """Return the stream that holds one kind of log of all partitions."""
        return self._log_streams[kind]

    def subject(self, kind: LogKind, partition: int) -> str:
        """Return the subject, for ops the filter, of one log of one partition."""
        if kind is LogKind.OP:
            return f"{self._prefix}.op.{partition}.>"
        if kind is LogKind.PARKED:
            return f"{self._prefix}.p.{partition}"
        return f"{NAME_PREFIX}.{self.token}.h.{partition}"

    def final_subject(self, partition: int, transaction_id: bytes) -> str:
        """Return the subject that holds a transaction's final op and DISCARDs, nothing else."""
        return f"{self._prefix}.op.{partition}.o.{transaction_id.hex()}"

    def claim_subject(self, partition: int) -> str:
        """Return the subject of a partition's CLAIMs."""
        return f"{self._prefix}.op.{partition}.claim"

    def fence_subject(self, partition: int) -> str:
        """Return the subject of records without an op that carry an expectation about the newest CLAIM."""
        return f"{self._prefix}.op.{partition}.fence"

    def op_subject(self, partition: int, kind: int, transaction_id: bytes) -> str:
        """Return the subject of an op; only those of `UNIQUE_KINDS` share one with final ops."""
        prefix = f"{self._prefix}.op.{partition}"
        if kind in UNIQUE_KINDS:
            return f"{prefix}.o.{transaction_id.hex()}"
        if kind == OpKind.CLAIM:
            return f"{prefix}.claim"
        if kind == OpKind.TICK:
            return f"{prefix}.tick"
        return f"{prefix}.j.{transaction_id.hex()}"

    def marker_subject(self, kind: LogKind, partition: int) -> str:
        """Return the subject of the markers of a log's beginning and end."""
        return self.op_subject(partition, OpKind.TICK, b"") if kind is LogKind.OP else self.subject(kind, partition)

    def passing_op_subjects(self, partition: int) -> tuple[str, ...]:
        """Return filters for a partition's ops, without its CLAIMs."""
        prefix = self.subject(LogKind.OP, partition).removesuffix(">")
        return f"{prefix}o.>", f"{prefix}j.>", f"{prefix}tick", f"{prefix}fence"

    def key(self, *names: object) -> str:
        """Return the subject of a key in the bucket."""
        return ".".join(("$KV", self.bucket, *map(str, names)))


def shared_prefix(stream: str) -> str:
    """Return the common prefix of the subjects of txcore's records in a user's stream."""
    return f"{SHARED_PREFIX}.{stream}"


def _token(group: str) -> str:
    """Return *group* as one token of a subject and a part of a stream's name; each byte not allowed becomes `=XX`.

    Raises:
        ConfigError: the name is empty or too long.
    """
    if not group or len(group.encode()) > GROUP_BYTES_MAX:
        raise ConfigError(f"a group's name has 1 to {GROUP_BYTES_MAX} bytes, unlike {group[:40]!r}", key="group")
    return "".join(
        each if each.isascii() and (each.isalnum() or each in "-_") else "".join(f"={b:02X}" for b in each.encode())
        for each in group
    )


def _server(host: str) -> str:
    parts = urlsplit(f"//{host}")
    try:
        name, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{host!r} is no host:port", key="url") from error
    if not name:
        raise ConfigError(f"{host!r} names no host", key="url")
    return f"nats://{f'[{name}]' if ':' in name else name}:{port or PORT_DEFAULT}"


def _parse(key: str, text: str) -> Any:
    kind = type(getattr(Options(), key))
    if kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"{key} is true or false, not {text!r}", key=key)
        return text.lower() in _TRUE
    if kind is str:
        return text
    return ranges.parse(key, text, kind, *_RANGES[key])


def _check(options: Options) -> None:
    if options.release not in RELEASES:
        raise ConfigError(f"release is {' or '.join(RELEASES)}, not {options.release!r}", key="release")
    if options.stream and not options.is_atomic:
        raise ConfigError("stream= belongs to release=atomic", key="stream")
    for key in ("stream", "domain"):
        if set(getattr(options, key)) & set(" \t\r\n.*>/\\"):
            raise ConfigError(f"{getattr(options, key)!r} is no name of a {key}", key=key)
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError("tls_cert and tls_key go together", key="tls_key" if options.tls_cert else "tls_cert")
    given: Sequence[str] = [key for key in ("creds", "nkey_seed", "token", "user") if getattr(options, key)]
    if len(given) > 1:
        raise ConfigError(f"one way to log in is enough: {' and '.join(given)} are given", key=given[0])
