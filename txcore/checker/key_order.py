"""The order of halves with the same order key: the one that was stored first is released first (R18)."""

from __future__ import annotations

import heapq


class KeyOrder:
    """The halves of one partition that are not over, by order key and by the position of their first record.

    A half is over when its targets are published, or never will be. A parked one is not, unless it is to be skipped.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[bytes, int]] = {}  #: order key and first position, by transaction id
        self._lines: dict[bytes, list[tuple[int, bytes]]] = {}  #: heaps by order key; may hold halves that are over

    def __len__(self) -> int:
        """Return the number of halves that are not over."""
        return len(self._places)

    def add(self, identity: bytes, order_key: bytes, first_position: int) -> int:
        """Add a half; returns its position: of two for one half, the earlier one counts."""
        known = self._places.get(identity)
        if known is not None and known[1] <= first_position:
            return known[1]
        self._places[identity] = order_key, first_position
        heapq.heappush(self._lines.setdefault(order_key, []), (first_position, identity))
        return first_position

    def is_first(self, identity: bytes) -> bool:
        """Return whether no other half of its order key comes before it; so it is, too, for one that is over."""
        place = self._places.get(identity)
        return place is None or self._first(place[0]) == identity

    def end(self, identity: bytes) -> bytes | None:
        """Note that a half is over; returns the half of its order key that is the first one now, if there is one."""
        place = self._places.pop(identity, None)
        return None if place is None else self._first(place[0])

    def _first(self, order_key: bytes) -> bytes | None:
        line = self._lines.get(order_key, [])
        while line and self._places.get(line[0][1]) != (order_key, line[0][0]):
            heapq.heappop(line)
        if line:
            return line[0][1]
        self._lines.pop(order_key, None)
        return None
