"""The keys of `txcore.toml`: one struct per section, with the only definition of each key's bounds and meaning.

Durations are seconds and end in `_s`. Secrets are never written here: a key ending in `_file` names the file, one
ending in `_env` the environment variable that holds them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from txcore.config.audit import AuditSection

Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=30 * 86_400)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class LogSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The process's log, always on standard error."""

    format: Annotated[Literal["human", "json"], Meta(description="lines for people, or one JSON object per line")] = (
        "human"
    )
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the least important line that is written")
    ] = "info"
    repeats_max: Annotated[
        Count, Meta(description="lines of one event and group in 10 s; the next line counts the suppressed ones")
    ] = 10


class TokenSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A further token for API and console, by a name of your choice. Exactly one of the first two keys."""

    token_file: Annotated[str, Meta(description="file with the token, at least 16 characters")] = ""
    token_env: Annotated[str, Meta(description="or the environment variable that holds it")] = ""
    role: Annotated[
        Literal["observer", "operator"], Meta(description="an observer may only read; an operator may also decide")
    ] = "observer"
    groups: Annotated[list[str], Meta(description="the groups that it may see; empty for all")] = field(
        default_factory=list
    )


class HttpSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The HTTP endpoint: health, metrics, JSON API, web console."""

    enabled: Annotated[bool, Meta(description="serve it at all")] = True
    host: Annotated[str, Meta(min_length=1, description="the address to listen on; loopback by default")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="the port; 0 for any free one, which is logged")] = 8181
    token_file: Annotated[
        str,
        Meta(
            description="file with the operators' token, at least 16 characters, that API and console then ask for; "
            "needed to change anything; some token is needed unless `host` is loopback"
        ),
    ] = ""
    token_env: Annotated[str, Meta(description="or the environment variable that holds it")] = ""
    console: Annotated[bool, Meta(description="serve the web console, at `/console`")] = True
    bodies: Annotated[bool, Meta(description="let the console show message bodies")] = False
    certificate_file: Annotated[str, Meta(description="PEM file of the server's certificate: serve HTTPS")] = ""
    key_file: Annotated[str, Meta(description="PEM file of its key, where it is not in `certificate_file`")] = ""
    trusted_proxies: Annotated[
        list[str],
        Meta(
            description="addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are "
            "believed: with `https` there, the console's cookie is Secure"
        ),
    ] = field(default_factory=list)
    tokens: dict[str, TokenSection] = field(default_factory=dict)


class CheckerSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The checker process."""

    member: Annotated[
        str, Meta(max_length=200, description="this process's name in its groups and op records; made up when empty")
    ] = ""
    shutdown_s: Annotated[Seconds, Meta(description="longest time from SIGTERM to the end of the process")] = 25.0
    restart_s: Annotated[
        Seconds, Meta(description="first pause before a group is tried again that could not start; doubles")
    ] = 1.0
    restart_max_s: Annotated[Seconds, Meta(description="longest such pause")] = 5.0
    tracing: Annotated[
        bool, Meta(description="make OpenTelemetry spans, for the SDK that the process was started with")
    ] = False


class BackendSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A broker, by a name of your choice. Exactly one of the three keys."""

    url: Annotated[str, Meta(description="such as `kafka://127.0.0.1:9092`; options as in the backend's README")] = ""
    url_file: Annotated[str, Meta(description="file that holds the URL")] = ""
    url_env: Annotated[str, Meta(description="environment variable that holds the URL")] = ""


class DatabaseSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A database with a fence table, by a name of your choice. Exactly one of the three URL keys."""

    url: Annotated[str, Meta(description="SQLAlchemy URL with a synchronous driver")] = ""
    url_file: Annotated[str, Meta(description="file that holds the URL")] = ""
    url_env: Annotated[str, Meta(description="environment variable that holds the URL")] = ""
    connections_max: Annotated[int, Meta(ge=1, le=1_000, description="connections that the checks share")] = 4
    connect_timeout_s: Annotated[Seconds, Meta(description="longest time to connect (PostgreSQL, MariaDB, MySQL)")] = (
        5.0
    )
    lock_timeout_s: Annotated[
        float, Meta(gt=0, le=3_600, description="how long a check waits for an open producer transaction")
    ] = 0.3
    statement_timeout_s: Annotated[
        float, Meta(gt=0, le=3_600, description="longest time of one check that asks ids one by one")
    ] = 10.0


class PolicySection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """When a silent transaction is checked, and how often."""

    immunity_s: Annotated[
        SecondsOrNone, Meta(description="youngest age of a first check, where the half's own immunity is shorter")
    ] = 0.0
    interval_s: Annotated[
        Seconds, Meta(description="between two checks answered UNKNOWN, for halves that do not say it themselves")
    ] = 30.0
    check_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="checks answered UNKNOWN after which a half is parked; likewise")
    ] = 15


class CallbackSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The HTTP callback that answers for halves without a fence. See `docs/checker.md`."""

    url: Annotated[str, Meta(description="where the half is POSTed; `http` or `https`")] = ""
    timeout_s: Annotated[Seconds, Meta(description="longest time of one request")] = 3.0
    tries_max: Annotated[
        int, Meta(ge=1, le=20, description="requests for one check, within `limits.check_deadline_s` of the group")
    ] = 3
    retry_s: Annotated[Seconds, Meta(description="first pause between two of them; doubles")] = 0.2
    bodies: Annotated[bool, Meta(description="send message bodies along; keys and headers always go")] = True
    secret_file: Annotated[str, Meta(description="file with the shared secret that signs each request (HMAC)")] = ""
    secret_env: Annotated[str, Meta(description="or the environment variable that holds it")] = ""
    token_file: Annotated[str, Meta(description="file with a bearer token to send")] = ""
    token_env: Annotated[str, Meta(description="or the environment variable that holds it")] = ""
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust instead of the system's")] = ""
    certificate_file: Annotated[str, Meta(description="PEM file of a client certificate, with its key")] = ""
    key_file: Annotated[str, Meta(description="PEM file of its key, where it is not in `certificate_file`")] = ""


class LimitsSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The bounds of one group's checker; the defaults suit production."""

    replay_max: Annotated[
        Count, Meta(description="half records a restart may read again before the oldest are carried forward")
    ] = 10_000
    read_count_max: Annotated[Count, Meta(description="records of one read")] = 1_000
    batch_count_max: Annotated[Count, Meta(description="halves in hand at once per partition")] = 500
    fence_batch_count_max: Annotated[Count, Meta(description="halves of one question to the fence")] = 200
    calls_max: Annotated[int, Meta(ge=1, le=1_000, description="questions to listener, callback or fence at once")] = 8
    poll_s: Annotated[Seconds, Meta(description="pause between two reads while there is work")] = 0.005
    idle_poll_s: Annotated[Seconds, Meta(description="longest pause between two reads while there is none")] = 1.0
    mark_timeout_s: Annotated[Seconds, Meta(description="longest wait for a mark of our own to come back")] = 5.0
    read_back_s: Annotated[Seconds, Meta(description="when an end that was not read back is looked at again")] = 5.0
    retry_s: Annotated[
        Seconds, Meta(description="first back-off after no answer or a failed write; doubles, for each half by itself")
    ] = 0.2
    retry_max_s: Annotated[Seconds, Meta(description="longest such back-off")] = 30.0
    check_deadline_s: Annotated[
        Seconds, Meta(description="longest time of one question; then it counts as no answer")
    ] = 10.0
    refusals_max: Annotated[
        Count, Meta(description="refusals by a target before a half is parked as undeliverable")
    ] = 8
    checkpoint_interval_s: Annotated[Seconds, Meta(description="least time between two checkpoints of a partition")] = (
        2.0
    )
    body_bytes_max: Annotated[
        Count, Meta(description="bytes of half records kept in memory; the others are read again when they are due")
    ] = 4 << 20
    newer_records: Annotated[
        Literal["stop", "park"],
        Meta(description="at a record of a newer txcore: stop its partition, or park halves and skip ops"),
    ] = "stop"
    order_on_park: Annotated[
        Literal["hold", "skip"],
        Meta(description="later halves of the order key of a parked half: hold them, or release them"),
    ] = "hold"


class GroupSection(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A producer group, by its name. It needs a `database`, a `listener` or a `callback`."""

    backend: Annotated[str, Meta(description="which of `backends`; may be left out when there is only one")] = ""
    database: Annotated[str, Meta(description="which of `databases` holds the fence; it answers for fenced halves")] = (
        ""
    )
    fence_table: Annotated[
        str, Meta(min_length=1, description="the fence table there, with a schema before it if need be")
    ] = "txcore_tx"
    relay: Annotated[
        bool, Meta(description="relay the message table beside the fence too, for producers in mode table or auto")
    ] = True
    relay_tries_max: Annotated[
        Count, Meta(description="refusals by its target before a message of that table is parked")
    ] = 20
    listener: Annotated[
        str, Meta(description="`module:attribute`, a TransactionListener (or a list) for halves without a fence")
    ] = ""
    partitions: Annotated[
        int, Meta(ge=0, le=10_000, description="for a new group; 0 takes what exists, or the backend's default")
    ] = 0
    callback: CallbackSection | None = None
    policy: PolicySection = field(default_factory=PolicySection)
    limits: LimitsSection = field(default_factory=LimitsSection)


class Config(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """All of `txcore.toml`."""

    checker: CheckerSection = field(default_factory=CheckerSection)
    log: LogSection = field(default_factory=LogSection)
    http: HttpSection = field(default_factory=HttpSection)
    audit: AuditSection = field(default_factory=AuditSection)
    backends: dict[str, BackendSection] = field(default_factory=dict)
    databases: dict[str, DatabaseSection] = field(default_factory=dict)
    groups: dict[str, GroupSection] = field(default_factory=dict)
