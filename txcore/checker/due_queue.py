"""A queue of ids by their due time. Most arrive in the order of their times, and those cost little memory."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable


class DueQueue:
    """A priority queue. An id may be in it several times; a caller that takes one judges whether it is still due."""

    def __init__(self) -> None:
        # An id that comes in order is kept in a line, as two bare values; a heap's entry is four times as large.
        self._times_ms: deque[float] = deque()
        self._line: deque[bytes] = deque()
        self._heap: list[tuple[float, bytes]] = []

    def push(self, due_ms: float, identity: bytes) -> None:
        """Add an id."""
        if not self._times_ms or due_ms >= self._times_ms[-1]:
            self._times_ms.append(due_ms)
            self._line.append(identity)
        else:
            heapq.heappush(self._heap, (due_ms, identity))

    def first(self) -> tuple[float, bytes] | None:
        """Return the earliest time and its id, or None."""
        if self._heap and (not self._times_ms or self._heap[0][0] < self._times_ms[0]):
            return self._heap[0]
        return (self._times_ms[0], self._line[0]) if self._times_ms else None

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._line) + len(self._heap)

    def keep(self, is_wanted: Callable[[float, bytes], bool]) -> None:
        """Remove every entry that is no longer wanted."""
        line = [each for each in zip(self._times_ms, self._line, strict=True) if is_wanted(*each)]
        self._times_ms = deque(due_ms for due_ms, _ in line)
        self._line = deque(identity for _, identity in line)
        self._heap = [each for each in self._heap if is_wanted(*each)]
        heapq.heapify(self._heap)

    def pop(self) -> None:
        """Remove the entry that `first` returns."""
        if self._heap and (not self._times_ms or self._heap[0][0] < self._times_ms[0]):
            heapq.heappop(self._heap)
        else:
            self._times_ms.popleft()
            self._line.popleft()
