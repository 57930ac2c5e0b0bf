"""The owner of one partition, as one flow: claim, read, tick, judge the due halves, checkpoint, give up.

Whatever is written carries the owner's token. A half is judged only after the owner's own TICK, written after the
half was read, came back from the op log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txcore.checker.check_steps import Judge
from txcore.checker.context import CheckContext
from txcore.checker.log_reader import Intake
from txcore.checker.partition_session import Tenure
from txcore.checker.partition_state import PartitionState
from txcore.clock import until_beat
from txcore.errors import NewerRecordError, TxcoreError
from txcore.history.parked_entries import close_entry
from txcore.records import Checkpoint, Op, OpKind, Outcome, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow, Spawn

LOOK_SHARE: Final = 200
"""Pause before the next search of all halves for the oldest one, as a multiple of the time that the last one took."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition in a checker's hands.

    Attributes:
        is_claimed: Its CLAIM was read back; before that nothing is checked.
        pending: Undecided halves.
        oldest_age_s: Since the oldest of them was appended, or first seen where the broker has no clock; 0 for none.
            Where a checker holds very many, it is looked for now and then, and may have ended meanwhile.
        in_hand: Halves that are being checked or finished now.
        checkpoint_age_s: Since a checkpoint was stored or found to be up to date.
        blocked: Why nothing of it is judged until an upgraded checker takes it over; empty in health.
    """

    partition: int
    is_claimed: bool
    pending: int
    oldest_age_s: float
    in_hand: int
    checkpoint_age_s: float
    blocked: str = ""


class PartitionOwner:
    """One partition in one checker's hands. Everything runs on the checker's loop."""

    def __init__(self, context: CheckContext, partition: int) -> None:
        self.context = context
        self.tenure = Tenure(context, partition)
        self.is_draining = False  #: True: start nothing new, finish the halves in hand, checkpoint, give up
        self.has_ended = False
        self.blocked = ""  #: why its reading stopped for good, at a record of a newer txcore
        self._sweeps_since_s: float | None = None  #: see `begin_sweep`
        self._checkpoint_at_s = 0.0
        self._stored: Checkpoint | None = None
        self._is_claimed = False
        self._unclosed = 0  #: entries to be closed before a checkpoint passes the ends of their halves
        self._closing = 0  #: of these, those that are being written
        self._oldest_ms = 0.0
        self._look_again_s = 0.0
        self._bounded_at_s = context.clock.elapsed_s()  #: when the stored checkpoint was last known to be up to date

    def begin_sweep(self) -> None:
        """Judge the due halves; `is_sweeping` until that is done and read back. Halves due again by then can wait."""
        self._sweeps_since_s = self.context.clock.elapsed_s()

    @property
    def is_sweeping(self) -> bool:
        """Whether a sweep has begun and is not over; a blocked partition is not swept."""
        return self._sweeps_since_s is not None and not self.blocked

    def run(self) -> Flow[None]:
        """Own the partition until a stop is requested or another checker's CLAIM is read."""
        try:
            yield from self._own()
        except NewerRecordError as error:
            yield from self._wait_for_upgrade(error)
        except Exception as error:  # noqa: BLE001 - the partition is claimed anew after a pause, whatever it was
            self.context.report.event(names.CHECKER_ERROR, partition=self.tenure.partition, error=repr(error))
            self.tenure.is_active = False
            yield self.context.limits.retry_s
        finally:
            self.tenure.is_active = False
            self.has_ended = True

    def _wait_for_upgrade(self, error: NewerRecordError) -> Flow[None]:
        """Hold the partition without touching it: claiming it again and again would change nothing."""
        self.blocked, self.tenure.is_blocked = str(error), True
        self.context.report.event(names.PARTITION_BLOCKED, partition=self.tenure.partition, reason=self.blocked)
        while self.tenure.is_active and not self.is_draining:
            yield self.context.limits.idle_poll_s

    def _own(self) -> Flow[None]:
        context = self.context
        checkpoint = yield context.backend.load_checkpoint(context.group, self.tenure.partition)
        self.tenure.state = PartitionState(checkpoint)
        self.tenure.state.tells_ages = not self.tenure.has_server_time
        intake = Intake(self.tenure, checkpoint)
        try:
            if (yield from self._take_claim(intake)):
                yield from self._work(intake, Judge(self.tenure, intake))
        finally:
            intake.close()

    def _take_claim(self, intake: Intake) -> Flow[bool]:
        self.tenure.token = self.tenure.nonce()
        if not (yield from self._mark(intake, OpKind.CLAIM, self.tenure.token)):
            return False
        self._is_claimed = True
        intake.claimed()
        self.tenure.state.begin_by(self.tenure.now_ms())
        self.context.report.event(names.CHECKER_CLAIMED, partition=self.tenure.partition)
        self.context.count("claims")
        self._checkpoint_at_s = self.context.clock.elapsed_s()
        return True

    def _work(self, intake: Intake, judge: Judge) -> Flow[None]:
        limits = self.context.limits
        idle_s = limits.poll_s
        while self.tenure.is_active:
            count = intake.read()
            if intake.has_missing:
                yield from intake.find_lost()
            while self.tenure.state.ended_parked:
                self._unclosed += 1
                yield Spawn(self._close_entry(*self.tenure.state.ended_parked.pop()))
            if self.is_draining:
                if not (self.tenure.in_hand or self._closing):
                    break
            else:
                yield from judge.carry_oldest()
                if not self.is_sweeping or self._is_due_in_sweep():
                    judged = yield from self._round(intake, judge)
                    count += judged
                elif not count and not self.tenure.in_hand:
                    yield from self._end_sweep(intake)
            yield from self._checkpoint(intake, force=False)
            idle_s = limits.poll_s if count or self.tenure.in_hand else min(idle_s * 2, limits.idle_poll_s)
            yield self._pause_s(idle_s)
        if self.tenure.is_active:
            intake.read_ops(self.context.limits.read_count_max)
            yield from self._checkpoint(intake, force=True)

    def _close_entry(self, identity: bytes, generation: int) -> Flow[None]:
        """Take a parked half that ended after all off the list, before retention removes its ops.

        Until that is done no checkpoint is stored, so that the next owner reads the end again and does the same.
        """
        context, pause_s = self.context, self.context.limits.retry_s
        while self.tenure.is_active:
            now_ms, token = context.clock.wall_ms(), self.tenure.token
            self._closing += 1
            try:
                outcome: Outcome = yield close_entry(
                    context.group, self.tenure.partition, identity, generation, context.by, now_ms, token
                )
            finally:
                self._closing -= 1
            if outcome.status is Status.DURABLE:
                self._unclosed -= 1
                return
            if self.is_draining:
                return
            yield pause_s
            pause_s = min(pause_s * 2, context.limits.retry_max_s)

    def _round(self, intake: Intake, judge: Judge) -> Flow[int]:
        """Judge the halves that are due, after a tick of our own; returns how many halves were judged."""
        limits = self.context.limits
        now_ms = self.tenure.now_ms()
        due_ms = self.tenure.state.next_due_ms()
        if due_ms is None or due_ms > now_ms or not self._has_room():
            return 0
        due = self.tenure.state.take_due(now_ms, limits.batch_count_max - self.tenure.in_hand)
        is_caught_up = yield from self._mark(intake, OpKind.TICK, self.tenure.nonce())
        for pending in due:
            pending.is_busy = False
        if not is_caught_up:
            for pending in due:
                judge.later(pending, limits.retry_s * 1000)
            return 0
        yield from judge.judge(due)
        return len(due)

    def _end_sweep(self, intake: Intake) -> Flow[None]:
        """Read both logs to their ends; the sweep is over if that brought nothing new that is due."""
        is_caught_up = (yield from intake.read_to_end()) and (
            yield from self._mark(intake, OpKind.TICK, self.tenure.nonce())
        )
        if is_caught_up and not self._is_due_in_sweep():
            yield from self._checkpoint(intake, force=True)
            self._sweeps_since_s = None

    def _is_due_in_sweep(self) -> bool:
        """Return whether something is left that was due when the sweep began."""
        due_ms, since_s = self.tenure.state.next_due_ms(), self._sweeps_since_s
        if due_ms is None or since_s is None:
            return False
        return due_ms <= self.tenure.now_ms() - 1000 * (self.context.clock.elapsed_s() - since_s)

    def _mark(self, intake: Intake, kind: OpKind, nonce: bytes) -> Flow[bool]:
        """Append a CLAIM or TICK and read the op log until it is back; False when it does not come in time."""
        context, limits = self.context, self.context.limits
        intake.awaited, intake.is_back = nonce, False
        op = Op(kind, nonce, 0, context.by, context.clock.wall_ms(), self.tenure.token)
        sent_s = context.clock.elapsed_s()
        deadline_s = sent_s + limits.mark_timeout_s
        try:
            outcome: Outcome = yield context.backend.mark(context.group, self.tenure.partition, op, context.claim)
        except TxcoreError as error:
            context.report.event(names.CHECKER_ERROR, partition=self.tenure.partition, error=repr(error))
            return False
        if outcome.status is Status.FENCED:
            self.tenure.stand_down("fenced")
            return False
        acked_s = context.clock.elapsed_s() if outcome.status is Status.DURABLE else None
        while self.tenure.is_active:
            count = intake.read()
            if intake.is_back:
                if intake.mark_ms is not None:
                    self.tenure.learn_time(intake.mark_ms, sent_s, acked_s or context.clock.elapsed_s())
                return True
            if not count and context.clock.elapsed_s() > deadline_s:
                return False
            # Others on the loop have their turn while a long log is read: a claim that is not polled is lost.
            yield 0.0 if count else limits.poll_s
        return False

    def _checkpoint(self, intake: Intake, *, force: bool) -> Flow[None]:
        context = self.context
        now_s = context.clock.elapsed_s()
        if not self.tenure.is_active or (not force and now_s < self._checkpoint_at_s):
            return
        self._checkpoint_at_s = now_s + context.limits.checkpoint_interval_s
        intake.drop_orphans()
        if intake.hides_gap() or self._unclosed or self.tenure.state.ended_parked:
            return
        checkpoint = self.tenure.state.checkpoint(self.tenure.now_ms(), context.backend.capabilities.note_size_max)
        if checkpoint.half is None or (not force and checkpoint == self._stored):
            self._bounded_at_s = now_s
            return
        try:
            yield context.claim.checkpoint(self.tenure.partition, checkpoint)
            self._stored, self._bounded_at_s = checkpoint, now_s
        except TxcoreError as error:
            # A checkpoint is only a lower bound: the old one holds, a restart reads more.
            context.report.event(names.CHECKER_ERROR, partition=self.tenure.partition, error=repr(error))

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """The number of undecided halves that this owner knows."""
        return self.tenure.state.pending_count

    def stats(self) -> PartitionStats:
        """Return figures for operators; from any thread. They cost a checker that holds very many halves little."""
        age_s = self.context.clock.elapsed_s() - self._bounded_at_s
        return PartitionStats(
            self.tenure.partition,
            self._is_claimed and self.tenure.is_active,
            self.pending_count,
            self._oldest_age_s(),
            self.tenure.in_hand,
            max(age_s, 0.0),
            self.blocked,
        )

    def _oldest_age_s(self) -> float:
        clock = self.context.clock
        now_s = clock.elapsed_s()
        if now_s >= self._look_again_s:
            pending = self.tenure.state.pending.values()
            self._oldest_ms = min((each.start_ms for each in pending if each.start_ms), default=0.0)
            looked_s = clock.elapsed_s()
            self._look_again_s = looked_s + LOOK_SHARE * (looked_s - now_s)
        if not self.pending_count or not self._oldest_ms:
            return 0.0
        return max(self.tenure.now_ms() - self._oldest_ms, 0.0) / 1000

    def next_due_s(self) -> float | None:
        """Return in how many seconds the next half is due, or None."""
        due_ms = self.tenure.state.next_due_ms()
        return None if due_ms is None else max(due_ms - self.tenure.now_ms(), 0.0) / 1000

    def _has_room(self) -> bool:
        """Return whether a round may begin; its tick costs as much for one half as for many."""
        return self.tenure.in_hand <= self.context.limits.batch_count_max / 2

    def _pause_s(self, idle_s: float) -> float:
        due_s = self.next_due_s() if self._has_room() and not self.is_draining else None
        if idle_s >= self.context.limits.idle_poll_s:
            idle_s = until_beat(self.context.clock, idle_s)
        return idle_s if due_s is None else max(min(idle_s, due_s), 0.001)
