"""How the members of a group share its partitions: pure rules over what each of them has announced.

Members may see each other late or differently for a while; then a partition stays free a little longer or is asked
for in vain. That two never hold one is the exclusive queue's part, not this module's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Standing(NamedTuple):
    """What one member holds: to keep, and to give up once it has finished what is in hand."""

    kept: frozenset[int] = frozenset()
    revoking: frozenset[int] = frozenset()


def shares(members: Mapping[str, Standing], partition_count: int) -> dict[str, int]:
    """Return how many partitions fall to each member, those who hold most first: so that few move."""
    ranked = sorted(members, key=lambda member: (-len(members[member].kept), member))
    base, odd = divmod(partition_count, len(ranked))
    return {member: base + (index < odd) for index, member in enumerate(ranked)}


def surplus_of(me: str, members: Mapping[str, Standing], partition_count: int) -> list[int]:
    """Return what *me* has to give up to the others."""
    kept = sorted(members[me].kept)
    return kept[shares(members, partition_count)[me] :]


def wanted_by(me: str, members: Mapping[str, Standing], partition_count: int, avoided: Collection[int]) -> list[int]:
    """Return the free partitions that *me* is to take, and nobody else who sees the same.

    *avoided* are those that are not free although nobody says so (a member that died a moment ago, say).
    """
    held = {partition for standing in members.values() for partition in (*standing.kept, *standing.revoking)}
    free = [partition for partition in range(partition_count) if partition not in held and partition not in avoided]
    for member, share in shares(members, partition_count).items():
        missing = max(0, share - len(members[member].kept))
        mine, free = free[:missing], free[missing:]
        if member == me:
            return mine
    return []


class Roll:
    """The other members of a group, each with its last announcement, until it has been silent for too long."""

    def __init__(self, silence_max_s: float) -> None:
        self._silence_max_s = silence_max_s
        self._heard: dict[str, tuple[float, Standing]] = {}

    def hear(self, member: str, standing: Standing, now_s: float) -> None:
        """Note what *member* has announced."""
        self._heard[member] = (now_s, standing)

    def leave(self, member: str) -> None:
        """*member* has left."""
        self._heard.pop(member, None)

    def refresh(self, now_s: float) -> None:
        """Nobody could be heard for a while: begin to count anew."""
        self._heard = {member: (now_s, standing) for member, (_, standing) in self._heard.items()}

    def clear(self) -> None:
        """Forget everybody."""
        self._heard.clear()

    def present(self, now_s: float) -> dict[str, Standing]:
        """Return who is there."""
        oldest_s = now_s - self._silence_max_s
        self._heard = {member: heard for member, heard in self._heard.items() if heard[0] > oldest_s}
        return {member: standing for member, (_, standing) in self._heard.items()}
