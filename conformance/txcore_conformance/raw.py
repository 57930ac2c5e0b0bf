"""Records made by hand and sent through the port, for tests of the port."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from txcore import wire
from txcore.clock import SystemClock
from txcore.ids import IdFactory
from txcore.port import Backend, Claim, Reader
from txcore.records import (
    Half,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    ParkCode,
    Parked,
    Position,
    Resolution,
    Status,
    TargetMessage,
)
from txcore_conformance.kit import Kit, Recorder

BY: Final = "raw"
_ids: Final = IdFactory(SystemClock(), random.SystemRandom())


def half(
    kit: Kit,
    *topics: str,
    body: bytes = b"payload",
    key: bytes | None = b"key",
    headers: Mapping[str, str | bytes] | None = None,
    partition: int = 0,
    generation: int = 0,
    of: HalfRecord | None = None,
) -> HalfRecord:
    """Return a half with one message per topic; with *of*, a copy of that half."""
    identity = of.transaction_id if of is not None else _ids.new()
    messages = [TargetMessage(topic, key, body, dict(headers or {})) for topic in topics]
    envelope = Half(
        wire.VERSION, identity, kit.group, partition, generation, now_ms(), 6_000, 0, 0, False, BY, messages
    )
    return HalfRecord(kit.group, partition, identity, generation, wire.encode_half(envelope), messages)


def op(of: HalfRecord, kind: OpKind, token: bytes = b"", *, count: int = 0) -> Op:
    """Return an op about a half."""
    return Op(kind, of.transaction_id, of.generation, BY, now_ms(), token, count)


def commit(of: HalfRecord, token: bytes = b"", *, flush: bool = True, by: str = BY) -> Resolution:
    """Return the release of all targets with a COMMIT."""
    return Resolution(of, op(of, OpKind.COMMIT, token), range(len(of.messages)), b"", by, flush)


def target_only(group: str, topic: str, body: bytes) -> Resolution:
    """Return the release of one target without half and op; a second release is a repeated delivery."""
    half_record = HalfRecord(group, 0, _ids.new(), 0, b"", [TargetMessage(topic, None, body, {})])
    return Resolution(half_record, None, (0,), b"", BY)


def rollback(of: HalfRecord, token: bytes = b"", *, flush: bool = True) -> Resolution:
    """Return a ROLLBACK."""
    return Resolution(of, op(of, OpKind.ROLLBACK, token), (), b"", BY, flush)


def discard(of: HalfRecord, token: bytes = b"") -> Resolution:
    """Return a parked record with its DISCARD."""
    parked = Parked(
        wire.VERSION,
        of.transaction_id,
        of.generation,
        ParkCode.CHECKS_EXHAUSTED,
        "asked often enough",
        3,
        BY,
        now_ms(),
        token,
        of.body,
    )
    return Resolution(of, op(of, OpKind.DISCARD, token), (), wire.encode_parked(parked), BY, flush=True)


def append(kit: Kit, *halves: HalfRecord, backend: Backend | None = None) -> list[Outcome]:
    """Append halves as one batch and return their outcomes."""
    backend = backend or kit.backend
    batch = Recorder(halves)
    backend.append_halves(batch)
    return batch.wait(backend, kit.timeout_s)


def appended(kit: Kit, topic: str, count: int) -> list[HalfRecord]:
    """Append halves, each after the one before it was acknowledged, and return them in the order of their log.

    The order within one batch is not promised: a half whose target must be looked up first is appended later.
    """
    halves = [half(kit, topic) for _ in range(count)]
    for each in halves:
        assert statuses(append(kit, each)) == [Status.DURABLE]
    return halves


def release(
    kit: Kit, *resolutions: Resolution, claim: Claim | None = None, backend: Backend | None = None
) -> list[Outcome]:
    """Release resolutions as one batch and return their outcomes."""
    backend = backend or kit.backend
    batch = Recorder(resolutions)
    backend.release(batch, claim)
    return batch.wait(backend, kit.timeout_s)


def statuses(outcomes: Iterable[Outcome]) -> list[Status]:
    """Return the status of each outcome."""
    return [outcome.status for outcome in outcomes]


def mark(
    kit: Kit,
    kind: OpKind,
    token: bytes = b"",
    *,
    partition: int = 0,
    claim: Claim | None = None,
    backend: Backend | None = None,
) -> tuple[bytes, Outcome]:
    """Append a CLAIM or TICK; returns its nonce and its outcome."""
    nonce = token if kind is OpKind.CLAIM else secrets.token_bytes(16)
    record = Op(kind, nonce, 0, BY, now_ms(), token)
    return nonce, kit.wait((backend or kit.backend).mark(kit.group, partition, record, claim))


def read(
    kit: Kit,
    kind: LogKind,
    enough: Callable[[Sequence[LogRecord]], bool],
    *,
    partition: int = 0,
    start: Position | None = None,
    backend: Backend | None = None,
    count_max: int = 100,
    what: str = "all that was stored",
) -> list[LogRecord]:
    """Read a log from *start* until *enough* holds for the records read; *what* names these in a failure."""
    reader = (backend or kit.backend).read(kit.group, kind, partition, start)
    records: list[LogRecord] = []

    def is_enough() -> bool:
        batch = reader.read(count_max)
        assert len(batch) <= count_max
        records.extend(batch)
        return enough(records)

    try:
        kit.until(is_enough, lambda: f"{len(records)} records of the {kind.value} log were read, not {what},")
    finally:
        reader.close()
    return records


def read_to(kit: Kit, reader: Reader, end: int, *, count_max: int = 100) -> list[LogRecord]:
    """Read until *reader* has passed *end*; return the records read."""
    records: list[LogRecord] = []

    def has_passed() -> bool:
        if reader.passed >= end:
            return True
        records.extend(reader.read(count_max))
        return reader.passed >= end

    kit.until(has_passed, lambda: f"{len(records)} records were read, and all before {reader.passed}, not {end},")
    return records


def ops(kit: Kit, *, partition: int = 0, backend: Backend | None = None) -> list[Op]:
    """Return every op of a partition in log order, with marks, up to a tick written now."""
    nonce, _ = mark(kit, OpKind.TICK, partition=partition, backend=backend)
    records = read(kit, LogKind.OP, lambda found: nonce in _ids_of(found), partition=partition, backend=backend)
    return [each for record in records for each in wire.decode_ops(record.body) if each.transaction_id != nonce]


def halves(kit: Kit, count: int, **options: int) -> list[LogRecord]:
    """Return the first *count* records of a half log."""
    return read(
        kit,
        LogKind.HALF,
        lambda found: len(found) >= count,
        what=f"the {count} that are stored",
        **options,  # type: ignore[arg-type]
    )


def now_ms() -> int:
    """Return the wall clock time in milliseconds."""
    return time.time_ns() // 1_000_000


def _ids_of(records: Sequence[LogRecord]) -> set[bytes]:
    return {each.transaction_id for record in records for each in wire.decode_ops(record.body)}
