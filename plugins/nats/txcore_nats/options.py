"""The options of a `nats://` URL, the capabilities that follow, and the names of a group's streams and subjects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from txcore.backends.options import account_of, choice, parse_options, seconds, servers_of, switch, text, whole
from txcore.backends.tls import ContextOptions
from txcore.errors import ConfigError
from txcore.records import UNIQUE_KINDS, Capabilities, LogKind, OpKind

SCHEME: Final = "nats"
NAME_PREFIX: Final = "txc"
SHARED_PREFIX: Final = "txcs"
SHARED_STREAM_DEFAULT: Final = "txcore"
INBOX_PREFIX: Final = "_INBOX"
PORT_DEFAULT: Final = 4222
PARTITION_COUNT_MAX: Final = 256
GROUP_BYTES_MAX: Final = 128
BATCH_COUNT_MAX: Final = 4_000
NOTE_SIZE_MAX: Final = 32_000
EXPIRY_TICK_S: Final = 0.05
"""Resolution of deadlines, in seconds; an item may be settled this much later than its delivery timeout."""
"""Kinds of ops that share one subject for each transaction; each op is a compare-and-set on the one before it."""
RELEASES: Final = ("plain", "atomic")
EVERY: Final = "*"  #: in the place of a partition: all partitions
Partition: TypeAlias = int | Literal["*"]
CLOCK_SKEW_MAX_S: Final = 10.0
"""Largest difference of clocks, in seconds, that does not shorten an immunity: streams of one group may have leaders on
different nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ContextOptions):
    """One backend's settings, from a URL.

    Attributes:
        servers: Addresses to connect to; the client also tries servers that these report.
        user, password, token: The login of the URL: user and password, or a token alone.
    """

    servers: tuple[str, ...] = (f"nats://127.0.0.1:{PORT_DEFAULT}",)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    partitions: int = whole(4, 1, PARTITION_COUNT_MAX, "of a group that is made without a number; they never change")
    delivery_timeout_s: float = seconds(2.0, 0.1, 60, "from handing an item over to its being settled")
    control_timeout_s: float = seconds(5.0, 0.1, 60, "how long control calls wait")
    connect_timeout_s: float = seconds(2.0, 0.1, 60, "one attempt to connect")
    ping_interval_s: float = seconds(5.0, 0.5, 600, "a connection without an answer for two of these is given up")
    lease_s: float = seconds(5.0, 0.5, 600, "time of silence after which a member has lost its partitions")
    keep_s: float = seconds(21_600.0, 10, 31_536_000, "how long decided halves and their ops are kept; see below")
    replicas: int = whole(0, 0, 5, "of the streams that are made; 0 for one, and for any number of existing streams")
    half_bytes_max: int = whole(
        -1,
        -1,
        1 << 62,
        "size at which the half log refuses; 0 for no bound but the account's, -1 for 1 GiB, "
        "and for any bound of an existing stream",
    )
    body_size_max: int = whole(
        1_000_000, 1_024, 60 << 20, "bytes of one encoded half; needs about 6 KiB more in the server's `max_payload`"
    )
    duplicate_window_s: float = seconds(
        120.0, 0, 86_400, "least duplicate window of target streams; a half for a stream with less is refused"
    )
    release: str = choice("plain", RELEASES, "targets, then the op; or both in one batch (NATS 2.12)")
    stream: str = text(
        "the stream that holds the targets, or several with commas: targets are looked up there alone, which needs no "
        f"right to list streams; with `release=atomic` one, `{SHARED_STREAM_DEFAULT}` by default"
    )
    domain: str = text("JetStream domain, if it is not the connection's")
    creds: str = text("file of credentials (`.creds`: a user's JWT and the seed of its nkey); read at each connection")
    nkey_seed: str = text("file of an nkey seed alone; read at each connection")
    inbox_prefix: str = text(
        f"prefix of the subjects of replies, which no other user may hear; `{INBOX_PREFIX}_<user>` by default, "
        f"`{INBOX_PREFIX}` for a login without a user's name"
    )
    tls_first: bool = switch(False, "encrypt before the server sends anything (`handshake_first`)")

    @property
    def api_prefix(self) -> str:
        """The prefix of subjects for requests to JetStream."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def is_atomic(self) -> bool:
        """Whether targets and op are stored in one batch."""
        return self.release == "atomic"

    @property
    def target_streams(self) -> tuple[str, ...]:
        """The only streams in which targets are looked up; none where JetStream is asked for a target's stream."""
        return tuple(self.stream.split(",")) if self.stream else ()

    @property
    def inbox(self) -> str:
        """The prefix of the subjects of replies to this user."""
        return self.inbox_prefix or (f"{INBOX_PREFIX}_{as_token(self.user)}" if self.user else INBOX_PREFIX)


def parse_url(url: str) -> Options:
    """Return the settings in *url*, `nats://user:password@host:port,host:port?option=value`.

    A user without a password is a token.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; `key` names it.
    """
    user, password = account_of(url)
    login = {"token": user} if password is None else {"user": user, "password": password}
    servers = tuple(f"nats://{each}" for each in servers_of(url, PORT_DEFAULT))
    options = parse_options(Options, url, servers=servers, **login)
    if options.is_atomic and "," in options.stream:
        raise ConfigError("release=atomic stores targets and ops in one stream", key="stream")
    for key, names in (("stream", options.target_streams), ("domain", (options.domain,) if options.domain else ())):
        for name in names:
            if not name or set(name) & set(" \t\r\n.*>/\\"):
                raise ConfigError(f"{name!r} is no name of a {key}", key=key)
    if not all(each and each.isprintable() and not set(each) & set(" *>") for each in options.inbox.split(".")):
        raise ConfigError(f"{options.inbox!r} is no prefix of subjects", key="inbox_prefix")
    given = [key for key in ("creds", "nkey_seed", "token", "user") if getattr(options, key)]
    if len(given) > 1:
        raise ConfigError(f"one way to log in is enough: {' and '.join(given)} are given", key=given[0])
    return replace(options, stream=options.stream or SHARED_STREAM_DEFAULT) if options.is_atomic else options


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
    """The names of one group's streams and subjects; with `EVERY` for a partition, patterns for all of them.

    Raises:
        ConfigError: the group's name is empty or too long.
    """

    __slots__ = ("_log_streams", "_prefix", "bucket", "group", "op_stream", "token")

    def __init__(self, group: str, options: Options) -> None:
        self.group = group
        if not group or len(group.encode()) > GROUP_BYTES_MAX:
            raise ConfigError(f"a group's name has 1 to {GROUP_BYTES_MAX} bytes, unlike {group[:40]!r}", key="group")
        self.token = as_token(group)
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

    def subject(self, kind: LogKind, partition: Partition) -> str:
        """Return the subject, for ops the filter, of one log of one partition."""
        if kind is LogKind.OP:
            return f"{self._prefix}.op.{partition}.>"
        if kind is LogKind.PARKED:
            return f"{self._prefix}.p.{partition}"
        return f"{NAME_PREFIX}.{self.token}.h.{partition}"

    def final_subject(self, partition: int, transaction_id: bytes) -> str:
        """Return the subject that holds a transaction's final op and DISCARDs, nothing else."""
        return f"{self._prefix}.op.{partition}.o.{transaction_id.hex()}"

    def claim_subject(self, partition: Partition) -> str:
        """Return the subject of a partition's CLAIMs."""
        return f"{self._prefix}.op.{partition}.claim"

    def fence_subject(self, partition: int) -> str:
        """Return the subject of records without an op that carry an expectation about the newest CLAIM."""
        return f"{self._prefix}.op.{partition}.fence"

    def op_subject(self, partition: Partition, kind: int, transaction_id: bytes) -> str:
        """Return the subject of an op; only those of `UNIQUE_KINDS` share one with final ops."""
        prefix = f"{self._prefix}.op.{partition}"
        if kind in UNIQUE_KINDS:
            return f"{prefix}.o.{transaction_id.hex()}"
        if kind == OpKind.CLAIM:
            return f"{prefix}.claim"
        if kind == OpKind.TICK:
            return f"{prefix}.tick"
        return f"{prefix}.j.{transaction_id.hex()}"

    def marker_subject(self, kind: LogKind, partition: Partition) -> str:
        """Return the subject of the markers of a log's beginning and end."""
        return self.op_subject(partition, OpKind.TICK, b"") if kind is LogKind.OP else self.subject(kind, partition)

    def passing_op_subjects(self, partition: Partition) -> tuple[str, ...]:
        """Return filters for a partition's ops, without its CLAIMs and TICKs."""
        prefix = self.subject(LogKind.OP, partition).removesuffix(">")
        return f"{prefix}o.>", f"{prefix}j.>", f"{prefix}fence"

    def key(self, *names: object) -> str:
        """Return the subject of a key in the bucket."""
        return ".".join(("$KV", self.bucket, *map(str, names)))


def shared_prefix(stream: str) -> str:
    """Return the common prefix of the subjects of txcore's records in a user's stream."""
    return f"{SHARED_PREFIX}.{stream}"


def as_token(name: str) -> str:
    """Return *name* as one token of a subject and a part of a stream's name; each byte not allowed becomes `=XX`."""
    return "".join(
        each if each.isascii() and (each.isalnum() or each in "-_") else "".join(f"={b:02X}" for b in each.encode())
        for each in name
    )
