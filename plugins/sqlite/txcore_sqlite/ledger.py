"""One open transaction: the rows of halves, releases and marks, and the outcome of each item.

Every item is checked before its rows are added, so that a refused item leaves no rows and does not affect the others.
Rows are collected in memory and inserted together, just before COMMIT.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from txcore import wire
from txcore.errors import ConfigError, MessageRejectedError, TxcoreError
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
from txcore_sqlite.catalog import Catalog, Partition
from txcore_sqlite.codec import encode_headers
from txcore_sqlite.options import Options
from txcore_sqlite.store import RowWriter

LOOKUP_IDS_MAX: Final = 256
"""Ids in one SELECT; a power of two, as shorter lists are filled up to one so that few statements are prepared."""

_LOG_COLUMNS: Final = "position, group_id, partition, body, appended_ms"
_HALVES: Final = RowWriter("half", _LOG_COLUMNS)
_OPS: Final = RowWriter("op", _LOG_COLUMNS)
_PARKED: Final = RowWriter("parked", _LOG_COLUMNS)
_RESOLVED: Final = RowWriter("resolved", "transaction_id, group_id, generation, kind", replaces=True)
"""Of each generation the newest op: after a COMMITTED comes what ends it."""
_TARGETS: Final = RowWriter("target", "position, topic_id, key, body, headers, appended_ms")
_SELECT_RESOLVED: Final = "SELECT transaction_id, group_id, generation, kind FROM resolved"

_FENCED: Final = Outcome(Status.FENCED)
_Rows = list[Any]


class Ledger:
    """The open transaction of the writer's connection. Used by the writer's thread only."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, options: Options, now_ms: int) -> None:
        self.connection = connection
        self.catalog = catalog
        self.now_ms = now_ms
        self._options = options
        self._halves: _Rows = []
        self._ops: _Rows = []
        self._targets: _Rows = []
        self._parked: _Rows = []
        self._new_resolved: _Rows = []
        self._resolved: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
        self._looked_up: set[bytes] = set()
        catalog.refresh(connection)

    def append_halves(self, halves: Sequence[HalfRecord]) -> list[Outcome]:
        """Add halves and return the outcome that each has after the transaction is committed."""
        outcomes = []
        catalog, rows, now_ms = self.catalog, self._halves, self.now_ms
        topics, partitions = catalog.topics, catalog.partitions
        body_size_max = self._options.body_size_max + RECORD_OVERHEAD_MAX  # a carried copy is larger than its half
        for half in halves:
            partition = partitions.get((half.group, half.partition))
            if partition is None or len(half.body) > body_size_max:
                outcomes.append(self._refused_half(half, partition))
                continue
            unknown = [message.topic for message in half.messages if message.topic not in topics]
            if unknown:
                error = self._create_topics(unknown)
                if error is not None:
                    outcomes.append(Outcome(Status.REFUSED, error))
                    continue
            if "half" not in partition.begun:
                catalog.begin_log(self.connection, partition, LogKind.HALF)
            rows += (catalog.next, partition.group_id, half.partition, half.body, now_ms)
            catalog.next += 1
            outcomes.append(DURABLE)
        return outcomes

    def release(self, resolutions: Sequence[Resolution], *, fenced: bool) -> list[Outcome]:
        """Add targets, parked records and ops; *fenced* if a checker sent them under its claim."""
        self._look_up(
            resolution.op.transaction_id
            for resolution in resolutions
            if resolution.op is not None and resolution.op.kind in UNIQUE_KINDS
        )
        return [self._release(resolution, fenced=fenced) for resolution in resolutions]

    def mark(self, group: str, number: int, op: Op, *, fenced: bool) -> Outcome:
        """Add a CLAIM, which changes the partition's owner, or a TICK."""
        partition = self.catalog.partitions.get((group, number))
        if partition is None:
            return Outcome(Status.REFUSED, _unknown_partition(group, number))
        if op.kind == OpKind.CLAIM:
            self.catalog.claim(self.connection, partition, op.token)
        elif fenced and op.token != partition.token:
            return _FENCED
        self._add_op(partition, op)
        return DURABLE

    def flush(self) -> None:
        """Insert the rows gathered so far."""
        connection = self.connection
        for writer, rows in (
            (_HALVES, self._halves),
            (_RESOLVED, self._new_resolved),
            (_TARGETS, self._targets),
            (_PARKED, self._parked),
            (_OPS, self._ops),
        ):
            if rows:
                writer.write(connection, rows)
                rows.clear()
        self.catalog.write(connection)

    def _release(self, resolution: Resolution, *, fenced: bool) -> Outcome:
        half, op = resolution.half, resolution.op
        partition = self.catalog.partitions.get((half.group, half.partition))
        if partition is None:
            return Outcome(Status.REFUSED, _unknown_partition(half.group, half.partition))
        if op is not None:
            if fenced and op.token != partition.token:
                return _FENCED
            if op.kind in UNIQUE_KINDS:
                holder = self._holder(op, partition.group_id)
                if holder:
                    return Outcome(Status.SUPERSEDED, decision=holder)
        if resolution.targets:
            refusal = self._publish(resolution)
            if refusal is not None:
                return refusal
        catalog = self.catalog
        if resolution.parked:
            if "parked" not in partition.begun:
                catalog.begin_log(self.connection, partition, LogKind.PARKED)
            self._parked += (catalog.next, partition.group_id, half.partition, resolution.parked, self.now_ms)
            catalog.next += 1
        if op is not None:
            if op.kind in UNIQUE_KINDS:
                self._resolve(op, partition.group_id)
            self._add_op(partition, op)
        return DURABLE

    def _publish(self, resolution: Resolution) -> Outcome | None:
        half, by, topics = resolution.half, resolution.by, self.catalog.topics
        messages = half.messages
        unknown = [messages[index].topic for index in resolution.targets if messages[index].topic not in topics]
        if unknown:
            error = self._create_topics(unknown)
            if error is not None:
                # All targets are missing: an atomic release that is refused published none.
                return Outcome(Status.REFUSED, error, missing=tuple(resolution.targets))
        group, identity, now_ms, position = half.group, half.transaction_id, self.now_ms, self.catalog.next
        rows: _Rows = []
        for index in resolution.targets:
            message: TargetMessage = messages[index]
            headers = wire.target_headers(group, identity, index, message, by, key_as_header=False)
            rows += (position, topics[message.topic], message.key, message.body, encode_headers(headers), now_ms)
            position += 1
        self._targets += rows
        self.catalog.next = position
        return None

    def _add_op(self, partition: Partition, op: Op) -> None:
        catalog = self.catalog
        if "op" not in partition.begun:
            catalog.begin_log(self.connection, partition, LogKind.OP)
        self._ops += (catalog.next, partition.group_id, partition.partition, wire.encode_ops((op,)), self.now_ms)
        catalog.next += 1

    def _look_up(self, identities: Iterable[bytes]) -> None:
        """Read the stored ends of the transactions *identities*, many with one statement."""
        wanted = [identity for identity in identities if identity not in self._looked_up]
        self._looked_up.update(wanted)
        for begin in range(0, len(wanted), LOOKUP_IDS_MAX):
            chunk = wanted[begin : begin + LOOKUP_IDS_MAX]
            width = 1 << (len(chunk) - 1).bit_length()
            chunk += chunk[:1] * (width - len(chunk))
            places = ",".join("?" * width)
            statement = f"{_SELECT_RESOLVED} WHERE transaction_id IN ({places})"
            for identity, group_id, generation, kind in self.connection.execute(statement, chunk).fetchall():
                self._resolved.setdefault((identity, group_id), []).append((generation, kind))

    def _holder(self, op: Op, group_id: int) -> int:
        """Return the kind of the end that excludes *op*, or 0; see `excludes`."""
        assert op.transaction_id in self._looked_up
        holder = 0
        for generation, kind in self._resolved.get((op.transaction_id, group_id), ()):
            if excludes(kind, generation, op):
                if kind != OpKind.DISCARD:
                    return kind
                holder = kind
        return holder

    def _resolve(self, op: Op, group_id: int) -> None:
        kind = int(op.kind)  # SQLite passes an enum member through its adapters, which is slow
        self._resolved.setdefault((op.transaction_id, group_id), []).append((op.generation, kind))
        self._new_resolved += (op.transaction_id, group_id, op.generation, kind)

    def _create_topics(self, names: Sequence[str]) -> TxcoreError | None:
        for name in dict.fromkeys(names):
            if not self._options.auto_create:
                return MessageRejectedError(
                    f"topic {name!r} does not exist; create it first, or open the backend with auto_create=true",
                    topic=name,
                    reason="topic",
                )
            try:
                name.encode()
            except UnicodeEncodeError as error:
                return MessageRejectedError(f"topic {name!r} is no text: {error}", topic=name, reason="topic")
        for name in names:
            if name not in self.catalog.topics:
                self.catalog.create_topic(self.connection, name)
        return None

    def _refused_half(self, half: HalfRecord, partition: Partition | None) -> Outcome:
        if partition is None:
            return Outcome(Status.REFUSED, _unknown_partition(half.group, half.partition))
        topic = half.messages[0].topic if half.messages else ""
        return Outcome(
            Status.REFUSED,
            MessageRejectedError(
                f"a half of {len(half.body)} bytes is more than body_size_max, {self._options.body_size_max}; "
                "send less at once, or a reference to the data",
                topic=topic,
                reason="size",
            ),
        )


def _unknown_partition(group: str, partition: int) -> ConfigError:
    return ConfigError(f"group {group!r} has no partition {partition} here; call ensure_group first", key="group")
