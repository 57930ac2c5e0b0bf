"""Owners on a broker that takes time, on the checker's own loop: requests, reads and rounds interleave."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txcore.checker.partition_owner import PartitionOwner
from txcore.memory import Fate, Faults
from txcore.runtime.flow_loop import Loop
from txcore_conformance.owners import Owners


class SlowFaults(Faults):
    """A broker whose requests take time.

    Attributes:
        leg_s: Time, in seconds, of a request and of its answer.
        by_kind: The same, by the kind of the request; see `Faults.fate`.
    """

    def __init__(self, leg_s: float, by_kind: Mapping[str, float]) -> None:
        self.leg_s = leg_s
        self.by_kind = by_kind
        self._kind = ""

    def fate(self, what: str, transaction_ids: Sequence[bytes]) -> Fate:
        """See `Faults.fate`."""
        self._kind = what
        return super().fate(what, transaction_ids)

    def delay_s(self) -> float:
        """See `Faults.delay_s`."""
        kind, self._kind = self._kind, ""
        return self.by_kind.get(kind, self.leg_s)


class SlowOwners(Owners):
    """See the module."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.broker.schedule = self.later
        self._loops: list[tuple[PartitionOwner, Loop]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have *action* run after the given time."""
        heapq.heappush(self._events, (self.clock.now_s + delay_s, next(self._numbers), action))

    def start(self) -> PartitionOwner:
        """See `Owners.start`."""
        owner = self._made()
        loop = Loop(self.backend, self.clock, claim=owner.context.claim)
        loop.spawn(owner.run())
        self._loops.append((owner, loop))
        return owner

    def kill(self, owner: PartitionOwner) -> None:
        """See `Owners.kill`."""
        self._loops = [each for each in self._loops if each[0] is not owner]

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """See `Owners.run`."""
        end_s = self.clock.now_s + seconds
        while not until():
            loops = [loop for _, loop in self._loops]
            if not any(loop._ready for loop in loops):  # noqa: SLF001
                timers = [loop._timers[0][0] for loop in loops if loop._timers]  # noqa: SLF001
                next_s = min([*(event[0] for event in self._events[:1]), *timers], default=end_s)
                self.clock.now_s = max(self.clock.now_s, min(next_s, end_s))
                if next_s > end_s:
                    return until()
                while self._events and self._events[0][0] <= self.clock.now_s:
                    heapq.heappop(self._events)[2]()
            for loop in loops:
                loop.turn()
        return True
