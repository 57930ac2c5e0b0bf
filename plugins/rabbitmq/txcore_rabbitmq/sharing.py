"""How the members of a group share its partitions: pure rules over what each of them has announced.

Members may see each other late or differently for a while; then a partition stays free a little longer or is asked
for in vain. That two never hold one is the exclusive queue's part, not this module's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Standing(NamedTuple):
    """The partitions of one member: those it keeps, and those it gives up once it has finished the work in hand."""

    kept: frozenset[int] = frozenset()
    revoking: frozenset[int] = frozenset()


def shares(members: Mapping[str, Standing], partition_count: int) -> dict[str, int]:
    """Return how many partitions fall to each member, the members that hold most first: so that few move."""
    ranked = sorted(members, key=lambda member: (-len(members[member].kept), member))
    base, odd = divmod(partition_count, len(ranked))
    return {member: base + (index < odd) for index, member in enumerate(ranked)}


def surplus_of(me: str, members: Mapping[str, Standing], partition_count: int) -> list[int]:
    """Return what *me* has to give up to the others."""
    kept = sorted(members[me].kept)
    return kept[shares(members, partition_count)[me] :]


def wanted_by(me: str, members: Mapping[str, Standing], partition_count: int, avoided: Collection[int]) -> list[int]:
    """Return the free partitions that *me* is to take, and no other member that sees the same.

    *avoided* are those that are not free although no member says so (a member that died a moment ago, say).
    """
    held = {partition for holding in members.values() for partition in (*holding.kept, *holding.revoking)}
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

    def hear(self, member: str, holding: Standing, now_s: float) -> None:
        """Note what *member* has announced."""
        self._heard[member] = (now_s, holding)

    def leave(self, member: str) -> None:
        """*member* has left."""
        self._heard.pop(member, None)

    def refresh(self, now_s: float) -> None:
        """Start the silences anew: no member could be heard for a while."""
        self._heard = {member: (now_s, holding) for member, (_, holding) in self._heard.items()}

    def clear(self) -> None:
        """Forget every member."""
        self._heard.clear()

    def present(self, now_s: float) -> dict[str, Standing]:
        """Return the members that are there."""
        oldest_s = now_s - self._silence_max_s
        self._heard = {member: heard for member, heard in self._heard.items() if heard[0] > oldest_s}
        return {member: holding for member, (_, holding) in self._heard.items()}
