"""The options of a `kafka://` URL, and the names and settings of a group's topics; nothing here needs the driver."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from txcore.backends.options import (
    TlsOptions,
    account_of,
    choice,
    parse_options,
    seconds,
    servers_of,
    split_url,
    text,
    whole,
)
from txcore.errors import ConfigError, MessageRejectedError
from txcore.records import RECORD_OVERHEAD_MAX, LogKind
from txcore_kafka.tokens import file_tokens

SCHEME: Final = "kafka"
PORT_DEFAULT: Final = 9092
NAME_PREFIX: Final = "txc"
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
GROUP_NAME_SIZE_MAX: Final = 230
"""Longest name of a group, in characters: a topic's name has at most 249, including the prefix and suffix of txcore."""
GROUP_END: Final = ":"
"""The character after the group in a transactional id. No group's name has it, so a prefix that ends with it covers one
group only."""
PARTITION_COUNT_MAX: Final = 256
BATCH_BYTES: Final = 1_000_000
"""The driver's `batch.size`, in bytes: a topic with a smaller limit gets its messages one by one."""
BATCH_OVERHEAD: Final = 200
"""Bytes of a record batch around the one record in it, rounded up."""
TOPIC_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's own default for `max.message.bytes`, in bytes."""
REQUEST_BYTES_MAX: Final = 200_000_000
STEPS: Final = "steps"
TRANSACTION: Final = "transaction"
BEARER: Final = "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TlsOptions):
    """One backend's settings, from a URL. librdkafka takes no other name for a certificate than the host's.

    Attributes:
        servers: `host:port`, comma separated.
        user, password: For SASL; "" for none.
    """

    servers: str = f"127.0.0.1:{PORT_DEFAULT}"
    user: str = ""
    password: str = field(default="", repr=False)
    partitions: int = whole(4, 1, PARTITION_COUNT_MAX, "of a group that is made without a number; they never change")
    replicas: int = whole(0, 0, 32_767, "of the topics that are made; 0 for the broker's `default.replication.factor`")
    delivery_timeout_s: float = seconds(
        3.0, 0.5, 60, "from handing an item over to its being settled; an immunity must be longer"
    )
    control_timeout_s: float = seconds(5.0, 0.5, 60, "how long a control request waits")
    body_size_max: int = whole(
        1_000_000,
        1_024,
        100_000_000,
        "bytes of one encoded half; larger ones need topics with more `max.message.bytes`",
    )
    half_retention_s: float = seconds(
        7 * 86_400.0, 60, 10 * 365 * 86_400, "`retention.ms` of the half topic, in seconds; ops are kept twice as long"
    )
    session_timeout_s: float = seconds(
        10.0,
        6,
        1_800,
        "time of silence after which a checker has lost its partitions; within the broker's "
        "`group.min.session.timeout.ms` and `group.max.session.timeout.ms`",
    )
    drain_s: float = seconds(
        5.0, 0.1, 60, "longest time for a checker to finish its halves in hand when another member gets the partition"
    )
    silence_s: float = seconds(
        30.0, 1, 3_600, "time without a look of its loop at its claim after which a checker leaves the group"
    )
    queue_max: int = whole(
        100_000, 1_000, 10_000_000, "records that wait in one process; beyond, new halves are refused"
    )
    compression: str = choice("none", ("none", "gzip", "snappy", "lz4", "zstd"), "of what is sent")
    release: str = choice(
        STEPS, (STEPS, TRANSACTION), "targets, then the op; or both in one Kafka transaction, see below"
    )
    transaction_timeout_s: float = seconds(
        10.0, 2, 60, "how long a transaction may stay open; also the deadline of a release in it"
    )
    transaction_sweep_s: float = seconds(
        10.0, 1, 60, "the broker's `transaction.abort.timed.out.transaction.cleanup.interval.ms`, in seconds"
    )
    sasl: str = choice(
        "",
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", BEARER),
        f"for the URL's user and password; `PLAIN` if there is a user, `{BEARER}` with one of the next two",
    )
    token_url: str = text(
        "https address (OpenID Connect) that gives bearer tokens for the URL's user and password, which are the "
        "client's id and secret there"
    )
    token_file: str = text(
        "file with a bearer token, for a URL without a user; read again after four fifths of the token's life (a JWT's "
        "`exp`, else a minute)"
    )
    token_scope: str = text("the scope to ask for at `token_url`")
    token_ca: str = text("PEM file of the authorities to trust at `token_url`, instead of the system's")

    @property
    def replication_factor(self) -> int:
        """The replicas in Kafka's terms: -1 for the broker's own number."""
        return self.replicas or -1

    @property
    def record_bytes_max(self) -> int:
        """The least `max.message.bytes` of the group's topics, in bytes."""
        return max(self.body_size_max + RECORD_OVERHEAD_MAX, BATCH_BYTES) + BATCH_OVERHEAD

    @property
    def is_transactional(self) -> bool:
        """Whether targets and ops are published in transactions."""
        return self.release == TRANSACTION

    @property
    def release_timeout_s(self) -> float:
        """Longest time, in seconds, from handing a release over until it is settled."""
        return self.transaction_timeout_s if self.is_transactional else self.delivery_timeout_s

    def connection(self) -> dict[str, Any]:
        """Return the driver's settings for every client of this backend, including the passwords.

        Raises:
            ConfigError: the file of a token cannot be used.
        """
        config: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "client.id": "txcore",
            "allow.auto.create.topics": False,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "socket.timeout.ms": 10_000,
            "socket.nagle.disable": True,
            "log_level": 2,
        }
        config["security.protocol"] = ("SASL_" if self.sasl else "") + ("SSL" if self.is_encrypted else "PLAINTEXT")
        files_and_names = {
            "ssl.ca.location": self.tls_ca,
            "ssl.certificate.location": self.tls_cert,
            "ssl.key.location": self.tls_key,
            "ssl.key.password": self.tls_key_password,
            "sasl.mechanism": self.sasl,
        }
        config |= {key: value for key, value in files_and_names.items() if value}
        if not self.tls_verify:
            config["enable.ssl.certificate.verification"] = False
        return config | self._login()

    def _login(self) -> dict[str, Any]:
        if self.token_file:
            return {"oauth_cb": file_tokens(self.token_file)}
        if self.token_url:
            given = {"scope": self.token_scope, "client.id": self.user, "client.secret": self.password}
            found = {f"sasl.oauthbearer.{key}": value for key, value in given.items() if value}
            found |= {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": self.token_url}
            return found | ({"https.ca.location": self.token_ca} if self.token_ca else {})
        return {"sasl.username": self.user, "sasl.password": self.password} if self.sasl else {}


def parse_url(url: str) -> Options:
    """Return the settings in *url*, `kafka://user:password@host:port,host:port?option=value`.

    Raises:
        ConfigError: the URL names no host, or an option is unknown, of the wrong kind or out of range; `key` names it.
    """
    if split_url(url).path not in {"", "/"}:
        raise ConfigError("a kafka:// URL has no path: kafka://host:9092?option=value", key="url")
    user, password = account_of(url)
    servers = ",".join(map(str, servers_of(url, PORT_DEFAULT)))
    options = parse_options(Options, url, servers=servers, user=user, password=password or "")
    sasl = options.sasl or (BEARER if options.token_url or options.token_file else "PLAIN" if user else "")
    options = replace(options, sasl=sasl)
    _check_login(options)
    return options


def _check_login(options: Options) -> None:
    """Refuse options of a login that do not belong together.

    Raises:
        ConfigError: `key` names one of them.
    """
    has_token = bool(options.token_url or options.token_file)
    if options.sasl == BEARER and not has_token:
        raise ConfigError(f"sasl={BEARER} needs token_url or token_file", key="sasl")
    if options.sasl != BEARER and has_token:
        key = "token_url" if options.token_url else "token_file"
        raise ConfigError(f"{key} is for sasl={BEARER}, not {options.sasl}", key=key)
    if options.token_url and options.token_file:
        raise ConfigError("one source of tokens is enough: token_url and token_file are given", key="token_file")
    if options.token_file and options.user:
        raise ConfigError("token_file needs no user and password in the URL", key="token_file")
    if options.token_url and not options.token_url.startswith("https://"):
        raise ConfigError("token_url is an https address, as the client's secret is sent there", key="token_url")
    for key in ("token_scope", "token_ca"):
        if getattr(options, key) and not options.token_url:
            raise ConfigError(f"{key} needs token_url", key=key)
    if not options.user and (options.password or (options.sasl and not options.token_file)):
        raise ConfigError(
            "sasl needs a user and a password in the URL: kafka://user:password@host",
            key="token_url" if options.token_url else "sasl",
        )


@functools.lru_cache(maxsize=4_096)
def topic_name(group: str, kind: LogKind) -> str:
    """Return the topic that holds one kind of log of all partitions of a group."""
    return f"{NAME_PREFIX}.{group}.{kind.value}"


def check_group_name(group: str) -> None:
    """Refuse a group's name that cannot be part of a topic's name.

    Raises:
        ConfigError: it has other characters, or too many.
    """
    if not TOPIC_NAME.fullmatch(group) or len(group) > GROUP_NAME_SIZE_MAX:
        text = f"a group on Kafka has a name of letters, digits, '.', '_' and '-', not {group!r}"
        raise ConfigError(text, key="group")


def check_target_name(topic: str) -> None:
    """Refuse a name to which no application may publish.

    Raises:
        MessageRejectedError: Kafka has no topics of this name, or the topic belongs to txcore or to Kafka itself.
    """
    if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        text = f"{topic!r} is no topic of Kafka: letters, digits, '.', '_' and '-', at most 249 of them"
        raise MessageRejectedError(text, topic=topic, reason="topic")
    if is_own_topic(topic):
        raise MessageRejectedError(f"{topic!r} is not for messages", topic=topic, reason="topic")


def checkpoint_topic(group: str) -> str:
    """Return the topic that holds the last checkpoint of each partition."""
    return f"{NAME_PREFIX}.{group}.checkpoint"


def is_own_topic(topic: str) -> bool:
    """Return whether *topic* belongs to txcore or to Kafka itself, so that no application may publish to it."""
    ours = (*(kind.value for kind in LogKind), "checkpoint")
    return topic.startswith("__") or (topic.startswith(f"{NAME_PREFIX}.") and topic.rpartition(".")[2] in ours)


def consumer_group(group: str) -> str:
    """Return the Kafka consumer group whose members are the checkers of a group."""
    return f"{NAME_PREFIX}.{group}"


def transactional_id_prefix(group: str) -> str:
    """Return the beginning of the transactional ids of a group, and of no other group."""
    return f"{consumer_group(group)}{GROUP_END}"


def topic_settings(options: Options, group: str) -> Mapping[str, Mapping[str, str]]:
    """Return topic -> settings for a group's topics; the half topic is last, as it means that all others exist."""
    retention_ms = round(options.half_retention_s * 1000)
    log = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.bytes": "-1",
        "max.message.bytes": str(max(options.record_bytes_max, TOPIC_BYTES_DEFAULT)),
    }
    compacted = {
        "cleanup.policy": "compact",
        "max.message.bytes": log["max.message.bytes"],
        "segment.bytes": "1048576",
        "segment.ms": "3600000",
    }
    return MappingProxyType(
        {
            topic_name(group, LogKind.OP): log | {"retention.ms": str(2 * retention_ms)},
            topic_name(group, LogKind.PARKED): log | {"retention.ms": "-1"},
            checkpoint_topic(group): compacted,
            topic_name(group, LogKind.HALF): log | {"retention.ms": str(retention_ms)},
        }
    )
