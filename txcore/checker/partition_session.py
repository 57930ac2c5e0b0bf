"""One checker's hold on one partition: its token, its clock, whether it still holds it, and the ops that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from txcore.checker.context import CheckContext
from txcore.checker.decide import Pending
from txcore.checker.partition_state import PartitionState
from txcore.port import Reader
from txcore.records import REASON_SIZE_MAX, Forced, Half, HalfRecord, LogKind, Op, OpKind, Position, Resolution
from txcore.runtime import instrumentation as names

TOKEN_BYTES: Final = 16


class Tenure:
    """The state of one partition that intake, judging and owner share. Everything runs on the checker's loop.

    Attributes:
        is_active: False: the owner stops at once and writes nothing more.
        is_blocked: True: a record of a newer txcore was read; the partition is kept, and nothing of it is judged.
        in_hand: How many halves have a flow of their own now.
        offset_ms: From the process's clock to the broker's, where the broker has one; it may fall, but never rises.
    """

    def __init__(self, context: CheckContext, partition: int) -> None:
        self.context = context
        self.partition = partition
        self.token = b""
        self.is_active = True
        self.is_blocked = False
        self.in_hand = 0
        self.offset_ms = 0.0
        self._offset_max_ms: float | None = None  #: the broker's clock was never farther ahead
        self.state = PartitionState()

    def now_ms(self) -> float:
        """Return the time on the timeline of this partition: the broker's where it has one, else the process's."""
        return self.context.clock.elapsed_s() * 1000 + self.offset_ms

    def learn_time(self, appended_ms: float, sent_s: float, acked_s: float) -> None:
        """Learn the broker's time from a mark of our own, appended between these times of the process's clock.

        A timeline that went ahead would end immunities early that have begun on it: when another node leads the op
        log, when the broker's clock is set, or when the claim's answer was slow. So it may only be set back.
        """
        offset_ms, offset_max_ms = appended_ms - acked_s * 1000, appended_ms - sent_s * 1000
        known_max_ms = self._offset_max_ms
        self.offset_ms = offset_ms if known_max_ms is None else min(self.offset_ms, offset_ms)
        self._offset_max_ms = offset_max_ms if known_max_ms is None else max(known_max_ms, offset_max_ms)

    def broker_ms(self, time_ms: float) -> float:
        """Return when *time_ms* was by the broker's clock, at the latest: for those that have another timeline."""
        ahead_ms = 0.0 if self._offset_max_ms is None else self._offset_max_ms - self.offset_ms
        return time_ms + max(ahead_ms, 0.0)

    @property
    def may_write(self) -> bool:
        """Whether the ops of halves in hand may still be written."""
        return self.is_active and not self.is_blocked

    @property
    def has_server_time(self) -> bool:
        """Whether halves and ticks carry the broker's time."""
        return self.context.backend.capabilities.server_time

    def nonce(self) -> bytes:
        """Return a fresh name for a claim or tick."""
        return self.context.randomness.getrandbits(TOKEN_BYTES * 8).to_bytes(TOKEN_BYTES, "big")

    def reader(self, kind: LogKind, start: Position | None) -> Reader:
        """Open a reader of one of the partition's logs."""
        return self.context.backend.read(self.context.group, kind, self.partition, start)

    def stand_down(self, reason: str) -> None:
        """Write nothing more under this token; the claim is made again only after a new assignment (R13)."""
        if self.is_active:
            self.is_active = False
            self.context.report.event(names.CHECKER_STOOD_DOWN, partition=self.partition, reason=reason)
            self.context.count("stood_down")

    def resolution(
        self,
        pending: Pending,
        kind: OpKind,
        *,
        half: Half | None = None,
        targets: Sequence[int] = (),
        parked: bytes = b"",
        count: int = 0,
        decision: int = 0,
        forced: int = Forced.NO,
        reason: str = "",
    ) -> Resolution:
        """Return an op about *pending* under this token, with the targets released before it."""
        context = self.context
        op = Op(
            kind,
            pending.transaction_id,
            pending.generation,
            context.by,
            context.clock.wall_ms(),
            self.token,
            count,
            decision,
            forced,
            reason[:REASON_SIZE_MAX],
        )
        messages = half.messages if half is not None else ()
        record = HalfRecord(context.group, self.partition, pending.transaction_id, pending.generation, b"", messages)
        return Resolution(record, op, targets, parked, context.by, flush=True)

    def carried(self, half: Half, pending: Pending) -> Half:
        """Return a copy of *half* with its journal folded in as far as this owner knows it (R8).

        A copy holds no request of an operator, so its journal begins at an open one. Nor does it hold ops that wait for
        a generation which was not read yet: it begins before them.
        """
        state, extras = self.state, pending.extras
        folded_to, token = -1 if state.op_read is None else state.op_read, state.token
        for place in (extras.force_at, state.waiting_from(pending.transaction_id)):
            if place is not None and place[0] <= folded_to:
                folded_to, token = place
        started_ms = self.broker_ms(pending.start_ms)
        return msgspec.structs.replace(
            half,
            generation=pending.generation + extras.is_outdone,
            first_appended_ms=max(round(started_ms), 0) if self.has_server_time else half.first_appended_ms,
            age_ms=max(round(self.now_ms() - pending.start_ms), 0),
            count=pending.count,
            folded_to=folded_to,
            decided=pending.decision if pending.is_journaled else 0,
            token=token,
            missing=list(extras.missing or ()),
        )
