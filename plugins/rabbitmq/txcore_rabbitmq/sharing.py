"""The rules by which a group's members share its partitions, computed from their announcements only.

Members may get announcements late or in a different order; then a partition stays free a little longer, or a member
tries its lock in vain. The exclusive queues, not this module, prevent two owners of one partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from txcore.backends.fair_share import Moves, fair_moves, fair_shares


class Standing(NamedTuple):
    """The partitions of one member: those it keeps, and those it gives up after it has finished its current work."""

    kept: frozenset[int] = frozenset()
    revoking: frozenset[int] = frozenset()


def moves_of(me: str, members: Mapping[str, Standing], partition_count: int, avoided: Collection[int]) -> Moves:
    """Return the partitions that *me* must give up, or take; other members with the same view take different ones.

    *avoided* are partitions that no member announces but that are not free, as after the recent death of a member.
    """
    shares = fair_shares({member: len(members[member].kept) for member in sorted(members)}, partition_count)
    held = {partition for each in members.values() for partition in (*each.kept, *each.revoking)}
    free = [partition for partition in range(partition_count) if partition not in held and partition not in avoided]
    for member, share in shares.items():
        if member == me:
            break
        free = free[len(fair_moves(members[member].kept, free, share).take) :]
    return fair_moves(members[me].kept, free, shares[me])


class Roll:
    """The other members of a group, each with its last announcement, until it was silent for too long."""

    def __init__(self, silence_max_s: float) -> None:
        self._silence_max_s = silence_max_s
        self._heard: dict[str, tuple[float, Standing]] = {}

    def hear(self, member: str, holding: Standing, now_s: float) -> None:
        """Remember the partitions that *member* has announced."""
        self._heard[member] = (now_s, holding)

    def leave(self, member: str) -> None:
        """Forget *member*, which has left."""
        self._heard.pop(member, None)

    def refresh(self, now_s: float) -> None:
        """Count every member as heard now, as no announcement could arrive for a while."""
        self._heard = {member: (now_s, holding) for member, (_, holding) in self._heard.items()}

    def clear(self) -> None:
        """Forget every member."""
        self._heard.clear()

    def present(self, now_s: float) -> dict[str, Standing]:
        """Return the members that are present, with their partitions."""
        oldest_s = now_s - self._silence_max_s
        self._heard = {member: heard for member, heard in self._heard.items() if heard[0] > oldest_s}
        return {member: holding for member, (_, holding) in self._heard.items()}
