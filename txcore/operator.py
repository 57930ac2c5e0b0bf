"""What operators do, as library calls: list, show, resume, force. It reads any log and owns none.

A forced commit or rollback is a request in the op log that the partition's owner executes under its own token,
through the fence; nothing here ever publishes a target.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.commands import Flow
from txcore.drivers import run_blocking
from txcore.errors import (
    BackendTimeoutError,
    DataLossError,
    HalfRefusedError,
    HalfUnknownError,
    TransactionStateError,
    UsageError,
)
from txcore.gather import Gatherer
from txcore.ids import id_text
from txcore.journey import Journey, force_op, half_in, journeys_of, next_generation, topics_of
from txcore.port import Backend
from txcore.records import (
    Forced,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    Position,
    Resolution,
    Status,
)
from txcore.results import EndResult, EndState

READ_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class PendingHalf:
    """An undecided half: `check_times` answered checks, `born_ms` its producer's wall clock."""

    transaction_id: bytes
    partition: int
    generation: int
    born_ms: int
    check_times: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParkedHalf:
    """A discarded half: why, when, after how many checks, and which targets are missing."""

    transaction_id: bytes
    partition: int
    generation: int
    code: str
    reason: str
    parked_ms: int
    check_times: int
    topics: tuple[str, ...]
    missing: tuple[int, ...]


class Operator:
    """Looks into one group and asks its checker for decisions.

    Args:
        by: Who acts; written into every record of a resume or forced decision.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        by: str = "operator",
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self._backend = backend
        self._group = group
        self._by = by
        self._clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._gatherer = Gatherer(backend)

    def pending(self) -> list[PendingHalf]:
        """Return the undecided halves, oldest first. Reads from the checkpoints on, up to a tick of its own."""
        found = [
            PendingHalf(
                journey.transaction_id,
                journey.partition,
                half.generation,
                half.born_ms,
                journey.count,
                topics_of(half),
            )
            for journey in self._journeys(from_checkpoint=True)
            if journey.is_pending and (half := journey.half) is not None
        ]
        return sorted(found, key=lambda half: (half.born_ms, half.transaction_id))

    def parked(self) -> list[ParkedHalf]:
        """Return the discarded halves that are neither resumed nor finished, oldest first."""
        found = []
        for journey in self._journeys(from_checkpoint=False):
            if not journey.is_parked or not journey.parked:
                continue
            parked = journey.parked[-1]
            half = journey.half or half_in(parked)
            found.append(
                ParkedHalf(
                    journey.transaction_id,
                    journey.partition,
                    parked.generation,
                    parked.code,
                    parked.reason,
                    parked.at_ms,
                    parked.count,
                    topics_of(half) if half is not None else (),
                    tuple(parked.missing),
                )
            )
        return sorted(found, key=lambda half: (half.parked_ms, half.transaction_id))

    def show(self, transaction_id: bytes) -> Journey:
        """Return everything the logs hold about one transaction.

        Raises:
            UsageError: the group's logs hold nothing about it.
        """
        for journey in self._journeys(from_checkpoint=False, only=transaction_id):
            return journey
        raise UsageError(f"group {self._group!r} knows no transaction {id_text(transaction_id)}")

    def resume(self, transaction_id: bytes, reason: str = "") -> None:
        """Give a parked half a fresh check budget: one append of the half with the next generation.

        Resuming twice is harmless: the second finds it pending.

        Raises:
            TransactionStateError: it is not parked, or is poison and holds no half.
            HalfRefusedError, HalfUnknownError: the append; in the second case look again before repeating it.
        """
        journey = self.show(transaction_id)
        if not journey.is_parked:
            state = "finished" if journey.final else "pending already"
            raise TransactionStateError(f"{id_text(transaction_id)} is {state}; only a parked half is resumed")
        self._append_next_generation(journey, reason)

    def commit(
        self, transaction_id: bytes, reason: str, *, override_fence: bool = False, wait_s: float = 0.0
    ) -> EndResult:
        """Ask the owner to commit; see `_force`."""
        return self._force(transaction_id, OpKind.COMMIT, reason, override_fence=override_fence, wait_s=wait_s)

    def rollback(
        self, transaction_id: bytes, reason: str, *, override_fence: bool = False, wait_s: float = 0.0
    ) -> EndResult:
        """Ask the owner to roll back; see `_force`."""
        return self._force(transaction_id, OpKind.ROLLBACK, reason, override_fence=override_fence, wait_s=wait_s)

    def _force(
        self, transaction_id: bytes, kind: OpKind, reason: str, *, override_fence: bool, wait_s: float
    ) -> EndResult:
        """Write a request; the partition's owner executes it after immunity, through the fence.

        Without *wait_s* the result is UNKNOWN: asked for. With it: ACCEPTED when the final op agrees, CONFLICT when
        another holds or the fence refused, UNKNOWN when the owner did not get to it in time.

        Raises:
            UsageError: no reason given, or the id is unknown.
            TransactionStateError: an override came after a decision was journaled.
        """
        if not reason:
            raise UsageError("a forced decision needs a reason; it is kept in the op log")
        journey = self.show(transaction_id)
        if journey.final:
            state = EndState.ALREADY_DONE if journey.final == kind else EndState.CONFLICT
            return EndResult(state, transaction_id)
        if override_fence and journey.decided:
            raise TransactionStateError("a decision is journaled already; it can no longer be overridden")
        generation = journey.generation
        if journey.is_parked:
            generation = self._append_next_generation(journey, reason)
        forced = Forced.OVERRIDE if override_fence else Forced.YES
        op = force_op(journey, kind, generation, self._by, self._clock.wall_ms(), forced, reason)
        half = HalfRecord(self._group, journey.partition, transaction_id, generation, b"", ())
        outcome = run_blocking(_one(Resolution(half, op, (), b"", self._by, flush=True)), self._gatherer)
        if outcome.status is not Status.DURABLE:
            return EndResult(EndState.UNKNOWN, transaction_id, outcome.error)
        return self._await_end(transaction_id, kind, wait_s)

    def _await_end(self, transaction_id: bytes, kind: OpKind, wait_s: float) -> EndResult:
        deadline_s = self._clock.elapsed_s() + wait_s
        while self._clock.elapsed_s() < deadline_s:
            journey = self.show(transaction_id)
            if journey.final:
                state = EndState.ACCEPTED if journey.final == kind else EndState.CONFLICT
                return EndResult(state, transaction_id)
            replies = [op for _, op in journey.ops if op.kind == OpKind.FORCE and op.token]
            if replies and journey.ops[-1][1] is replies[-1]:
                return EndResult(EndState.CONFLICT, transaction_id, TransactionStateError(replies[-1].reason))
            time.sleep(POLL_S * 10)
        return EndResult(EndState.UNKNOWN, transaction_id)

    def _append_next_generation(self, journey: Journey, reason: str) -> int:
        record = next_generation(journey, self._by, reason)
        outcome = run_blocking(_one(record), self._gatherer)
        if outcome.status is Status.UNKNOWN:
            raise HalfUnknownError("the resumed half may be stored; look again", transaction_id=journey.transaction_id)
        if outcome.status is not Status.DURABLE:
            raise HalfRefusedError(
                f"the resumed half was refused: {outcome.error}", transaction_id=journey.transaction_id
            )
        return record.generation

    # -- reading logs ----------------------------------------------------------------------------------------------

    def _journeys(self, *, from_checkpoint: bool, only: bytes | None = None) -> Iterator[Journey]:
        count = self._backend.ensure_group(self._group).result(READ_TIMEOUT_S)
        for partition in range(count):
            yield from self._partition(partition, from_checkpoint=from_checkpoint, only=only).values()

    def _partition(self, partition: int, *, from_checkpoint: bool, only: bytes | None) -> dict[bytes, Journey]:
        checkpoint = None
        if from_checkpoint:
            checkpoint = self._backend.load_checkpoint(self._group, partition).result(READ_TIMEOUT_S)
        start = checkpoint.half if checkpoint else None
        halves = self._read_to_end(LogKind.HALF, partition, start)
        ops = self._read_ops(partition, checkpoint.op if checkpoint else None)
        parked = [] if from_checkpoint else self._read_to_end(LogKind.PARKED, partition, None)
        return journeys_of(partition, halves, ops, parked, checkpoint.token if checkpoint else b"", only=only)

    def _read_ops(self, partition: int, start: Position | None) -> list[LogRecord]:
        """Read every op up to a tick of our own: the only portable end of a log."""
        nonce = self._randomness.getrandbits(128).to_bytes(16, "big")
        tick = Op(OpKind.TICK, nonce, 0, self._by, self._clock.wall_ms())
        self._backend.mark(self._group, partition, tick).result(READ_TIMEOUT_S)
        return self._read_to_end(LogKind.OP, partition, start, nonce)

    def _read_to_end(
        self, kind: LogKind, partition: int, start: Position | None, nonce: bytes | None = None
    ) -> list[LogRecord]:
        """Read a log until *nonce* is in it or, without one, until nothing more has arrived for a moment."""
        reader = self._backend.read(self._group, kind, partition, start)
        records: list[LogRecord] = []
        deadline_s = self._clock.elapsed_s() + READ_TIMEOUT_S
        empty = 0
        try:
            while True:
                try:
                    batch = reader.read(1_000)
                except DataLossError as loss:
                    reader.close()
                    first = None if loss.first is None else Position(loss.first)
                    reader = self._backend.read(self._group, kind, partition, first)
                    continue
                records.extend(batch)
                if nonce is not None and any(nonce in record.body for record in batch):
                    return records
                empty = 0 if batch else empty + 1
                if nonce is None and empty > 1:
                    return records
                if self._clock.elapsed_s() > deadline_s:
                    raise BackendTimeoutError(f"the {kind.value} log of {self._group!r} could not be read to its end")
                if not batch:
                    time.sleep(POLL_S)
        finally:
            reader.close()


def _one(command: HalfRecord | Resolution) -> Flow[Outcome]:
    outcome: Outcome = yield command
    return outcome
