"""The transaction lanes of one backend: one for each group, as a user may be allowed to use one group's ids only."""

from __future__ import annotations

import threading

from txcore.clock import Clock
from txcore_kafka.options import Options, transactional_id_prefix
from txcore_kafka.transactions import TransactionLane


class Lanes:
    """The lanes by group, each made with its first use. Thread safe."""

    def __init__(self, options: Options, clock: Clock, number: int) -> None:
        """Use *number*, which no other backend has, in the transactional ids."""
        self._options = options
        self._clock = clock
        self._number = number
        self._lock = threading.Lock()
        self._lanes: dict[str, TransactionLane] = {}
        self._is_closed = False

    def of(self, group: str) -> TransactionLane:
        """Return the lane of *group*; after `close` a new one takes no entries."""
        lane = self._lanes.get(group)
        if lane is None:
            with self._lock:
                lane = self._lanes.get(group)
                if lane is None:
                    name = f"{transactional_id_prefix(group)}{self._number:016x}"
                    lane = self._lanes[group] = TransactionLane(self._options, self._clock, name)
                    if self._is_closed:
                        lane.stop(0.0)
        return lane

    def close(self, timeout_s: float) -> None:
        """Commit what is queued if there is time, and end all lanes; blocks for at most *timeout_s*."""
        with self._lock:
            self._is_closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.stop(timeout_s)
        deadline_s = self._clock.elapsed_s() + timeout_s
        for lane in lanes:
            lane.join(max(0.0, deadline_s - self._clock.elapsed_s()))
