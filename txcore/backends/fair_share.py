"""The rule by which the members of a group share its partitions, where the broker has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


def fair_shares(held_counts: Mapping[str, int], partition_count: int) -> dict[str, int]:
    """Return the number of partitions for each member: all of them together, and equal within one.

    *held_counts* has the partitions that each member holds now; there is at least one member. Members that hold most
    get the odd partitions, so that few move; among equals the first in *held_counts*. Members with the same view, in
    the same order, get the same shares.
    """
    ranked = sorted(held_counts, key=lambda member: -held_counts[member])
    base, odd = divmod(partition_count, len(ranked))
    return {member: base + (index < odd) for index, member in enumerate(ranked)}


class Moves(NamedTuple):
    """The partitions that a member takes, and those that it begins to give up; one of the two is empty."""

    take: list[int]
    give_up: list[int]


def fair_moves(kept: Collection[int], free: Sequence[int], share: int) -> Moves:
    """Return how a member comes to its *share*: it takes the first *free* partitions, or gives up its last ones.

    *kept* are the partitions that it holds, without those that it gives up already.
    """
    return Moves(list(free[: max(0, share - len(kept))]), sorted(kept)[share:])
