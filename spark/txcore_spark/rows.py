"""The schema of all landed rows (logs, targets, fence tables), and the conversion of records to rows.

A row is one fact: one message that a half declares, one op, one target, one fence row, one parked record; or the
cover of a range that was read, or the reason why it was not. Aggregated columns hold no strings.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from txcore import digest, wire
from txcore.audit.targets import target_digest, target_place
from txcore.audit.verdicts import OPS_PER_RECORD
from txcore.errors import NewerRecordError, WireFormatError
from txcore.history.copies import is_copy
from txcore.records import DECIDING_KINDS, MARK_KINDS, WALL_MS_MAX, Half, LogKind, Op, OpKind, ParkCode
from txcore.signed_records import unsigned
from txcore.signing import GroupKeys

BUCKET_MS: Final = 3_600_000
"""Length, in milliseconds, of the bucket of births by which transactions are stored: one hour."""
MARKS: Final = 0
"""Bucket of the CLAIM and TICK ops, which belong to no transaction."""
NO_ID: Final = bytes(16)
_NOWHERE: Final = (NO_ID, 0)
"""Place of a message whose header names none: it has no half."""
DEADLINE_MS_MAX: Final = 1 << 61
"""Latest deadline, in milliseconds since 1970: a sum with it is still a 64-bit number."""
INDEX_MAX: Final = (1 << 31) - 1
FENCED: Final = 1
UNSEEN: Final = 2
"""Flags of a half: a fence decides it; the topic of this message is not read, which no landed row says."""


class Kind(enum.IntEnum):
    """Kind of fact that a row records."""

    HALF = 1  #: one message of a half; `count` messages in all
    OP = 2  #: `code` is the OpKind
    TARGET = 3
    ROW = 4  #: a fence row; `code` is its state, `place` counts the readings of the table
    PARKED = 5  #: `code` numbers the park code
    COPY = 6  #: a half record that is a copy: `place` is where the op log has its proof, `text` is the proof
    #: a range [position, place) was read whole; it held `hash` records: `count` not txcore's, `index` of a newer one
    COVER = 8
    COST = 10  #: `hash` milliseconds of processor time were spent on a range
    GAP = 9  #: a range [position, place) could not be read; `text` says why


PARK_NUMBERS: Final[Mapping[str, int]] = {code.value: number for number, code in enumerate(ParkCode, start=1)}
"""Park codes as numbers."""

SCHEMA: Final = pa.schema(
    [
        ("tx", pa.binary()),
        ("bucket", pa.int32()),
        ("kind", pa.int32()),
        ("code", pa.int32()),
        ("backend", pa.int32()),
        ("group", pa.int32()),
        ("source", pa.int32()),
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("place", pa.int64()),
        ("ts_ms", pa.int64()),
        ("generation", pa.int32()),
        ("index", pa.int32()),
        ("count", pa.int32()),
        ("hash", pa.int64()),
        ("token", pa.int64()),
        ("decision", pa.int32()),
        ("flags", pa.int32()),
        ("deadline_ms", pa.int64()),
        ("topic", pa.string()),
        ("text", pa.string()),
        ("digest_high", pa.int64()),
        ("digest_low", pa.int64()),
        ("digest", pa.binary()),
    ]
)
"""The schema in Arrow's types.

`digest_high` and `digest_low` are the first 16 bytes of the digest of a transaction's messages: of a half in its first
row, of a fence row as the database has it; of a target, as if it were its transaction's only message. Numbers, because
Spark aggregates no bytes in place. `digest` is the whole digest of one target.
"""
SPARK_SCHEMA: Final = ", ".join(
    f"`{name}` {({'binary': 'binary', 'int32': 'int', 'int64': 'bigint', 'string': 'string'})[str(kind)]}"
    for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
)
"""The same schema in Spark's notation."""

Row: TypeAlias = tuple[Any, ...]
NO_DIGEST: Final[Row] = (None, None, None)
KEPT_OPS: Final = DECIDING_KINDS | MARK_KINDS | {OpKind.DISCARD, OpKind.DECIDED, OpKind.FORCE}
"""Ops on which verdicts rest; a tick may be the proof of a copy. Checks and nudges say nothing about the end."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place at which a record was read.

    Attributes:
        backend, source, partition: Numbers that the plan gives to brokers and to their logs and topics.
        group: Number of the group whose log it is; -1 for a topic of targets.
        check_max, interval_ms, immunity_ms: The checker's own policy for such halves.
    """

    backend: int
    source: int
    partition: int
    group: int = -1
    check_max: int = 15
    interval_ms: int = 30_000
    immunity_ms: int = 0


@dataclass(slots=True)
class Rows:
    """Rows of one place that are collected for Arrow batches."""

    place: Place
    groups: Mapping[str, int] = field(default_factory=dict)
    keys: GroupKeys | None = None  #: of a group that signs: other records of its logs are strange
    group: str = ""  #: the group of such a log
    secret: bytes = b""  #: key of the hashes
    found: list[Row] = field(default_factory=list)
    strange: int = 0  #: records that txcore did not write, or that are damaged
    newer: int = 0  #: records that a newer txcore wrote

    def add_half(self, position: int, body: bytes, appended_ms: int | None) -> None:
        """Add a record of a half log: one row per message, and one more if it is a copy."""
        try:
            half = wire.decode_half(self._opened(LogKind.HALF, body))
        except WireFormatError as error:
            self._pass_over(error)
            return
        place, bucket = self.place, bucket_of(half.transaction_id)
        digests = [digest.message_digest(each.topic, each.key, each.body, each.headers) for each in half.messages]
        of_half = (*numbers_of(digest.joined(digests)), None)
        ts_ms = _time_ms(half.born_ms if appended_ms is None else appended_ms)
        deadline_ms = min(ts_ms + self._patience_ms(half), DEADLINE_MS_MAX)
        decided = OpKind.COMMIT if half.final_at >= 0 else half.decided
        for index, message in enumerate(half.messages or [None]):
            flags = FENCED if half.fence_decides else 0
            topic = None if message is None else message.topic
            self.found.append(
                (
                    half.transaction_id, bucket, 1, 0, place.backend, place.group, place.source, place.partition,
                    position, position * OPS_PER_RECORD, ts_ms, half.generation, index, len(half.messages),
                    0 if message is None else message_hash(half.group, index, digests[index], key=self.secret), 0,
                    decided, flags, deadline_ms, topic, half.reason or None, *(NO_DIGEST if index else of_half),
                )
            )  # fmt: skip
        if is_copy(half):
            self._add_copy(position, half, ts_ms)

    def _add_copy(self, position: int, half: Half, ts_ms: int) -> None:
        place = self.place
        self.found.append(
            (
                half.transaction_id, bucket_of(half.transaction_id), 6, 0, place.backend, place.group, place.source,
                place.partition, position, half.proved_at, ts_ms, half.generation, 0, 0, 0, 0, 0, 0, 0, None,
                wire.proof_of(half).hex(), *NO_DIGEST,
            )
        )  # fmt: skip

    def _pass_over(self, error: WireFormatError) -> None:
        if isinstance(error, NewerRecordError):
            self.newer += 1
        else:
            self.strange += 1

    def _opened(self, kind: LogKind, body: bytes) -> bytes:
        """Return the record in *body*; without the group's keys, its signature is not looked at."""
        if self.keys is None:
            return unsigned(body)
        return self.keys.opened(self.group, self.place.partition, kind, body)

    def _patience_ms(self, half: Half) -> int:
        checks = (half.check_max or self.place.check_max) * (half.interval_ms or self.place.interval_ms)
        return max(half.immunity_ms, self.place.immunity_ms) + checks

    def add_ops(self, position: int, body: bytes, appended_ms: int | None) -> None:
        """Add a record of an op log."""
        try:
            ops = wire.decode_ops(self._opened(LogKind.OP, body))
        except WireFormatError as error:
            self._pass_over(error)
            return
        for number, op in enumerate(ops):
            if op.kind in KEPT_OPS:
                self._add_op(position, min(number, OPS_PER_RECORD - 1), op, appended_ms)

    def _add_op(self, position: int, number: int, op: Op, appended_ms: int | None) -> None:
        place = self.place
        is_discard = op.kind == OpKind.DISCARD
        decision = OpKind.COMMIT if op.kind == OpKind.COMMITTED else op.decision
        bucket = MARKS if op.kind in MARK_KINDS else bucket_of(op.transaction_id)  # a mark's id is a nonce
        text = f"{op.by}: {op.reason}" if op.forced or is_discard else None
        self.found.append(
            (
                op.transaction_id, bucket, 2, op.kind, place.backend, place.group, place.source,
                place.partition, position, position * OPS_PER_RECORD + number,
                _time_ms(op.at_ms if appended_ms is None else appended_ms), op.generation, 0, op.count, 0,
                hash_of(op.token), PARK_NUMBERS.get(op.reason, 0) if is_discard else decision, op.forced, 0, None,
                text, *NO_DIGEST,
            )
        )  # fmt: skip

    def add_target(
        self,
        position: int,
        topic: str,
        key: bytes | None,
        body: bytes,
        headers: Mapping[str, str | bytes],
        appended_ms: int | None,
    ) -> None:
        """Add a message of a target topic, unless its producer group is not audited here."""
        name, group_name = _text(headers.get(wire.HEADER_ID)), _text(headers.get(wire.HEADER_GROUP))
        group = self.groups.get(group_name, -1)
        if group < 0 or ":" not in name:
            self.strange += 1
            return
        transaction_id, number = target_place(name) or _NOWHERE
        if number > INDEX_MAX:
            transaction_id, number = _NOWHERE
        place = self.place
        message = target_digest(topic, key, body, headers)
        self.found.append(
            (
                transaction_id, bucket_of(transaction_id), 3, 0, place.backend, group, place.source, place.partition,
                position, position * OPS_PER_RECORD, None if appended_ms is None else _time_ms(appended_ms), 0, number,
                0,
                message_hash(group_name, number, message, _text(headers.get(wire.HEADER_DUE)), self.secret), 0, 0, 0, 0,
                topic, None,
                *numbers_of(digest.joined([message])), message,
            )
        )  # fmt: skip

    def add_parked(self, position: int, body: bytes, appended_ms: int | None) -> None:
        """Add a record of a parked log."""
        try:
            parked = wire.decode_parked(self._opened(LogKind.PARKED, body))
        except WireFormatError as error:
            self._pass_over(error)
            return
        if parked.code == ParkCode.CLOSED:
            return  # says that nothing is parked; the final op after it is what counts
        place = self.place
        self.found.append(
            (
                parked.transaction_id, bucket_of(parked.transaction_id), 5, PARK_NUMBERS.get(parked.code, 0),
                place.backend, place.group, place.source, place.partition, position, position * OPS_PER_RECORD,
                _time_ms(parked.at_ms if appended_ms is None else appended_ms), parked.generation, 0, parked.count, 0,
                hash_of(parked.token), 0, 0, 0, None, f"{parked.code}: {parked.reason}", *NO_DIGEST,
            )
        )  # fmt: skip

    def add_fence_row(
        self,
        transaction_id: bytes,
        state: int,
        reading: int,
        *,
        is_early: bool,
        group: int | None = None,
        content: bytes | None = None,
    ) -> None:
        """Add a row of a fence table, of this group or the place's, as seen in the reading with this number.

        *content* is the digest in it.
        """
        place = self.place
        numbers = numbers_of(content) if content and len(content) == digest.DIGEST_BYTES else (None, None)
        number = place.group if group is None else group
        self.found.append(
            (
                transaction_id, bucket_of(transaction_id), 4, state, place.backend, number, place.source,
                place.partition, 0, reading, None, 0, 0, 0, 0, 0, 0, 1 if is_early else 0, 0, None, None,
                *numbers, None,
            )
        )  # fmt: skip

    def add_cover(self, start: int, end: int, count: int) -> None:
        """Record that [start, end) was read whole."""
        self._add_range(Kind.COVER, start, end, count, None)

    def add_gap(self, start: int, end: int, why: str) -> None:
        """Record that [start, end) was not read whole, and why."""
        self._add_range(Kind.GAP, start, end, 0, why)

    def add_cost(self, cpu_ms: int) -> None:
        """Record the processor time that reading the range took."""
        self._add_range(Kind.COST, 0, 0, cpu_ms, None)

    def _add_range(self, kind: Kind, start: int, end: int, count: int, why: str | None) -> None:
        place = self.place
        self.found.append(
            (
                NO_ID, 0, int(kind), 0, place.backend, place.group, place.source, place.partition, start, end, None,
                0, self.newer, self.strange, count, 0, 0, 0, 0, None, why, *NO_DIGEST,
            )
        )  # fmt: skip

    def take(self) -> pa.RecordBatch:
        """Return the rows added since the last call as one batch."""
        batch = batch_of(self.found)
        self.found = []
        return batch


def _time_ms(value: int) -> int:
    """Return a broker's time, which is any 64-bit number, within the years that engines can reckon with."""
    return min(max(value, 0), WALL_MS_MAX)


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as an Arrow batch of the schema."""
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def bucket_of(transaction_id: bytes) -> int:
    """Return the hour of an id's birth, which all rows of a transaction share."""
    return int.from_bytes(transaction_id[:6], "big") // BUCKET_MS


def joined_headers(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """Return headers by name: the last one of a name, as most consumers read it, and the others under other names.

    So the target of a message with a doubled header is not the half's, whichever of the two is the evil one.
    """
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in found:
            found[f"{name}\0{len(found)}"] = found[name]
        found[name] = value or b""
    return found


def message_hash(group: str, index: int, message: bytes, due: str = "", key: bytes = b"") -> int:
    """Return a 64-bit hash of a message's digest, its group and its index.

    The group is part of it, because its header may be another group's. So is the index: sums over a transaction differ
    when two messages have changed places. So is the time at which it was due, by which an inbox knows a message; a half
    has none.
    """
    # Sums of hashes are compared. Without the key, other messages with the same sum are found within seconds.
    names = f"{group}\0{due}" if due else group
    return hash_of(message + index.to_bytes(4, "big") + names.encode("utf-8", "surrogatepass"), key)


def numbers_of(whole: bytes) -> tuple[int, int]:
    """Return the first 16 bytes of a digest as two numbers."""
    return int.from_bytes(whole[:8], "big", signed=True), int.from_bytes(whole[8:16], "big", signed=True)


def hash_of(data: bytes, key: bytes = b"") -> int:
    """Return a 64-bit hash of *data*, which only the holders of *key* can compute; 0 for None."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "big", signed=True) if data else 0


def _text(value: str | bytes | None) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value or ""
