"""The broker objects of a group: their names and arguments; and limits of AMQP."""

from __future__ import annotations

from typing import Any, Final

from txcore.records import LogKind
from txcore_rabbitmq.options import Options

NAME_PREFIX: Final = "txc"
NOWHERE: Final = f"{NAME_PREFIX}.nowhere"
"""A routing key without a queue; no client may declare a queue of this name."""
SHORT_STRING_BYTES_MAX: Final = 255
"""AMQP's limit, in bytes, on names of queues and exchanges, routing keys and header names."""
HEADERS_BYTES_MAX: Final = 64 * 1024
"""Most bytes of all headers of a message, which are sent in one frame. A larger frame than negotiated (128 KiB by
default, with txcore's own headers) ends the whole connection."""
PARKED_SEGMENT_BYTES: Final = 20_000_000
CHECKPOINT_SEGMENT_BYTES: Final = 1_000_000
CHECKPOINT_LENGTH_BYTES: Final = 2_000_000
SEGMENT_ARGUMENT: Final = "x-stream-max-segment-size-bytes"
AGE_ARGUMENT: Final = "x-max-age"
LOG_EXCHANGE_TYPE: Final = "direct"
"""Type of the exchanges of a group's streams; the name of a stream is its routing key."""


def log_name(group: str, kind: LogKind, partition: int) -> str:
    """Return the name of the stream that holds one log of one partition."""
    return f"{NAME_PREFIX}.{group}.{kind.value}.{partition}"


def checkpoint_name(group: str, partition: int) -> str:
    """Return the name of the stream that holds a partition's checkpoints."""
    return f"{NAME_PREFIX}.{group}.checkpoint.{partition}"


def claim_name(group: str, partition: int, substitute: int = 0) -> str:
    """Return the name of the exclusive queue that is a partition's lock, or of its *substitute*-th replacement."""
    name = f"{NAME_PREFIX}.{group}.claim.{partition}"
    return f"{name}.{substitute}" if substitute else name


def logs_name(group: str) -> str:
    """Return the name of the exchange for halves and ops, which producers and checkers publish."""
    return f"{NAME_PREFIX}.{group}.logs"


def checks_name(group: str) -> str:
    """Return the name of the exchange for parked records and checkpoints, which checkers alone publish."""
    return f"{NAME_PREFIX}.{group}.checks"


def log_exchange(group: str, kind: LogKind) -> str:
    """Return the name of the exchange that leads to the streams of one log."""
    return checks_name(group) if kind is LogKind.PARKED else logs_name(group)


def stream_exchanges(group: str, partition: int) -> dict[str, str]:
    """Return stream -> exchange for a partition's streams. A user's rights can be limited to one exchange only."""
    logs = {log_name(group, kind, partition): log_exchange(group, kind) for kind in LogKind}
    return logs | {checkpoint_name(group, partition): checks_name(group)}


def members_name(group: str) -> str:
    """Return the name of the exchange for the announcements of a group's members."""
    return f"{NAME_PREFIX}.{group}.members"


def member_name(group: str, member: str, number: int) -> str:
    """Return the name of the exclusive queue from which one member reads announcements; *member* is unique.

    Each connection of the member has its own *number*: the queue of the previous one stays locked while its node is
    down.
    """
    name = f"{NAME_PREFIX}.{group}.member.{number}.{member.rpartition('#')[2]}"
    return name.encode()[:SHORT_STRING_BYTES_MAX].decode(errors="ignore")


def stream_arguments(options: Options, group: str, partition: int) -> dict[str, dict[str, Any]]:
    """Return name -> arguments of a partition's streams; the half stream comes last, as it means that all exist.

    Parked records wait for an operator, so they never expire.
    """
    stream: dict[str, Any] = {"x-queue-type": "stream"}
    if options.replicas:
        stream["x-initial-cluster-size"] = options.replicas
    half = stream | {AGE_ARGUMENT: f"{options.half_retention_s}s", SEGMENT_ARGUMENT: options.half_segment_bytes}
    if options.half_length_bytes:
        half["x-max-length-bytes"] = options.half_length_bytes
    return {
        log_name(group, LogKind.OP, partition): stream
        | {AGE_ARGUMENT: f"{2 * options.half_retention_s}s", SEGMENT_ARGUMENT: options.op_segment_bytes},
        log_name(group, LogKind.PARKED, partition): stream | {SEGMENT_ARGUMENT: PARKED_SEGMENT_BYTES},
        checkpoint_name(group, partition): stream
        | {"x-max-length-bytes": CHECKPOINT_LENGTH_BYTES, SEGMENT_ARGUMENT: CHECKPOINT_SEGMENT_BYTES},
        log_name(group, LogKind.HALF, partition): half,
    }
