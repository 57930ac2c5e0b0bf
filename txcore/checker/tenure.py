"""One checker's hold on one partition: its token, its clock, and whether it still holds it."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from txcore.checker.context import CheckContext
from txcore.checker.partition_state import PartitionState
from txcore.errors import DataLossError
from txcore.port import Reader
from txcore.records import LogKind, Position
from txcore.runtime import instrumentation as names

if TYPE_CHECKING:  # the reader knows its tenure
    from txcore.checker.log_reader import LogReader

TOKEN_BYTES: Final = 16


class Tenure:
    """The state of one partition that its owner, reader and steps share. Everything runs on the checker's loop.

    Attributes:
        is_active: False: the owner stops at once and writes nothing more.
        is_draining: True: start nothing new, finish the halves in hand, checkpoint, give up.
        is_claimed: The owner's claim is back; records that are stored from then on are new.
        is_replaying: Halves may come that were stored before that.
        may_judge: All these halves were read, so that no later record of one counts instead. Or the log does not say
            where it ends, as when it is full: then judging must not wait.
        blocked: Why the reading stopped for good, at a record of a newer txcore; nothing of the partition is judged.
        in_hand: How many halves have a flow of their own now; see `in_hand.take`.
        in_round: Ids of the halves whose tick is under way, or that are being judged after it.
        marked_s: Time at which the owner wrote its last mark that was read back.
        state, logs: What was read, and the reader of both logs; the owner sets them when it has its checkpoint.
        offset_ms: From the process's clock to the broker's, where the broker has one; it may fall, but never rises.
    """

    def __init__(self, context: CheckContext, partition: int) -> None:
        self.context = context
        self.partition = partition
        self.token = b""
        self.is_active = True
        self.is_draining = False
        self.is_claimed = False
        self.is_replaying = True
        self.may_judge = False
        self.blocked = ""
        self.in_hand = 0
        self.in_round: Collection[bytes] = ()
        self.marked_s = -math.inf
        self.offset_ms = 0.0
        self._offset_max_ms: float | None = None  #: the broker's clock was never farther ahead
        self.state = PartitionState()
        self.logs: LogReader

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
        return self.is_active and not self.blocked

    @property
    def has_room(self) -> bool:
        """Whether a round may begin; its tick costs as much for one half as for many."""
        return self.in_hand <= self.context.limits.batch_count_max / 2

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

    def reopened(self, kind: LogKind, loss: DataLossError, *, is_news: bool = True) -> Reader:
        """Open a reader where a log begins now, which has lost its beginning; report the loss where it is news."""
        event, first = self.context.report.event, loss.first
        if is_news:
            event(names.LOG_TRUNCATED, partition=self.partition, log=kind.value, asked=loss.asked, first=first)
        return self.reader(kind, None if first is None else Position(first))

    def failed(self, error: Exception, began_s: float | None = None) -> None:
        """Report that a step on this partition failed, which began at *began_s*, by default now."""
        self.context.report.event(names.CHECKER_ERROR, partition=self.partition, error=repr(error))
        self.context.failures.failed(self.partition, str(error) or repr(error), began_s)

    def worked(self) -> None:
        """Note that the broker did on this partition what was asked."""
        self.context.contact.heard()
        self.context.failures.worked(self.partition)

    def stand_down(self, reason: str) -> None:
        """Write nothing more under this token; the claim is made again only after a new assignment (R13)."""
        if self.is_active:
            self.is_active = False
            self.context.report.event(names.CHECKER_STOOD_DOWN, partition=self.partition, reason=reason)
            self.context.counts["stood_down"] += 1
