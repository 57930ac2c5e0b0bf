"""The rules for sharing partitions, without a broker, in small groups."""

from __future__ import annotations

import random

import pytest
from txcore_rabbitmq.sharing import Roll, Standing, moves_of


def holding(*kept, revoking=()):
    return Standing(frozenset(kept), frozenset(revoking))


def test_odd_partitions_stay_with_the_members_that_hold_most():
    """A member with an odd partition keeps it, so that few partitions move."""
    members = {"a": holding(0), "b": holding(1, 2)}
    assert tuple(moves_of(name, members, 3, ()).give_up for name in members) == ([], [])


def test_a_newcomer_gets_its_share_of_what_the_others_have():
    """A new member takes the partitions that others give up, and only after they are free."""
    members = {"a": holding(0, 1, 2, 3), "b": holding()}
    assert moves_of("a", members, 4, ()).give_up == [2, 3]
    assert moves_of("b", members, 4, ()).take == []
    members["a"] = holding(0, 1, revoking=(2, 3))
    assert moves_of("b", members, 4, ()).take == []
    members["a"] = holding(0, 1)
    assert moves_of("b", members, 4, ()).take == [2, 3]
    assert moves_of("a", members, 4, ()).take == []


def test_members_that_see_the_same_want_different_partitions():
    """Members with the same view want different partitions, and together all of them."""
    members = {name: holding() for name in "abc"}
    wanted = [moves_of(name, members, 8, ()).take for name in members]
    assert sorted(partition for each in wanted for partition in each) == list(range(8))
    assert [len(each) for each in wanted] == [3, 3, 2]


def test_what_is_locked_is_left_alone_and_the_rest_is_taken():
    """A member takes only partitions that are not avoided, as a killed member may still hold locks."""
    assert moves_of("a", {"a": holding()}, 4, {0, 2}).take == [1, 3]


def test_more_members_than_partitions():
    """Members without a partition wait; no member gives up its only one for them."""
    members = {"a": holding(0), "b": holding(1), "c": holding()}
    assert [moves_of(name, members, 2, ()).give_up for name in members] == [[], [], []]
    assert moves_of("c", members, 2, ()).take == []


@pytest.mark.parametrize("seed", range(50))
def test_any_group_comes_to_rest_with_equal_shares(seed):
    """A few rounds after members come or go, each partition has one owner, and shares differ by one at most."""
    chance = random.Random(seed)
    count = chance.randint(1, 12)
    held = {f"m{number}": set() for number in range(chance.randint(1, 5))}
    for _ in range(3):
        if chance.random() < 0.5:
            held[f"n{chance.random()}"] = set()
        elif len(held) > 1:
            del held[chance.choice(sorted(held))]
        for _ in range(4):
            members = {name: holding(*partitions) for name, partitions in held.items()}
            for name in held:
                held[name] -= set(moves_of(name, members, count, ()).give_up)
            members = {name: holding(*partitions) for name, partitions in held.items()}
            for name in held:
                held[name] |= set(moves_of(name, members, count, ()).take)
        assert sorted(partition for each in held.values() for partition in each) == list(range(count))
        assert max(map(len, held.values())) - min(map(len, held.values())) <= 1


def test_a_member_that_is_silent_for_too_long_is_gone():
    """A member that is silent for too long is gone; after a refresh the silence counts anew."""
    roll = Roll(3.0)
    roll.hear("a", holding(1), 10.0)
    roll.hear("b", holding(2), 12.0)
    assert {"a": holding(1), "b": holding(2)} == roll.present(12.9)
    assert {"b": holding(2)} == roll.present(13.5)
    roll.refresh(16.0)
    assert {"b": holding(2)} == roll.present(18.0)
    roll.leave("b")
    assert roll.present(18.0) == {}
