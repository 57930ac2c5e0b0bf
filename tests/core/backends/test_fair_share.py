"""Members of a group have equal shares of its partitions, and few partitions move."""

from __future__ import annotations

import pytest

from txcore.backends.fair_share import fair_moves, fair_shares


@pytest.mark.parametrize("partition_count", range(1, 10))
@pytest.mark.parametrize("member_count", range(1, 6))
def test_shares_are_equal_within_one_and_add_up(partition_count, member_count):
    """The shares of all members add up to all partitions, and differ by one at most."""
    shares = fair_shares({f"m{number}": number for number in range(member_count)}, partition_count).values()
    assert sum(shares) == partition_count
    assert max(shares) - min(shares) <= 1


def test_odd_partitions_stay_with_the_members_that_hold_most():
    """A member that holds an odd partition keeps it, so that few partitions move."""
    assert fair_shares({"a": 1, "b": 2}, 3) == {"a": 1, "b": 2}
    assert fair_shares({"a": 2, "b": 1}, 3) == {"a": 2, "b": 1}


def test_first_of_equal_members_gets_the_odd_partition():
    """Equal members get odd partitions in their order, so that all members with one view agree."""
    assert fair_shares({"b": 1, "a": 1}, 3) == {"b": 2, "a": 1}


@pytest.mark.parametrize(
    ("kept", "free", "share", "moves"),
    [
        ({5, 0, 9, 3}, [1, 2], 2, ([], [5, 9])),
        ({5, 0}, [7, 1, 2], 4, ([7, 1], [])),
        ({5, 0}, [7], 4, ([7], [])),
        ({5, 0}, [7], 2, ([], [])),
        ((), [7], 0, ([], [])),
        ({5}, [], 0, ([], [5])),
    ],
)
def test_a_member_takes_the_first_free_partitions_or_gives_up_its_last(kept, free, share, moves):
    """A member below its share takes free partitions in their order; one above it gives up those with high numbers."""
    assert fair_moves(kept, free, share) == moves
