"""The end of the half log: the log says where it is, silence proves nothing (R12)."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from txcore.port import Reader
from txcore.records import Position


@dataclass(frozen=True, slots=True)
class AskedEnd:
    """A question where the half log ends, and how far the op log was read when it was asked."""

    reader: Reader
    end: Future[Position]
    op_read: int

    @property
    def is_void(self) -> bool:
        """Whether the broker did not answer."""
        return self.end.done() and self.end.exception() is not None

    @property
    def is_passed(self) -> bool:
        """Whether every half was read that was stored when it was asked."""
        return self.end.done() and not self.is_void and self.reader.passed >= self.end.result()
