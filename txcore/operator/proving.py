"""The proofs of resumed copies, TICKs in the op log whose ids are made of them: no checker believes one without (R8).

The proofs of many copies are read back together: opening a reader takes far longer than writing a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

import msgspec

from txcore import wire
from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, DataLossError, TxcoreError
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
    (result,) = yield from prove_each(backend, [copy], by=by, clock=clock, timeout_s=timeout_s)
    if isinstance(result, TxcoreError):
        raise result
    return result


def prove_each(
    backend: Backend, copies: Sequence[Half], *, by: str, clock: Clock, timeout_s: float = 30.0
) -> Flow[list[HalfRecord | TxcoreError]]:
    """Write the proofs of *copies*; returns for each the copy to append, or why its proof is not in the log.

    Args:
        timeout_s: Longest time without a record of the op log, for each partition.
    """
    results: list[HalfRecord | TxcoreError] = []
    places: dict[bytes, Position | TxcoreError] = {}
    for group, partition in sorted({(copy.group, copy.partition) for copy in copies}):
        own = [wire.proof_of(copy) for copy in copies if (copy.group, copy.partition) == (group, partition)]
        ticks = [Op(OpKind.TICK, proof, 0, by, clock.wall_ms()) for proof in own]
        try:
            places |= yield from _written(backend, group, partition, ticks, clock, timeout_s)
        except TxcoreError as error:
            places |= dict.fromkeys(own, error)
    for copy in copies:
        place = places[wire.proof_of(copy)]
        results.append(place if isinstance(place, TxcoreError) else _record(copy, place))
    return results


def _record(copy: Half, place: Position) -> HalfRecord:
    body = wire.encode_half(msgspec.structs.replace(copy, proved_at=place))
    return HalfRecord(copy.group, copy.partition, copy.transaction_id, copy.generation, body, ())


def _written(
    backend: Backend, group: str, partition: int, ticks: Sequence[Op], clock: Clock, timeout_s: float
) -> Flow[Mapping[bytes, Position | TxcoreError]]:
    """Write *ticks* to an op log and read them back; returns the place of each, or why it has none.

    Raises:
        TxcoreError: the log cannot be read.
    """
    places: dict[bytes, Position | TxcoreError] = {}
    begun = yield from _wait(backend, backend.load_checkpoint(group, partition))
    marks = [(tick.transaction_id, backend.mark(group, partition, tick)) for tick in ticks]
    for proof, marked in marks:
        try:
            outcome = yield from _wait(backend, marked)
        except TxcoreError as error:
            places[proof] = error
        else:
            if outcome.status is not Status.DURABLE:
                places[proof] = outcome.error or BackendUnavailableError("the proof of the copy was not stored")
    awaited = {proof for proof, _ in marks} - places.keys()
    reader = backend.read(group, LogKind.OP, partition, begun.op if begun else None)
    deadline_s = clock.elapsed_s() + timeout_s
    try:
        while awaited and clock.elapsed_s() < deadline_s:
            try:
                records = reader.read(READ_COUNT_MAX)
            except DataLossError as loss:
                reader.close()
                reader = _reopened(backend, group, partition, loss)
                continue
            for record in records:
                for proof in awaited & ticks_in(record):
                    places[proof] = record.position
                    awaited.discard(proof)
            if records:
                deadline_s = clock.elapsed_s() + timeout_s
            else:
                yield from _pause(backend)
    finally:
        reader.close()
    late = BackendTimeoutError(f"the proof of the copy did not come back from the op log within {timeout_s:g} s")
    return places | dict.fromkeys(awaited, late)


def _reopened(backend: Backend, group: str, partition: int, loss: DataLossError) -> Reader:
    first = None if loss.first is None else Position(loss.first)
    return backend.read(group, LogKind.OP, partition, first)


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
