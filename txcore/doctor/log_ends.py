"""Reading logs to their end without owning them: for operators and tools.

An op log ends at a tick that the reader itself wrote; a half or parked log reports its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, DataLossError
from txcore.port import Backend, Reader
from txcore.records import LogKind, LogRecord, Position

POLL_S: Final = 0.01
READ_COUNT_MAX: Final = 1_000


@dataclass(slots=True)
class _Open:
    reader: Reader
    nonce: bytes | None
    end: Future[Position] | None  #: None where a nonce marks the end
    records: list[LogRecord] = field(default_factory=list)
    is_done: bool = False


def read_to_end(
    backend: Backend,
    clock: Clock,
    group: str,
    kind: LogKind,
    starts: Mapping[int, Position | None],
    *,
    nonces: Mapping[int, bytes] | None = None,
    timeout_s: float = 30.0,
) -> dict[int, list[LogRecord]]:
    """Read one kind of log in several partitions at once.

    Args:
        starts: The position to start at, per partition; None for the first record that the log still holds.
        nonces: Per partition, the tick at which the op log ends; None for logs that report their end.

    Raises:
        BackendTimeoutError: an end was not reached within *timeout_s*.
    """
    deadline_s = clock.elapsed_s() + timeout_s
    logs = {}
    for partition, start in starts.items():
        reader = backend.read(group, kind, partition, start)
        logs[partition] = (
            _Open(reader, None, reader.end()) if nonces is None else _Open(reader, nonces[partition], None)
        )
    try:
        while any(not log.is_done for log in logs.values()):
            count = 0
            for partition, log in logs.items():
                if not log.is_done:
                    count += _read_some(backend, group, kind, partition, log)
                    _look_for_end(log)
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
        log.end = None if log.end is None else log.reader.end()
        return 1
    log.records.extend(batch)
    if log.nonce is not None and any(log.nonce in record.body for record in batch):
        log.is_done = True
    return len(batch)


def _look_for_end(log: _Open) -> None:
    """Note whether a log was read to its end; ask again where the broker did not answer."""
    if log.end is None or not log.end.done():
        return
    if isinstance(log.end.exception(), BackendTimeoutError | BackendUnavailableError):
        log.end = log.reader.end()
    elif log.reader.passed >= log.end.result():
        log.is_done = True
