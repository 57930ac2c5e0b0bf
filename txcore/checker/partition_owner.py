"""The owner of one partition, as one flow: claim, read, tick, judge the due halves, checkpoint, give up.

Whatever is written carries the owner's token. A half is judged only after the owner's own TICK, written after the
half was read, came back from the op log. Only the next half of an order key may follow a release without one
(`finish.may_follow`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txcore.checker import carrying, check_steps, checkpoint, immunity, newer_records
from txcore.checker.context import CheckContext
from txcore.checker.decide import NEVER_MS
from txcore.checker.limits import OrderOnPark
from txcore.checker.log_reader import LogReader
from txcore.checker.partition_state import PartitionState
from txcore.checker.tenure import Tenure
from txcore.clock import until_beat
from txcore.errors import BackendTimeoutError, NewerRecordError, TxcoreError
from txcore.history.parked_entries import close_entry
from txcore.records import Checkpoint, Op, OpKind, Outcome, Status
from txcore.runtime import instrumentation as names
from txcore.runtime.commands import Flow, Spawn

LOOK_SHARE: Final = 200
"""Pause before the next search of all halves for the oldest one, as a multiple of the time that the last one took."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """The state of one partition that a checker owns.

    Attributes:
        is_claimed: The checker has read its CLAIM back; before that it judges no half.
        pending: Number of undecided halves.
        oldest_age_s: Seconds since the oldest of them was appended, or was first read where the broker has no clock; 0
            for none. With very many halves the checker searches for the oldest only now and then, so that the one it
            knows may have ended.
        in_hand: Number of halves that are being checked or finished now.
        checkpoint_age_s: Seconds since a checkpoint was stored or found to be up to date.
        owned_s: Seconds since the checker read its CLAIM back.
        unreleased_age_s: Seconds since the COMMITTED of the half that waits longest for its release, where its owner
            releases it; 0 for none. Looked for as the oldest one is. Halves that wait for an earlier one of their order
            key do not count.
        blocked: Why the partition waits for an upgraded checker; "" when it does not.
        held: Number of parked halves that hold their order keys up.
    """

    partition: int
    is_claimed: bool
    pending: int
    oldest_age_s: float
    in_hand: int
    checkpoint_age_s: float
    blocked: str = ""
    owned_s: float = 0.0
    unreleased_age_s: float = 0.0
    held: int = 0


class PartitionOwner:
    """The work of one checker on one partition. Everything runs on the checker's loop."""

    def __init__(self, context: CheckContext, partition: int) -> None:
        self.context = context
        self.tenure = Tenure(context, partition)
        self.has_ended = False
        self._sweeps_since_s: float | None = None  #: see `begin_sweep`
        self._checkpoint_at_s = 0.0
        self._stored: Checkpoint | None = None
        self._unclosed = 0  #: entries to be closed before a checkpoint passes the ends of their halves
        self._closing = 0  #: of these, those that are being written
        self._oldest_ms = 0.0
        self._unreleased_ms = 0.0
        self._look_again_s = 0.0
        self._owned_since_s = context.clock.elapsed_s()
        self._bounded_at_s = context.clock.elapsed_s()  #: when the stored checkpoint was last known to be up to date

    def begin_sweep(self) -> None:
        """Judge the due halves; `is_sweeping` until that is done and read back. Halves due again by then can wait."""
        self._sweeps_since_s = self.context.clock.elapsed_s()

    @property
    def is_sweeping(self) -> bool:
        """Whether a sweep has begun and is not over; a blocked partition is not swept."""
        return self._sweeps_since_s is not None and not self.tenure.blocked

    def run(self) -> Flow[None]:
        """Own the partition until a stop is requested or another checker's CLAIM is read."""
        try:
            yield from self._own()
        except NewerRecordError as error:
            yield from newer_records.wait_for_upgrade(self.tenure, error)
        except Exception as error:  # noqa: BLE001 - the partition is claimed anew after a pause, whatever it was
            self.tenure.failed(error)
            self.tenure.is_active = False
            yield self.context.limits.retry_s
        finally:
            self.tenure.is_active = False
            self.has_ended = True

    def _own(self) -> Flow[None]:
        context = self.context
        begun = yield context.backend.load_checkpoint(context.group, self.tenure.partition)
        holds_parked = context.limits.order_on_park is OrderOnPark.HOLD
        self.tenure.state = PartitionState(begun, holds_parked=holds_parked)
        logs = self.tenure.logs = LogReader(self.tenure, begun)
        self.tenure.token = self.tenure.nonce()
        try:
            if (yield from self._mark(logs, OpKind.CLAIM)):
                logs.claimed()
                self._owned_since_s = context.clock.elapsed_s()
                immunity.begin_by(self.tenure.state, self.tenure.now_ms())
                context.report.event(names.CHECKER_CLAIMED, partition=self.tenure.partition)
                context.counts["claims"] += 1
                self._checkpoint_at_s = context.clock.elapsed_s()
                yield from self._work(logs)
        finally:
            logs.close()

    def _work(self, logs: LogReader) -> Flow[None]:
        limits = self.context.limits
        idle_s = limits.poll_s
        while self.tenure.is_active:
            count = logs.read()
            if logs.lost.missing and (yield from logs.read_to_end()):
                logs.lost.park_missing()
            while self.tenure.state.ended_parked:
                self._unclosed += 1
                yield Spawn(self._close_entry(*self.tenure.state.ended_parked.pop()))
            if self.tenure.is_draining:
                if not (self.tenure.in_hand or self._closing):
                    break
            elif self.tenure.may_judge:
                yield from carrying.carry_oldest(self.tenure)
                if not self.is_sweeping or self._is_due_in_sweep():
                    count += yield from self._round(logs)
                elif not count and not self.tenure.in_hand:
                    yield from self._end_sweep(logs)
            yield from self._checkpoint(logs, force=False)
            idle_s = limits.poll_s if count or self.tenure.in_hand else min(idle_s * 2, limits.idle_poll_s)
            yield self._pause_s(idle_s)
        if self.tenure.is_active:
            logs.read_ops(self.context.limits.read_count_max)
            yield from self._checkpoint(logs, force=True)

    def _close_entry(self, identity: bytes, generation: int) -> Flow[None]:
        """Take a parked half that ended after all off the list, before retention removes its ops.

        Until that is done no checkpoint is stored, so that the next owner reads the end again and does the same.
        """
        context, tenure, pause_s = self.context, self.tenure, self.context.limits.retry_s
        while tenure.is_active:
            at_ms = context.clock.wall_ms()
            record = close_entry(context.group, tenure.partition, identity, generation, context.by, at_ms, tenure.token)
            self._closing += 1
            try:
                outcome: Outcome = yield record
            finally:
                self._closing -= 1
            if outcome.status is Status.DURABLE:
                self._unclosed -= 1
                return
            if tenure.is_draining:
                return
            yield pause_s
            pause_s = min(pause_s * 2, context.limits.retry_max_s)

    def _round(self, logs: LogReader) -> Flow[int]:
        """Judge the halves that are due, after a tick of our own; returns how many halves were judged."""
        tenure, limits = self.tenure, self.context.limits
        now_ms = tenure.now_ms()
        due_ms = tenure.state.next_due_ms()
        if due_ms is None or due_ms > now_ms or not tenure.has_room:
            return 0
        due = tenure.state.take_due(now_ms, limits.batch_count_max - tenure.in_hand)
        tenure.in_round = {pending.transaction_id for pending in due}
        try:
            if (yield from self._mark(logs, OpKind.TICK)):
                yield from check_steps.judge(tenure, due)
                return len(due)
        finally:
            tenure.in_round = ()
        for pending in due:
            if not pending.is_closed:
                tenure.state.schedule(pending, tenure.now_ms() + limits.retry_s * 1000)
        return 0

    def _end_sweep(self, logs: LogReader) -> Flow[None]:
        """Read both logs to their ends; the sweep is over if that brought nothing new that is due."""
        is_caught_up = (yield from logs.read_to_end()) and (yield from self._mark(logs, OpKind.TICK))
        if is_caught_up and not self._is_due_in_sweep():
            yield from self._checkpoint(logs, force=True)
            self._sweeps_since_s = None

    def _is_due_in_sweep(self) -> bool:
        """Return whether something is left that was due when the sweep began."""
        due_ms, since_s = self.tenure.state.next_due_ms(), self._sweeps_since_s
        if due_ms is None or since_s is None:
            return False
        return due_ms <= self.tenure.now_ms() - 1000 * (self.context.clock.elapsed_s() - since_s)

    def _mark(self, logs: LogReader, kind: OpKind) -> Flow[bool]:
        """Append a CLAIM or TICK and read the op log until it is back; False when it does not come in time."""
        context, limits = self.context, self.context.limits
        nonce = self.tenure.token if kind is OpKind.CLAIM else self.tenure.nonce()
        logs.awaited, logs.is_back = nonce, False
        op = Op(kind, nonce, 0, context.by, context.clock.wall_ms(), self.tenure.token)
        sent_s = context.clock.elapsed_s()
        deadline_s = sent_s + limits.mark_timeout_s
        try:
            outcome: Outcome = yield context.backend.mark(context.group, self.tenure.partition, op, context.claim)
        except TxcoreError as error:
            self.tenure.failed(error, sent_s)
            return False
        if outcome.status is Status.FENCED:
            self.tenure.stand_down("fenced")
            return False
        acked_s = context.clock.elapsed_s() if outcome.status is Status.DURABLE else None
        while self.tenure.is_active:
            count = logs.read()
            if logs.is_back:
                self.tenure.worked()
                self.tenure.marked_s = sent_s
                if logs.mark_ms is not None:
                    self.tenure.learn_time(logs.mark_ms, sent_s, acked_s or context.clock.elapsed_s())
                return True
            if not count and context.clock.elapsed_s() > deadline_s:
                text = f"a {kind.name} did not come back from the op log within {limits.mark_timeout_s:g} s"
                self.tenure.failed(BackendTimeoutError(text), sent_s)
                return False
            # Others on the loop have their turn while a long log is read: a claim that is not polled is lost.
            yield 0.0 if count else limits.poll_s
        return False

    def _checkpoint(self, logs: LogReader, *, force: bool) -> Flow[None]:
        context = self.context
        now_s = context.clock.elapsed_s()
        if not self.tenure.is_active or (not force and now_s < self._checkpoint_at_s):
            return
        self._checkpoint_at_s = now_s + context.limits.checkpoint_interval_s
        logs.drop_orphans()
        tenure, size_max = self.tenure, context.backend.capabilities.note_size_max
        if logs.gap.holds_checkpoint() or logs.lost.holds_checkpoint() or self._unclosed or tenure.state.ended_parked:
            return
        tells_ages = not tenure.has_server_time
        made = checkpoint.checkpoint_of(tenure.state, logs.noted, tenure.now_ms(), size_max, tells_ages=tells_ages)
        if made.half is None or (not force and made == self._stored):
            self._bounded_at_s = now_s
            return
        try:
            yield context.claim.checkpoint(self.tenure.partition, made)
            self._stored, self._bounded_at_s = made, now_s
            self.tenure.worked()
        except TxcoreError as error:
            # A checkpoint is only a lower bound: the old one holds, a restart reads more.
            self.tenure.failed(error, now_s)

    # -- what others ask -----------------------------------------------------------------------------------------------

    def stats(self) -> PartitionStats:
        """Return figures for operators; from any thread. They cost a checker that holds very many halves little."""
        tenure, now_s = self.tenure, self.context.clock.elapsed_s()
        is_claimed, pending = tenure.is_claimed and tenure.is_active, tenure.state.pending_count
        self._look()
        return PartitionStats(
            tenure.partition,
            is_claimed,
            pending,
            self._age_s(self._oldest_ms),
            tenure.in_hand,
            max(now_s - self._bounded_at_s, 0.0),
            tenure.blocked,
            max(now_s - self._owned_since_s, 0.0) if is_claimed else 0.0,
            self._age_s(self._unreleased_ms),
            tenure.state.held_count,
        )

    def _look(self) -> None:
        """Search all halves for the oldest one, and for the one that waits longest for its release, now and then."""
        clock = self.context.clock
        now_s = clock.elapsed_s()
        if now_s < self._look_again_s:
            return
        halves = self.tenure.state.pending.values()
        self._oldest_ms = min((each.start_ms for each in halves if each.start_ms), default=0.0)
        waits_ms = (each.unreleased_since_ms for each in halves if each.due_ms != NEVER_MS)
        self._unreleased_ms = min((since_ms for since_ms in waits_ms if since_ms is not None), default=0.0)
        looked_s = clock.elapsed_s()
        self._look_again_s = looked_s + LOOK_SHARE * (looked_s - now_s)

    def _age_s(self, since_ms: float) -> float:
        if not self.tenure.state.pending_count or not since_ms:
            return 0.0
        return max(self.tenure.now_ms() - since_ms, 0.0) / 1000

    def _pause_s(self, idle_s: float) -> float:
        due_ms = self.tenure.state.next_due_ms() if self.tenure.has_room and not self.tenure.is_draining else None
        if idle_s >= self.context.limits.idle_poll_s:
            idle_s = until_beat(self.context.clock, idle_s)
        return idle_s if due_ms is None else max(min(idle_s, (due_ms - self.tenure.now_ms()) / 1000), 0.001)
