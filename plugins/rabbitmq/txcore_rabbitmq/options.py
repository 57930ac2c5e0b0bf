"""What a `rabbitmq://` URL may say, and the names and arguments of the streams of a group."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from txcore.errors import ConfigError
from txcore.records import LogKind

NAME_PREFIX: Final = "txc"
SHORT_STRING_BYTES_MAX: Final = 255
"""AMQP's limit on names of queues and exchanges, routing keys and header names."""
HEADERS_BYTES_MAX: Final = 64 * 1024
"""All headers of a message travel in one frame; a larger frame than negotiated (128 KiB by default, ours included)
costs the whole connection."""
PARKED_SEGMENT_BYTES: Final = 20_000_000
CHECKPOINT_SEGMENT_BYTES: Final = 1_000_000
CHECKPOINT_LENGTH_BYTES: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """One backend's settings; each field from `partitions` on is a query parameter of the URL.

    Attributes:
        delivery_timeout_s: From handing an item over to its being settled.
        merge_delay_s: How long an op may wait for others to share its record.
        heartbeat_s: Heartbeat of the publishing and the reading connection.
        claim_heartbeat_s: Heartbeat of a claim's connection; a frozen owner is noticed after two to three.
        half_retention_s: `x-max-age` of the half streams; ops are kept twice as long.
        half_segment_bytes: Segment size of the half streams; retention frees whole segments only.
        half_length_bytes: `x-max-length-bytes` of the half streams; 0 for none. A full stream drops its oldest halves.
        body_size_max: Largest half record; must leave room below the broker's `max_message_size`.
    """

    host: str = "127.0.0.1"
    port: int = 5672
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - RabbitMQ's own default
    vhost: str = "/"
    partitions: int = 4
    delivery_timeout_s: float = 2.0
    merge_delay_s: float = 0.005
    connect_timeout_s: float = 2.0
    heartbeat_s: int = 10
    claim_heartbeat_s: int = 5
    half_retention_s: int = 7 * 86_400
    half_segment_bytes: int = 50_000_000
    half_length_bytes: int = 0
    op_segment_bytes: int = 20_000_000
    body_size_max: int = 1_000_000


def parse_url(url: str) -> Options:
    """Return the settings in *url*, `rabbitmq://user:password@host:port/vhost?option=value`.

    Raises:
        ConfigError: an option is unknown or not a number; `key` names it.
    """
    parts = urlsplit(url)
    values: dict[str, Any] = {}
    if parts.hostname:
        values["host"] = parts.hostname
    if parts.port:
        values["port"] = parts.port
    if parts.username:
        values["user"] = unquote(parts.username)
    if parts.password:
        values["password"] = unquote(parts.password)
    if len(parts.path) > 1:
        values["vhost"] = unquote(parts.path[1:])
    kinds = {field.name: float if "float" in str(field.type) else int for field in fields(Options)[5:]}
    for key, text in parse_qsl(parts.query, keep_blank_values=True):
        if key not in kinds:
            raise ConfigError(f"unknown option {key!r}; known options: {', '.join(kinds)}", key=key)
        try:
            values[key] = kinds[key](text)
        except ValueError as error:
            raise ConfigError(f"option {key} is a number, not {text!r}", key=key) from error
        if values[key] < 0:
            raise ConfigError(f"option {key} is not negative, unlike {text}", key=key)
    return Options(**values)


def log_name(group: str, kind: LogKind, partition: int) -> str:
    """Return the stream that holds one log of one partition."""
    return f"{NAME_PREFIX}.{group}.{kind.value}.{partition}"


def checkpoint_name(group: str, partition: int) -> str:
    """Return the stream that holds a partition's checkpoints."""
    return f"{NAME_PREFIX}.{group}.checkpoint.{partition}"


def claim_name(group: str, partition: int) -> str:
    """Return the exclusive queue that hints at a partition's owner."""
    return f"{NAME_PREFIX}.{group}.claim.{partition}"


def stream_arguments(options: Options, group: str, partition: int) -> dict[str, dict[str, Any]]:
    """Return name -> arguments of a partition's streams; the half stream comes last, as its presence means all."""
    stream: dict[str, Any] = {"x-queue-type": "stream"}
    long_s = 2 * options.half_retention_s
    half = stream | {
        "x-max-age": f"{options.half_retention_s}s",
        "x-stream-max-segment-size-bytes": options.half_segment_bytes,
    }
    if options.half_length_bytes:
        half["x-max-length-bytes"] = options.half_length_bytes
    return {
        log_name(group, LogKind.OP, partition): stream
        | {"x-max-age": f"{long_s}s", "x-stream-max-segment-size-bytes": options.op_segment_bytes},
        log_name(group, LogKind.PARKED, partition): stream
        | {"x-max-age": f"{long_s}s", "x-stream-max-segment-size-bytes": PARKED_SEGMENT_BYTES},
        checkpoint_name(group, partition): stream
        | {
            "x-max-length-bytes": CHECKPOINT_LENGTH_BYTES,
            "x-stream-max-segment-size-bytes": CHECKPOINT_SEGMENT_BYTES,
        },
        log_name(group, LogKind.HALF, partition): half,
    }
