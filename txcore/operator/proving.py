"""The proof of a resumed copy, a TICK in the op log whose id is made of it: no checker believes it without (R8)."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, TypeVar

import msgspec

from txcore import wire
from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, DataLossError
from txcore.history.copies import ticks_in
from txcore.port import Backend, Reader
from txcore.records import Half, HalfRecord, LogKind, Op, OpKind, Position, Status
from txcore.runtime.commands import Flow

READ_COUNT_MAX: Final = 1_000
POLL_S: Final = 0.01
R = TypeVar("R")


def prove(backend: Backend, copy: Half, *, by: str, clock: Clock, timeout_s: float = 30.0) -> Flow[HalfRecord]:
    """Write the proof of *copy*, and return the copy to append, which names the proof's place.

    Raises:
        TxcoreError: the proof was not stored, or not read back in time; no copy is stored, so it can be repeated.
    """
    group, partition, proof = copy.group, copy.partition, wire.proof_of(copy)
    begun = yield from _wait(backend, backend.load_checkpoint(group, partition))
    marked = backend.mark(group, partition, Op(OpKind.TICK, proof, 0, by, clock.wall_ms()))
    outcome = yield from _wait(backend, marked)
    if outcome.status is not Status.DURABLE:
        raise outcome.error or BackendUnavailableError("the proof of the copy was not stored")
    place = yield from _read_back(backend, copy, begun.op if begun else None, clock, timeout_s)
    body = wire.encode_half(msgspec.structs.replace(copy, proved_at=place))
    return HalfRecord(group, partition, copy.transaction_id, copy.generation, body, ())


def _read_back(backend: Backend, copy: Half, start: Position | None, clock: Clock, timeout_s: float) -> Flow[Position]:
    """Read the op log from *start* until the proof comes; returns its place."""
    proof, deadline_s = wire.proof_of(copy), clock.elapsed_s() + timeout_s
    reader = backend.read(copy.group, LogKind.OP, copy.partition, start)
    try:
        while clock.elapsed_s() < deadline_s:
            try:
                records = reader.read(READ_COUNT_MAX)
            except DataLossError as loss:
                reader.close()
                reader = _reopened(backend, copy, loss)
                continue
            for record in records:
                if proof in ticks_in(record):
                    return record.position
            if records:
                deadline_s = clock.elapsed_s() + timeout_s
            else:
                yield from _pause(backend)
    finally:
        reader.close()
    raise BackendTimeoutError(f"the proof of the copy did not come back from the op log within {timeout_s:g} s")


def _reopened(backend: Backend, copy: Half, loss: DataLossError) -> Reader:
    first = None if loss.first is None else Position(loss.first)
    return backend.read(copy.group, LogKind.OP, copy.partition, first)


def _wait(backend: Backend, future: Future[R]) -> Flow[R]:
    """Return the answer of a control call; a backend that works only when it is polled is polled."""
    while backend.capabilities.polled and not future.done():
        yield from _pause(backend)
    answer: R = yield future
    return answer


def _pause(backend: Backend) -> Flow[None]:
    if backend.capabilities.polled:
        backend.poll(0)
    yield POLL_S
