"""One checker's hold on one partition: its token, its clock, and whether it still holds it."""

from __future__ import annotations

from typing import Final

from txcore import instrumentation as names
from txcore.checking import CheckContext
from txcore.fold import PartitionState
from txcore.port import Reader
from txcore.records import LogKind, Position

TOKEN_BYTES: Final = 16


class Tenure:
    """What intake, judging and owner share of one partition. Everything runs on the checker's loop.

    Attributes:
        is_active: False: stand down at once and write nothing more.
        in_hand: How many halves have a flow of their own now.
        offset_ms: From the process's clock to the broker's, where the broker has one; learned from each own mark.
    """

    def __init__(self, context: CheckContext, partition: int) -> None:
        self.context = context
        self.partition = partition
        self.token = b""
        self.is_active = True
        self.in_hand = 0
        self.offset_ms = 0.0
        self.state = PartitionState()

    def now_ms(self) -> float:
        """Return the time on the timeline of this partition: the broker's where it has one, else the process's."""
        return self.context.clock.elapsed_s() * 1000 + self.offset_ms

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
