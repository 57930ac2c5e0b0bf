"""The rule by which the members of a group share its partitions, where the broker has none."""

from __future__ import annotations

from collections.abc import Mapping


def fair_shares(held_counts: Mapping[str, int], partition_count: int) -> dict[str, int]:
    """Return the number of partitions for each member: all of them together, and equal within one.

    *held_counts* has the partitions that each member holds now; there is at least one member. Members that hold most
    get the odd partitions, so that few move; among equals the first in *held_counts*. Members with the same view, in
    the same order, get the same shares.
    """
    ranked = sorted(held_counts, key=lambda member: -held_counts[member])
    base, odd = divmod(partition_count, len(ranked))
    return {member: base + (index < odd) for index, member in enumerate(ranked)}
