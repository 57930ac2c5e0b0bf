"""The options of a `kafka://` URL, and the names and settings of a group's topics; nothing here needs the driver."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from txcore import ranges
from txcore.errors import ConfigError
from txcore.records import RECORD_OVERHEAD_MAX, LogKind

SCHEME: Final = "kafka"
PORT_DEFAULT: Final = 9092
NAME_PREFIX: Final = "txc"
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
GROUP_NAME_SIZE_MAX: Final = 230
"""Longest name of a group, in characters: a topic's name has at most 249, including the prefix and suffix of txcore."""
PARTITION_COUNT_MAX: Final = 256
BATCH_BYTES: Final = 1_000_000
"""The driver's `batch.size`, in bytes: a topic with a smaller limit gets its messages one by one."""
BATCH_OVERHEAD: Final = 200
"""Bytes of a record batch around the one record in it, rounded up."""
TOPIC_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's own default for `max.message.bytes`, in bytes."""
REQUEST_BYTES_MAX: Final = 200_000_000
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
STEPS: Final = "steps"
TRANSACTION: Final = "transaction"
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Options:
    """One backend's settings; each field from `release` on is a query parameter of the URL.

    Attributes:
        servers: `host:port`, comma separated.
        release: "steps" publishes targets, then the op; "transaction" both in one Kafka transaction.
        partitions: Partitions of a group that is created without a number; 1 to 256.
        replication_factor: Replicas of the created topics; -1 for the broker's `default.replication.factor`.
        delivery_timeout_s: Longest time from handing an item over until it is settled; 0.5 to 60.
        request_timeout_s: How long one control request may take; 0.5 to 60.
        body_size_max: Largest encoded half, in bytes; 1 KiB to 100 MB.
        half_retention_s: `retention.ms` of half topics, in seconds; ops are kept twice as long. At least a minute.
        session_timeout_s: A checker that is silent for so long loses its partitions; 6 to 1800, within the broker's
            `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.
        drain_s: How long a checker may finish its current work when its partitions are revoked; 0.1 to 60.
        silence_s: A checker whose own loop has not polled its claim for so long leaves the group; 1 to 3600.
        queue_max: Most records that wait for the broker in this process; above that, halves are refused.
        transaction_timeout_s: With release=transaction, how long a transaction may stay open; 2 to 60.
        transaction_sweep_s: With release=transaction, how often the broker looks for transactions that are open for too
            long: its `transaction.abort.timed.out.transaction.cleanup.interval.ms`, in seconds; 1 to 60.
        compression: none, gzip, snappy, lz4 or zstd.
        tls: Encrypt; implied by the three file names.
        sasl: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; PLAIN when the URL names a user.
    """

    servers: str = "127.0.0.1:9092"
    user: str = ""
    password: str = field(default="", repr=False)
    release: str = STEPS
    partitions: int = 4
    replication_factor: int = -1
    delivery_timeout_s: float = 3.0
    request_timeout_s: float = 5.0
    body_size_max: int = 1_000_000
    half_retention_s: float = 7 * 86_400.0
    session_timeout_s: float = 10.0
    drain_s: float = 5.0
    silence_s: float = 30.0
    queue_max: int = 100_000
    transaction_timeout_s: float = 10.0
    transaction_sweep_s: float = 10.0
    compression: str = "none"
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    sasl: str = ""

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
        """Return the driver's settings for every client of this backend, including the passwords."""
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
        is_tls = self.tls or bool(self.ca_file or self.certificate_file or self.key_file)
        config["security.protocol"] = ("SASL_" if self.sasl else "") + ("SSL" if is_tls else "PLAINTEXT")
        files_and_names = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
            "ssl.key.password": self.key_password,
            "sasl.mechanism": self.sasl,
        }
        config |= {key: value for key, value in files_and_names.items() if value}
        if self.sasl:
            config |= {"sasl.username": self.user, "sasl.password": self.password}
        return config


def parse_url(url: str, options: Mapping[str, str]) -> Options:
    """Return the settings in *url*, `kafka://user:password@host:port,host:port?option=value`.

    Raises:
        ConfigError: the URL names no host, or an option is unknown, of the wrong kind or out of range; `key` names it.
    """
    account, _, servers = urlsplit(url).netloc.rpartition("@")
    user, _, password = account.partition(":")
    values: dict[str, Any] = {
        "servers": ",".join(_server(each) for each in servers.split(",")),
        "user": unquote(user),
        "password": unquote(password),
    }
    if urlsplit(url).path not in {"", "/"}:
        raise ConfigError("a kafka:// URL has no path: kafka://host:9092?option=value", key="url")
    for key, text in options.items():
        values[key] = _value(key, text)
    if values["user"] and not values.get("sasl"):
        values["sasl"] = "PLAIN"
    if values.get("sasl") and not values["user"]:
        raise ConfigError("sasl needs a user and a password in the URL: kafka://user:password@host", key="sasl")
    if bool(values.get("certificate_file")) is not bool(values.get("key_file")):
        raise ConfigError("certificate_file and key_file belong together", key="certificate_file")
    return Options(**values)


@functools.lru_cache(maxsize=4_096)
def topic_name(group: str, kind: LogKind) -> str:
    """Return the topic that holds one kind of log of all partitions of a group."""
    return f"{NAME_PREFIX}.{group}.{kind.value}"


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


_RANGES: Final[Mapping[str, tuple[ranges.Kind, float, float]]] = {
    "partitions": (int, 1, PARTITION_COUNT_MAX),
    "replication_factor": (int, -1, 32_767),
    "delivery_timeout_s": (float, 0.5, 60),
    "request_timeout_s": (float, 0.5, 60),
    "body_size_max": (int, 1_024, 100_000_000),
    "half_retention_s": (float, 60, 10 * 365 * 86_400),
    "session_timeout_s": (float, 6, 1_800),
    "drain_s": (float, 0.1, 60),
    "silence_s": (float, 1, 3_600),
    "transaction_timeout_s": (float, 2, 60),
    "transaction_sweep_s": (float, 1, 60),
    "queue_max": (int, 1_000, 10_000_000),
}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "release": (STEPS, TRANSACTION),
    "compression": COMPRESSIONS,
    "sasl": SASL_MECHANISMS,
}
_TEXTS: Final = frozenset({"ca_file", "certificate_file", "key_file", "key_password"})


def _server(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ConfigError("a kafka:// URL names its brokers: kafka://host:9092,other:9092", key="url")
    return f"{host}:{port}"


def _value(key: str, text: str) -> bool | int | float | str:
    if key in _RANGES:
        value = ranges.parse(key, text, *_RANGES[key])
        if key == "replication_factor" and not value:
            raise ConfigError("replication_factor is a whole number from 1, or -1 for the broker's own, not 0", key=key)
        return value
    if key in _CHOICES:
        for choice in _CHOICES[key]:
            if text.lower() == choice.lower():
                return choice
        raise ConfigError(f"{key} is one of {', '.join(_CHOICES[key])}, not {text!r}", key=key)
    if key in _TEXTS:
        if not text:
            raise ConfigError(f"{key} is empty", key=key)
        return text
    if key == "tls":
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"tls is true or false, not {text!r}", key=key)
        return text.lower() in _TRUE
    known = ", ".join(sorted({*_RANGES, *_CHOICES, *_TEXTS, "tls"}))
    raise ConfigError(f"the kafka backend has no option {key!r}; it has {known}", key=key)
