"""The context that all partition owners of one checker share, with the half records that were read lately."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from txcore.checker.limits import Limits
from txcore.clock import Clock, Randomness
from txcore.fence import Fence
from txcore.listener import CheckListener
from txcore.message import CheckPolicy
from txcore.port import Backend
from txcore.port import Claim as ClaimPort
from txcore.runtime import instrumentation as names
from txcore.runtime.instrumentation import Reporter

ENTRY_BYTES: Final = 250
"""Approximate size, in bytes, of an entry besides its body."""

Place = tuple[int, int]
"""A partition and a position."""


class Bodies:
    """The newest half records' bodies, up to *bytes_max* bytes of memory. One thread at a time.

    A checker holds no bodies of waiting halves: it reads them again when they are due. Most halves are due soon after
    they were read; their bytes are still here.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[Place, bytes] = {}
        self._order: deque[Place] = deque()

    def keep(self, place: Place, body: bytes) -> None:
        """Keep *body* until newer ones need its room."""
        size = len(body) + ENTRY_BYTES
        if size > self._bytes_max or place in self._kept:
            return
        self._kept[place] = body
        self._order.append(place)
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._kept.pop(self._order.popleft())) + ENTRY_BYTES

    def get(self, place: Place) -> bytes | None:
        """Return the body that is kept for a place."""
        return self._kept.get(place)


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """The objects that all owners of one checker share, and its counts by name."""

    backend: Backend
    group: str
    clock: Clock
    randomness: Randomness
    claim: ClaimPort
    policy: CheckPolicy
    limits: Limits
    report: Reporter
    by: str
    listeners: Sequence[CheckListener] = ()
    fence: Fence | None = None
    counts: Counter[str] = field(default_factory=Counter)
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.body_bytes_max)

    def asked(self, *transaction_ids: bytes) -> None:
        """Report and count that listener or fence are asked about these."""
        self.counts["asked"] += len(transaction_ids)
        for transaction_id in transaction_ids:
            self.report.event(names.CHECK_ASKED, transaction_id=transaction_id)
