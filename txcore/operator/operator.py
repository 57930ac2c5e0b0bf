"""An operator's actions as library calls: list, show, resume, force. They read any log and own none.

A forced commit or rollback is a request in the op log that the partition's owner executes under its own token,
through the fence; nothing here ever publishes a target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final, Self, cast

from txcore import arguments
from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import HalfRefusedError, HalfUnknownError, TransactionStateError, TxcoreError, UsageError
from txcore.history.force_rules import REASON_TEXT, Ruling, force_op, ruling_on
from txcore.history.journey import Journey
from txcore.history.log_survey import Progress, Survey
from txcore.history.parked_entries import closed_record
from txcore.history.resuming import next_generation, next_of_inner
from txcore.ids import TransactionId, known_id
from txcore.operator.awaited import Awaited
from txcore.operator.lists import ParkedHalf, PendingHalf, parked_half, pending_half
from txcore.operator.proving import prove_each
from txcore.operator.selection import oldest_first
from txcore.port import Backend
from txcore.records import (
    FINAL_KINDS,
    REASON_SIZE_MAX,
    Forced,
    Half,
    HalfRecord,
    Op,
    OpKind,
    Outcome,
    Resolution,
    Status,
)
from txcore.results import EndResult, EndState
from txcore.runtime.commands import Flow
from txcore.runtime.drivers import BlockingBridge, run_blocking

POLL_S: Final = 0.01
PROVED_MAX: Final = 500
"""Number of resumed copies whose proofs are read back together."""


class Operator:
    """Looks into one group and asks its checker for decisions.

    It may be used by `with`, as everything else that a backend serves; it holds nothing that must be closed.

    Args:
        by: The operator's name; written into every record of a resume or forced decision.
        on_progress: Called now and then with the number of records of a log that have been read.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        *,
        by: str = "operator",
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        arguments.require_place(backend, group)
        arguments.require_type("by", by, str, "the operator's name")
        self._group = group
        self._by = by
        self._clock = clock or SystemClock()
        self._bridge = BlockingBridge(backend)
        self._survey = partial(
            Survey,
            backend,
            group,
            clock=self._clock,
            randomness=randomness or system_randomness(),
            by=by,
            on_progress=on_progress,
        )

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: every look closes what it has opened."""

    # -- looking -----------------------------------------------------------------------------------------------------

    def pending(self) -> list[PendingHalf]:
        """Return the undecided halves, oldest first. Reads from the checkpoints to a tick of its own."""
        with closing(self.look()) as survey:
            return [pending_half(each) for each in oldest_first(survey.journeys()) if each.is_pending]

    def parked(self) -> list[ParkedHalf]:
        """Return the discarded halves that are neither resumed nor finished, oldest first.

        Reads the whole logs when an entry is open: only they show whether it was resumed or finished.
        """
        with closing(self.look()) as survey:
            entries = survey.open_entries()
        return [parked_half(each) for each in oldest_first(self.still_parked(entries))]

    def still_parked(self, entries: Collection[bytes]) -> list[Journey]:
        """Return the journeys that are parked, of *entries*, see `Survey.open_entries`; reads the whole logs for them.

        Only the whole logs show whether an entry was resumed or finished.
        """
        if not entries:
            return []
        with closing(self.watch(entries, from_checkpoint=False)) as survey:
            return [journey for journey in survey.journeys() if journey.parked_as is not None]

    def show(self, transaction_id: TransactionId) -> Journey:
        """Return everything the logs hold about one transaction.

        Reads from the checkpoints where they cover the whole transaction, else reads all records.

        Raises:
            UsageError: the group's logs hold nothing about it; or it is no id, such as a text that was not parsed.
        """
        transaction_id = TransactionId(transaction_id)
        for from_checkpoint in (True, False):
            with closing(self.watch([transaction_id], from_checkpoint=from_checkpoint)) as survey:
                journey = survey.find(transaction_id)
            if journey is not None and (journey.has_beginning or not from_checkpoint):
                return journey
        raise UsageError(f"group {self._group!r} knows no transaction {transaction_id}")

    def look(self) -> Survey:
        """Return a survey, read to the end, of the records after the checkpoints and of every parked record.

        It holds every undecided half; `watch` shows whether a parked one is still parked. The caller closes it.
        """
        return _caught_up(self._survey(from_checkpoint=True, forget_finished=True))

    def watch(self, transaction_ids: Iterable[bytes], *, from_checkpoint: bool) -> Survey:
        """Return a survey, read to the end, of these transactions only. The caller closes it."""
        return self.search(frozenset(transaction_ids).__contains__, from_checkpoint=from_checkpoint)

    def search(self, wanted: Callable[[bytes], bool], *, from_checkpoint: bool = False) -> Survey:
        """Return a survey, read to the end, of the transactions that are *wanted*. The caller closes it."""
        return _caught_up(self._survey(from_checkpoint=from_checkpoint, wanted=wanted))

    def finished(self, wanted: Callable[[bytes], bool]) -> set[bytes]:
        """Return the *wanted* transactions whose final op is in the log; reads all of it, keeps only ids."""
        found: set[bytes] = set()

        def note(op: Op) -> None:
            if op.kind in FINAL_KINDS and wanted(op.transaction_id):
                found.add(op.transaction_id)

        self.replay(note)
        return found

    def replay(self, on_op: Callable[[Op], None], on_half: Callable[[Half, int | None], None] | None = None) -> None:
        """Read all of the logs, keep nothing, and call the functions as `Survey` does."""
        with closing(self._survey(wanted=lambda _: False, on_op=on_op, on_half=on_half)) as survey:
            survey.catch_up()

    # -- acting --------------------------------------------------------------------------------------------------------

    def resume(self, transaction_id: TransactionId, reason: str = "") -> None:
        """Give a parked half a fresh check budget: one append of the half with the next generation.

        Where poison holds a half of this group, that half is resumed under its own id, and the entry is closed.
        A second resume is harmless: it finds the half pending.

        Raises:
            TransactionStateError: the half is not parked, or no record is known that could be resumed; says why.
            HalfRefusedError, HalfUnknownError: the append failed; after the second one, look again before repeating.
        """
        self.resume_journey(self.show(transaction_id), reason)

    def resume_journey(self, journey: Journey, reason: str = "") -> int:
        """Resume a journey that was read just now, see `resume`; returns the new generation."""
        (result,) = self.resume_each([journey], reason)
        if isinstance(result, TxcoreError):
            raise result
        return result

    def resume_each(self, journeys: Sequence[Journey], reason: str = "") -> Iterator[int | TxcoreError]:
        """Resume journeys that were read just now; yields for each, in their order, its new generation or its error.

        The errors are those of `resume`. Many journeys cost far less together than one by one. A caller that stops in
        between leaves at most proofs in the op logs, which change nothing.
        """
        for start in range(0, len(journeys), PROVED_MAX):
            some = journeys[start : start + PROVED_MAX]
            copies = [self._copy_of(each, reason) for each in some]
            records = iter(self._proven([copy for copy in copies if isinstance(copy, Half)]))
            for journey, copy in zip(some, copies, strict=True):
                made = next(records) if isinstance(copy, Half) else copy
                try:
                    yield self._resume_inner(journey, reason) if made is None else self._append(made)
                except TxcoreError as error:
                    yield error

    def _copy_of(self, journey: Journey, reason: str) -> Half | TransactionStateError | None:
        """Return the copy that resumes a journey, or why there is none; None for poison that holds a half."""
        if not journey.is_parked:
            state = "finished" if journey.final else "pending already"
            return TransactionStateError(f"{journey.transaction_id} is {state}; only a parked half is resumed")
        if journey.inner_half is not None:
            return None
        try:
            return next_generation(journey, self._by, reason)
        except TransactionStateError as error:
            return error

    def _resume_inner(self, poison: Journey, reason: str) -> int:
        """Resume a half that an older txcore took for poison; if its entry stays open, the next resume only closes it.

        Raises: as `resume`.
        """
        assert poison.inner_half is not None
        identity = known_id(poison.inner_half.transaction_id)
        with closing(self.watch([identity], from_checkpoint=False)) as survey:
            own = survey.find(identity)
        copy = next_of_inner(poison, own, self._by, reason)
        generation = self._resume_by(copy) if copy is not None else max(own.generation if own else 0, 0)
        result = self._dismiss(poison, OpKind.ROLLBACK, f"resumed as {identity}: {reason}")
        if result.state is EndState.UNKNOWN:
            raise HalfUnknownError(
                f"{identity} is resumed, but the entry of {poison.transaction_id} may "
                "still be open; resume it again, which only closes it",
                transaction_id=identity,
            )
        return generation

    def commit(
        self, transaction_id: TransactionId, reason: str, *, override_fence: bool = False, wait_s: float = 0.0
    ) -> EndResult:
        """Ask the partition's owner to publish a half's messages; it does so after immunity, if the fence agrees.

        Without *wait_s* the result is UNKNOWN: the request is written. With *wait_s*, the seconds to wait for the end:
        ACCEPTED if the final op agrees, CONFLICT if another final op holds or the fence refuses, else UNKNOWN.

        Raises:
            UsageError: *reason* is empty, or the logs do not hold the id.
            TransactionStateError: see `ask`.
        """
        return self._force(transaction_id, OpKind.COMMIT, reason, override_fence=override_fence, wait_s=wait_s)

    def rollback(
        self, transaction_id: TransactionId, reason: str, *, override_fence: bool = False, wait_s: float = 0.0
    ) -> EndResult:
        """Ask the partition's owner to drop a half's messages; all else is as for `commit`."""
        return self._force(transaction_id, OpKind.ROLLBACK, reason, override_fence=override_fence, wait_s=wait_s)

    def _force(
        self, transaction_id: TransactionId, kind: OpKind, reason: str, *, override_fence: bool, wait_s: float
    ) -> EndResult:
        journey = self.show(transaction_id)
        result = self.ask(journey, kind, reason, override_fence=override_fence)
        if result.state is not EndState.UNKNOWN or result.error is not None or wait_s <= 0:
            return result
        with closing(self.watch([transaction_id], from_checkpoint=True)) as survey:
            return next(iter(self.follow(survey, [Awaited.after(journey, kind)], wait_s)))

    def ask(self, journey: Journey, kind: OpKind, reason: str, *, override_fence: bool = False) -> EndResult:
        """Write a request for a decision about a journey that was read just now, and do not wait.

        Returns UNKNOWN: requested (with an error: perhaps); ALREADY_DONE or CONFLICT for a finished transaction.

        Raises:
            UsageError: no reason given.
            TransactionStateError: a decision is journaled, so targets may be published: it can be neither overridden
                nor reversed. Or there is no half: only a ROLLBACK takes effect, or the COMMIT that is journaled, at
                once, and it is no longer parked.
            HalfRefusedError, HalfUnknownError: as for `resume`, where it is parked.
        """
        if not reason:
            raise UsageError(REASON_TEXT)
        transaction_id = journey.transaction_id
        ruling, text = ruling_on(journey, kind, override=override_fence)
        if ruling in {Ruling.HOLDS, Ruling.REVERSED}:
            return EndResult(EndState.ALREADY_DONE if ruling is Ruling.HOLDS else EndState.CONFLICT, transaction_id)
        if ruling is Ruling.REFUSED:
            raise TransactionStateError(f"{transaction_id}: {text}")
        if ruling is Ruling.DISMISS:
            return self._dismiss(journey, kind, reason)
        generation = journey.generation
        if journey.is_parked:
            generation = self._resume_by(next_generation(journey, self._by, reason))
        forced = Forced.OVERRIDE if override_fence else Forced.YES
        op = force_op(journey, kind, generation, self._by, self._clock.wall_ms(), forced, reason)
        outcome = self._write(journey, op)
        return EndResult(EndState.UNKNOWN, transaction_id, None if outcome.status is Status.DURABLE else outcome.error)

    def _dismiss(self, journey: Journey, kind: OpKind, reason: str) -> EndResult:
        """Close the entry of a record that no owner works on: nothing of it can be published."""
        identity = journey.transaction_id
        generation = max(journey.discarded_generation, *(each.generation for each in journey.parked)) + 1
        at_ms, reason = self._clock.wall_ms(), reason[:REASON_SIZE_MAX]
        op = Op(kind, identity, generation, self._by, at_ms, forced=Forced.YES, reason=reason)
        outcome = self._write(journey, op, closed_record(identity, generation, self._by, at_ms))
        states = {Status.DURABLE: EndState.ACCEPTED, Status.SUPERSEDED: EndState.ALREADY_DONE}
        return EndResult(states.get(outcome.status, EndState.UNKNOWN), identity, outcome.error)

    def _write(self, journey: Journey, op: Op, parked: bytes = b"") -> Outcome:
        half = HalfRecord(self._group, journey.partition, journey.transaction_id, op.generation, b"", ())
        return run_blocking(_one(Resolution(half, op, (), parked, self._by, flush=True)), self._bridge)

    def follow(self, survey: Survey, awaited: Iterable[Awaited], wait_s: float) -> Iterator[EndResult]:
        """Yield the result of each request of this operator, as its end is read; UNKNOWN for the rest after *wait_s*.

        The results are those of `Awaited.end_in`.

        Args:
            survey: Reads at least these transactions, and does not forget finished ones.
        """
        left = {each.transaction_id: each for each in awaited}
        deadline_s = self._clock.elapsed_s() + wait_s
        while left:
            for each in list(left.values()):
                result = each.end_in(survey.find(each.transaction_id), self._by)
                if result is not None:
                    del left[each.transaction_id]
                    yield result
            if self._clock.elapsed_s() > deadline_s:
                break
            if left and not survey.poll():
                time.sleep(POLL_S)
        for transaction_id in left:
            yield EndResult(EndState.UNKNOWN, transaction_id)

    def _resume_by(self, copy: Half) -> int:
        (record,) = self._proven([copy])
        return self._append(record)

    def _proven(self, copies: Sequence[Half]) -> list[HalfRecord | TxcoreError]:
        """Write the proofs of copies; returns what is to be appended, or why a copy is not resumed."""
        flow = prove_each(self._bridge.backend, copies, by=self._by, clock=self._clock)
        results = zip(copies, run_blocking(flow, self._bridge), strict=True)
        return [_refused(copy, each) if isinstance(each, TxcoreError) else each for copy, each in results]

    def _append(self, record: HalfRecord | TxcoreError) -> int:
        if isinstance(record, TxcoreError):
            raise record
        identity = known_id(record.transaction_id)
        outcome = run_blocking(_one(record), self._bridge)
        if outcome.status is Status.UNKNOWN:
            raise HalfUnknownError(f"the resumed half of {identity} may be stored; look again", transaction_id=identity)
        if outcome.status is not Status.DURABLE:
            raise HalfRefusedError(
                f"the resumed half of {identity} was refused: {outcome.error}", transaction_id=identity
            )
        return record.generation


def _refused(copy: Half, error: TxcoreError) -> HalfRefusedError:
    identity = known_id(copy.transaction_id)
    refused = HalfRefusedError(
        f"{identity} is not resumed, as its proof could not be written: {error}", transaction_id=identity
    )
    refused.__cause__ = error
    return refused


def _caught_up(survey: Survey) -> Survey:
    """Read a survey to the end; it is closed if that fails."""
    try:
        survey.catch_up()
    except BaseException:
        survey.close()
        raise
    return survey


def _one(command: HalfRecord | Resolution) -> Flow[Outcome]:
    return cast("Outcome", (yield command))
