"""The half records read lately, for all partitions of one checker, so that few are read a second time.

A checker holds no bodies of waiting halves: it reads them again when they are due. Most halves are due soon after they
were read; their bytes are still here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

ENTRY_BYTES: Final = 250
"""Approximate size, in bytes, of an entry besides its body."""

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
        """Return the body that is kept for a place."""
        return self._kept.get(place)
