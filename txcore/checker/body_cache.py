"""What was read of half records lately, for all partitions of one checker, so that few are read a second time.

A checker holds no bodies of waiting halves: it reads them again when they are due. Of a half that is due soon after
it was read, as most are, the bytes are still here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

ENTRY_BYTES: Final = 250
"""What an entry takes besides its bytes, about."""

Place = tuple[int, int]
"""A partition and a position."""


class Bodies:
    """The newest bodies, up to *bytes_max* bytes of memory. One thread at a time."""

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
        """Return what is kept of a place."""
        return self._kept.get(place)
