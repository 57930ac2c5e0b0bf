"""Reading logs to their end without owning them: for operators and tools.

Only the op log has an end that can be proved: a tick of one's own, read back. A half or parked log is taken to be
at its end when nothing has arrived for `quiet_s`; on a slow broker give it longer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, DataLossError
from txcore.port import Backend, Reader
from txcore.records import LogKind, LogRecord, Position

POLL_S: Final = 0.01
READ_COUNT_MAX: Final = 1_000


@dataclass(slots=True)
class _Open:
    reader: Reader
    nonce: bytes | None
    records: list[LogRecord] = field(default_factory=list)
    quiet_since_s: float = 0.0
    is_done: bool = False


def read_to_end(
    backend: Backend,
    clock: Clock,
    group: str,
    kind: LogKind,
    starts: Mapping[int, Position | None],
    *,
    nonces: Mapping[int, bytes] | None = None,
    quiet_s: float = 0.25,
    timeout_s: float = 30.0,
) -> dict[int, list[LogRecord]]:
    """Read one kind of log in several partitions at once.

    Args:
        starts: Where to start, per partition; None for the very beginning, or what is left of it.
        nonces: Per partition, the tick at which the op log ends; None for logs that end when they fall quiet.

    Raises:
        BackendTimeoutError: an end was not reached within *timeout_s*.
    """
    now_s = clock.elapsed_s()
    deadline_s = now_s + timeout_s
    logs = {
        partition: _Open(
            backend.read(group, kind, partition, start), None if nonces is None else nonces[partition], [], now_s
        )
        for partition, start in starts.items()
    }
    try:
        while any(not log.is_done for log in logs.values()):
            count = 0
            for partition, log in logs.items():
                if not log.is_done:
                    count += _read_some(backend, group, kind, partition, log)
                    _look_for_end(log, clock.elapsed_s(), quiet_s)
            if clock.elapsed_s() > deadline_s:
                raise BackendTimeoutError(f"the {kind.value} log of {group!r} could not be read to its end")
            if not count:
                time.sleep(POLL_S)
    finally:
        for log in logs.values():
            log.reader.close()
    return {partition: log.records for partition, log in logs.items()}


def _read_some(backend: Backend, group: str, kind: LogKind, partition: int, log: _Open) -> int:
    try:
        batch = log.reader.read(READ_COUNT_MAX)
    except DataLossError as loss:
        log.reader.close()
        first = None if loss.first is None else Position(loss.first)
        log.reader = backend.read(group, kind, partition, first)
        return 1
    log.records.extend(batch)
    if batch:
        log.quiet_since_s = -1.0
    if log.nonce is not None and any(log.nonce in record.body for record in batch):
        log.is_done = True
    return len(batch)


def _look_for_end(log: _Open, now_s: float, quiet_s: float) -> None:
    if log.quiet_since_s < 0:
        log.quiet_since_s = now_s
    elif log.nonce is None and now_s - log.quiet_since_s >= quiet_s:
        log.is_done = True
