"""A backend whose groups sign: every record is signed on its way to the broker, and verified on its way back.

It is between the core and any backend, so that no producer, checker or operator's command can write a record
without its signature, or read one that it does not believe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, Generic, TypeVar

import msgspec

from txcore import wire
from txcore.errors import WireFormatError
from txcore.lifecycle import CLOSE_TIMEOUT_S, ClosedAtExit
from txcore.port import ActsOnRecords, Backend, Batch, Claim, Reader, running
from txcore.records import (
    REASON_SIZE_MAX,
    Checkpoint,
    ClaimEvent,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    Outcome,
    ParkCode,
    Position,
    Resolution,
)
from txcore.signed_records import decode_refused
from txcore.signing.keys import OVERHEAD_MAX, GroupKeys, SigningKeys

S = TypeVar("S")
T = TypeVar("T")
Item = TypeVar("Item", HalfRecord, Resolution)
_log: Final = logging.getLogger("txcore.signing")


class SignedBackend(ClosedAtExit):
    """Implements `txcore.port.Backend` over another one; a group without keys passes through unchanged.

    Args:
        backend: The backend of the broker; closed with this one.
        keys: The keys of the groups that sign.
    """

    def __init__(self, backend: Backend, keys: SigningKeys) -> None:
        self._backend = backend
        self._keys = keys
        found = backend.capabilities
        self.capabilities = replace(  # records leave room for their signature
            found, body_size_max=found.body_size_max - OVERHEAD_MAX, note_size_max=found.note_size_max - OVERHEAD_MAX
        )
        if isinstance(backend, ActsOnRecords):
            backend.open_with(self._opened)
        self.ensure_group, self.ping, self.poll = backend.ensure_group, backend.ping, backend.poll

    def append_halves(self, batch: Batch[HalfRecord]) -> None:
        """See `Backend.append_halves`."""
        self._backend.append_halves(_Batch(batch, [self._signed_half(item) for item in batch.items]))

    def release(self, batch: Batch[Resolution], claim: Claim | None = None) -> None:
        """See `Backend.release`."""
        self._backend.release(_Batch(batch, [self._signed_resolution(item) for item in batch.items]), _inner(claim))

    def mark(self, group: str, partition: int, op: Op, claim: Claim | None = None) -> Future[Outcome]:
        """See `Backend.mark`."""
        keys = self._keys.of(group)
        return self._backend.mark(group, partition, keys.sign_op(group, partition, op) if keys else op, _inner(claim))

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> Reader:
        """See `Backend.read`; of a record that is not believed, the body is one that no decoder takes."""
        reader, keys = self._backend.read(group, kind, partition, start), self._keys.of(group)
        return SignedReader(reader, _opener(keys, group, kind, partition)) if keys else reader

    def claim(self, group: str, member: str) -> Claim:
        """See `Backend.claim`."""
        claim, keys = self._backend.claim(group, member), self._keys.of(group)
        return SignedClaim(claim, keys, group) if keys else claim

    def load_checkpoint(self, group: str, partition: int) -> Future[Checkpoint | None]:
        """See `Backend.load_checkpoint`; None also for one that is not believed: the logs are read from their start."""
        found, keys = self._backend.load_checkpoint(group, partition), self._keys.of(group)
        if keys is None:
            return found

        def opened(checkpoint: Checkpoint | None) -> Checkpoint | None:
            believed = checkpoint and keys.opened_checkpoint(group, partition, checkpoint)
            if checkpoint is not None and believed is None:
                _log.warning("signature.refused group=%s partition=%d: a checkpoint", group, partition)
            return believed

        return _mapped(found, opened)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> Future[None]:
        """See `Backend.close`."""
        return self._backend.close(timeout_s)

    def _opened(self, group: str, partition: int, kind: LogKind, body: bytes) -> bytes:
        keys = self._keys.of(group)
        return keys.opened(group, partition, kind, body) if keys else body

    def _signed_half(self, item: HalfRecord) -> HalfRecord:
        keys = self._keys.of(item.group)
        if keys is None:
            return item
        body = keys.sign(item.group, item.partition, LogKind.HALF, item.body)
        return msgspec.structs.replace(item, body=body)

    def _signed_resolution(self, item: Resolution) -> Resolution:
        group, partition = item.half.group, item.half.partition
        keys = self._keys.of(group)
        if keys is None:
            return item
        op = item.op and keys.sign_op(group, partition, item.op)
        parked = item.parked and keys.sign(group, partition, LogKind.PARKED, item.parked)
        return msgspec.structs.replace(item, op=op, parked=parked)


class SignedReader:
    """Implements `txcore.port.Reader` over another one.

    Args:
        reader: The reader of the log.
        opened: Returns a record with the body that its reader may believe.
    """

    def __init__(self, reader: Reader, opened: Callable[[LogRecord], LogRecord]) -> None:
        self._reader = reader
        self._opened = opened
        self.end, self.close = reader.end, reader.close

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return self._reader.passed

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`."""
        return [self._opened(record) for record in self._reader.read(count_max)]

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`."""
        return _mapped(
            self._reader.fetch(positions),
            lambda found: {position: self._opened(record) for position, record in found.items()},
        )


class SignedClaim:
    """Implements `txcore.port.Claim` over another one, whose checkpoints are signed."""

    def __init__(self, claim: Claim, keys: GroupKeys, group: str) -> None:
        self.inner = claim
        self._keys = keys
        self._group = group
        self.give_up, self.close = claim.give_up, claim.close

    def poll(self) -> Sequence[ClaimEvent]:
        """See `Claim.poll`."""
        return self.inner.poll()

    def checkpoint(self, partition: int, checkpoint: Checkpoint) -> Future[None]:
        """See `Claim.checkpoint`."""
        note = self._keys.sign_checkpoint(self._group, partition, checkpoint)
        return self.inner.checkpoint(partition, replace(checkpoint, note=note))


class _Batch(Generic[Item]):
    """The signed items of another batch; outcomes go to that one."""

    def __init__(self, batch: Batch[Item], items: Sequence[Item]) -> None:
        self.items: Sequence[Item] = items
        self.settle, self.settle_all = batch.settle, batch.settle_all


def _inner(claim: Claim | None) -> Claim | None:
    return claim.inner if isinstance(claim, SignedClaim) else claim


def _opener(keys: GroupKeys, group: str, kind: LogKind, partition: int) -> Callable[[LogRecord], LogRecord]:
    def opened(record: LogRecord) -> LogRecord:
        body = keys.opened(group, partition, kind, record.body)
        if kind is LogKind.PARKED:
            body = _listed(keys, group, partition, body)
        return record if body is record.body else msgspec.structs.replace(record, body=body)

    return opened


def _listed(keys: GroupKeys, group: str, partition: int, body: bytes) -> bytes:
    """Return a parked record as operators are to see it; most are as they were written.

    One that is not believed has code UNSIGNED. One that was parked as UNSIGNED is poison that holds a half, if that
    half's signature is believed now.
    """
    refused = decode_refused(body)
    try:
        parked = wire.decode_parked(body if refused is None else refused.body)
    except WireFormatError:
        return body
    if refused is not None:
        if parked.code == ParkCode.CLOSED:  # it would take another one off the list
            return body
        reason = f"{refused.reason}; it says {parked.code}: {parked.reason}"[:REASON_SIZE_MAX]
        return wire.encode_parked(msgspec.structs.replace(parked, code=ParkCode.UNSIGNED, reason=reason))
    if parked.code != ParkCode.UNSIGNED:
        return body
    half = keys.opened(group, partition, LogKind.HALF, parked.half)
    if wire.half_or_none(half) is None:
        return body
    return wire.encode_parked(msgspec.structs.replace(parked, code=ParkCode.POISON, half=half))


def _mapped(future: Future[S], change: Callable[[S], T]) -> Future[T]:
    """Return a Future of the changed result, or of the same error."""
    changed: Future[T] = running()

    def done(ended: Future[S]) -> None:
        error = ended.exception()
        if error is None:
            changed.set_result(change(ended.result()))
        else:
            changed.set_exception(error)

    future.add_done_callback(done)
    return changed
