"""The data path: halves, releases and marks as commands, and the server's answers as outcomes."""

from __future__ import annotations

from typing import Any, Final

from txcore import wire
from txcore.errors import FULL, MessageRejectedError
from txcore.op_rules import excludes
from txcore.records import (
    DURABLE,
    RECORD_OVERHEAD_MAX,
    UNIQUE_KINDS,
    HalfRecord,
    LogKind,
    Op,
    OpKind,
    Outcome,
    Resolution,
    Status,
    TargetMessage,
)
from txcore_redis.errors import Failure, unknown_group
from txcore_redis.lanes import Command
from txcore_redis.options import Options
from txcore_redis.scripts import APPEND, PREFIX, RELEASE, ends_key, group_key, log_key

HEADER_PREFIX: Final = "h:"
"""Beginning of the fields of a target's entry that hold its headers, beside `key` and `body`."""


def append_command(half: HalfRecord, options: Options) -> Command:
    """Return the command that appends a half.

    Raises:
        MessageRejectedError: the half is too large, or a topic cannot be a target.
    """
    topics = tuple(dict.fromkeys(message.topic for message in half.messages))
    if len(half.body) > options.body_size_max + RECORD_OVERHEAD_MAX:  # a carried copy is larger than its half
        raise MessageRejectedError(
            f"a half of {len(half.body)} bytes is more than body_size_max, {options.body_size_max}; "
            "send less at once, or a reference to the data",
            topic=topics[0] if topics else "",
            reason="size",
        )
    for message in half.messages:
        _fields(message.topic, message, message.headers)
    log = log_key(half.group, LogKind.HALF, half.partition)
    return APPEND.call((group_key(half.group), log, *topics), half.partition, int(options.auto_create), half.body)


def release_command(resolution: Resolution, options: Options, *, is_fenced: bool) -> Command:
    """Return the command that releases targets, parked record and op at once.

    Raises:
        MessageRejectedError: a topic cannot be a target.
    """
    half, messages = resolution.half, resolution.half.messages
    fields: list[bytes | int] = []
    for index in resolution.targets:
        message = messages[index]
        headers = wire.target_headers(
            half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
        )
        entry = _fields(message.topic, message, headers)
        fields += [len(entry), *entry]
    topics = [messages[index].topic for index in resolution.targets]
    fixed = _op_arguments(half.partition, resolution.op, is_fenced=is_fenced)
    return RELEASE.call(
        (*_release_keys(half.group, half.partition), *topics),
        *fixed,
        resolution.parked,
        int(options.auto_create),
        *fields,
    )


def mark_command(group: str, partition: int, op: Op, *, is_fenced: bool) -> Command:
    """Return the command that appends a CLAIM or TICK."""
    fixed = _op_arguments(partition, op, is_fenced=is_fenced and op.kind != OpKind.CLAIM)
    return RELEASE.call(_release_keys(group, partition), *fixed, b"", 0)


def outcome_of(answer: Any, group: str, partition: int, targets: tuple[int, ...] = ()) -> Outcome:
    """Return the outcome of an item from its answer, or from the error for which it was not sent."""
    if isinstance(answer, MessageRejectedError):
        return Outcome(Status.REFUSED, answer, missing=targets)
    if isinstance(answer, Failure):
        missing = targets if answer.status is Status.UNKNOWN else ()
        return Outcome(answer.status, answer.error, missing=missing)
    word = answer[0]
    if word == b"stored":
        return DURABLE
    if word == b"superseded":
        return Outcome(Status.SUPERSEDED, decision=int(answer[1]))
    if word == b"fenced":
        return Outcome(Status.FENCED)
    if word == b"group":
        return Outcome(Status.REFUSED, unknown_group(group, partition))
    topic, reason = answer[1].decode(), word.decode()
    if reason == FULL:
        problem = "is full: it has the number of entries that txcore:limits allows it"
    elif answer[2] == b"none":
        problem = "does not exist; create it first"
    else:
        problem = f"is a key of type {answer[2].decode()}, not a stream"
    error = MessageRejectedError(f"topic {topic!r} {problem}", topic=topic, reason=reason)
    return Outcome(Status.REFUSED, error, missing=targets)


def _op_arguments(partition: int, op: Op | None, *, is_fenced: bool) -> tuple[bytes | str | int, ...]:
    if op is None:
        return (partition, 0, b"", 0, 0, 0, b"", b"")
    end_form = 0
    if op.kind in UNIQUE_KINDS:
        end_form = 1 if excludes(OpKind.COMMITTED, op.generation, op) else 2
    place = (op.generation, bytes(op.transaction_id), wire.encode_ops((op,)))
    return (partition, int(is_fenced), bytes(op.token), int(op.kind), end_form, *place)


def _release_keys(group: str, partition: int) -> tuple[str, ...]:
    logs = (log_key(group, kind, partition) for kind in (LogKind.OP, LogKind.PARKED))
    return (group_key(group), *logs, ends_key(group))


def _fields(topic: str, message: TargetMessage, headers: dict[str, Any]) -> list[bytes]:
    if not topic or topic.startswith(PREFIX):
        text = f"topic {topic!r} is no name for a stream: it is empty, or begins with {PREFIX}"
        raise MessageRejectedError(text, topic=topic, reason="topic")
    try:
        topic.encode()
        fields = [] if message.key is None else [b"key", message.key]
        fields += [b"body", message.body]
        for name, value in headers.items():
            fields += [(HEADER_PREFIX + name).encode(), value.encode() if isinstance(value, str) else value]
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"a message for {topic!r} holds text that is none: {error}", topic=topic) from error
    return fields
