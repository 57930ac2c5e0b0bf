"""Blocked callers are woken a few at a time, and none is forgotten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from txcore.records import DURABLE
from txcore.runtime.wakeup import PASSING_MAX, Turnstile


@pytest.fixture
def turnstile():
    """A turnstile without callers."""
    return Turnstile()


def is_woken(seat):
    """Return whether the caller in *seat* may continue."""
    return not seat.turn.locked()


def settled(turnstile, count):
    """Return the seats of *count* callers that have their outcomes."""
    seats = [turnstile.sit() for _ in range(count)]
    for seat in seats:
        seat.settle(0, DURABLE)
    return seats


def test_a_lone_caller_is_woken_at_once(turnstile):
    """The outcome of a lone caller wakes it at once."""
    seat = turnstile.sit()
    assert not is_woken(seat)
    seat.settle(0, DURABLE)
    assert is_woken(seat)
    assert DURABLE is seat.outcome


def test_of_a_burst_a_few_are_woken_and_each_lets_one_more_through(turnstile):
    """A few callers of a burst are woken, in the order of their outcomes, and each that leaves wakes one more."""
    seats = settled(turnstile, PASSING_MAX + 2)
    assert [True] * PASSING_MAX + [False] * 2 == [is_woken(seat) for seat in seats]
    assert all(seat.is_settled() for seat in seats)
    seats[1].leave()
    assert [True, False] == [is_woken(seat) for seat in seats[PASSING_MAX:]]
    seats[0].leave()
    assert is_woken(seats[-1])


def test_once_all_have_left_the_next_burst_wakes_as_many(turnstile):
    """No place is lost, whether callers leave in turn, twice, or before their turn."""
    for _ in range(3):
        seats = settled(turnstile, PASSING_MAX + 3)
        for seat in (seats[-1], *seats, *seats):
            seat.leave()
    assert all(map(is_woken, settled(turnstile, PASSING_MAX)))


def test_caller_that_left_without_an_outcome_takes_no_place(turnstile):
    """A caller whose time was up, or that was interrupted, takes no place in the turnstile."""
    gone = [turnstile.sit() for _ in range(PASSING_MAX + 1)]
    for seat in gone:
        seat.leave()
        seat.settle(0, DURABLE)
        assert seat.outcome is None
    assert all(map(is_woken, settled(turnstile, PASSING_MAX)))


def test_places_that_interrupted_callers_kept_are_given_back(turnstile):
    """An interrupted caller may keep its place; the first caller that waits too long for its turn ends that."""
    kept = settled(turnstile, PASSING_MAX)
    assert all(map(is_woken, kept))
    waiting = settled(turnstile, 2)
    assert not any(map(is_woken, waiting))
    turnstile.reopen()
    assert all(map(is_woken, waiting))
    for seat in (*kept, *waiting):
        seat.leave()
    assert all(map(is_woken, settled(turnstile, PASSING_MAX)))


def test_a_caller_is_alone_until_another_one_waits(turnstile):
    """Callers that have their outcome, or have left, do not wait."""
    first = turnstile.sit()
    assert turnstile.is_alone()
    second = turnstile.sit()
    assert not turnstile.is_alone()
    second.settle(0, DURABLE)
    assert turnstile.is_alone()
    third = turnstile.sit()
    first.leave()
    assert turnstile.is_alone()
    third.settle(0, DURABLE)
    second.leave()
    third.leave()
    assert turnstile.is_alone()


def test_many_callers_and_outcomes_at_once_all_pass(turnstile):
    """Each of many concurrent callers passes within its time limit."""
    count = 4 * PASSING_MAX

    def caller(_):
        for _ in range(200):
            seat = turnstile.sit()
            settlers.submit(seat.settle, 0, DURABLE)
            assert seat.turn.acquire(timeout=30)
            seat.leave()
        return True

    with ThreadPoolExecutor(2) as settlers, ThreadPoolExecutor(count) as callers:
        assert all(callers.map(caller, range(count)))
    assert all(map(is_woken, settled(turnstile, PASSING_MAX)))
