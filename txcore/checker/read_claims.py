"""The claims that were read of one op log, from the newest checkpoint on: which one is in force at a place (R13)."""

from __future__ import annotations


class ReadClaims:
    """The claims in log order.

    Attributes:
        first: The claim in force where a checkpoint has passed the op log to.
    """

    def __init__(self, first: bytes) -> None:
        self.first = first
        self._places: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """Return the number of claims that no checkpoint has passed."""
        return len(self._places)

    def add(self, position: int, token: bytes) -> None:
        """Add the claim that was read last."""
        self._places.append((position, token))

    def at(self, position: int) -> bytes:
        """Return the claim in force at a place that no checkpoint has passed."""
        claims = (token for claimed_at, token in reversed(self._places) if claimed_at < position)
        return next(claims, self.first)

    def pass_before(self, position: int) -> None:
        """Let a checkpoint pass the claims before *position*."""
        while self._places and self._places[0][0] < position:
            self.first = self._places.pop(0)[1]
