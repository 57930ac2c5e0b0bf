"""What operators do, as library calls: list, show, resume, force. It reads any log and owns none.

A forced commit or rollback is a request in the op log that the partition's owner executes under its own token,
through the fence; nothing here ever publishes a target.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.commands import Flow
from txcore.drivers import run_blocking
from txcore.errors import (
    HalfRefusedError,
    HalfUnknownError,
    TransactionStateError,
    UsageError,
)
from txcore.gather import Gatherer
from txcore.ids import id_text
from txcore.journey import Journey, force_op, half_in, journeys_of, next_generation, topics_of
from txcore.logs import read_to_end
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
        quiet_s: Seconds without a new record after which a half or parked log counts as read to its end.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        by: str = "operator",
        quiet_s: float = 0.25,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self._backend = backend
        self._group = group
        self._by = by
        self._quiet_s = quiet_s
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
        backend, group = self._backend, self._group
        partitions = range(backend.ensure_group(group).result(READ_TIMEOUT_S))
        checkpoints = {
            p: backend.load_checkpoint(group, p).result(READ_TIMEOUT_S) if from_checkpoint else None for p in partitions
        }
        halves = self._read(LogKind.HALF, {p: c.half if c else None for p, c in checkpoints.items()})
        ops = self._read(LogKind.OP, {p: c.op if c else None for p, c in checkpoints.items()}, self._tick(partitions))
        parked = {} if from_checkpoint else self._read(LogKind.PARKED, dict.fromkeys(partitions))
        for p, checkpoint in checkpoints.items():
            token = checkpoint.token if checkpoint else b""
            yield from journeys_of(p, halves[p], ops[p], parked.get(p, ()), token, only=only).values()

    def _tick(self, partitions: Iterable[int]) -> dict[int, bytes]:
        """Write a tick of our own to each op log, behind every half read before."""
        nonces = {p: self._randomness.getrandbits(128).to_bytes(16, "big") for p in partitions}
        marks = [
            self._backend.mark(self._group, p, Op(OpKind.TICK, nonce, 0, self._by, self._clock.wall_ms()))
            for p, nonce in nonces.items()
        ]
        for mark in marks:
            mark.result(READ_TIMEOUT_S)
        return nonces

    def _read(
        self, kind: LogKind, starts: Mapping[int, Position | None], nonces: Mapping[int, bytes] | None = None
    ) -> dict[int, list[LogRecord]]:
        return read_to_end(
            self._backend,
            self._clock,
            self._group,
            kind,
            starts,
            nonces=nonces,
            quiet_s=self._quiet_s,
            timeout_s=READ_TIMEOUT_S,
        )


def _one(command: HalfRecord | Resolution) -> Flow[Outcome]:
    outcome: Outcome = yield command
    return outcome
