"""A member's partitions: any order of grants, drains, losses, polls and answers, against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from txcore.backends.holdings import Holdings, State
from txcore.records import ClaimEvent, ClaimEventKind

ASSIGNED, REVOKING, LOST = ClaimEventKind.ASSIGNED, ClaimEventKind.REVOKING, ClaimEventKind.LOST
PARTITIONS = st.integers(0, 2)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now_s = 100.0

    def elapsed_s(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def holdings(clock):
    return Holdings(clock.elapsed_s)


def polled(holdings):
    return [(event.kind, event.partition) for event in holdings.poll()]


def hold(holdings, *partitions):
    """Assign *partitions* and let the checker learn of them."""
    for partition in partitions:
        holdings.assign(partition)
    assert polled(holdings) == [(ASSIGNED, partition) for partition in partitions]


def test_events_come_once_and_in_order(holdings):
    """A poll returns what happened since the one before."""
    for partition in (3, 1, 2):
        holdings.assign(partition)
    holdings.assign(1)
    assert polled(holdings) == [(ASSIGNED, 3), (ASSIGNED, 1), (ASSIGNED, 2)]
    assert polled(holdings) == []


def test_a_revoked_partition_drains_until_it_is_given_up(holdings, clock):
    """REVOKING carries the time that is left, comes once, and its partition leaves with the answer."""
    hold(holdings, 0, 1)
    assert not holdings.revoke(0, clock.now_s + 5)
    assert not holdings.revoke(0, clock.now_s + 50)
    assert holdings.poll() == [ClaimEvent(REVOKING, 0, 5.0)]
    assert (holdings.held, holdings.kept, holdings.draining) == ({0, 1}, {1}, {0})
    assert holdings.give_up(0) is State.DRAINING
    assert (holdings.held, holdings.draining, holdings.leaving) == ({1}, set(), {0})
    clock.now_s += 50
    assert holdings.lose_overdue() == []
    assert polled(holdings) == []


def test_a_partition_that_drains_for_too_long_is_lost_and_leaves(holdings, clock):
    """LOST replaces a REVOKING that was not polled; a late answer changes nothing."""
    hold(holdings, 0)
    holdings.revoke(0, clock.now_s + 5)
    clock.now_s += 5
    assert holdings.lose_overdue() == [0]
    assert holdings.give_up(0) is None
    assert polled(holdings) == [(LOST, 0)]
    assert (holdings.held, holdings.leaving) == (set(), {0})


@pytest.mark.parametrize("end", [lambda each: each.revoke(0, 200.0), lambda each: each.lose([0]), Holdings.lose_all])
def test_an_assignment_that_ends_before_it_was_polled_leaves_no_event(holdings, end):
    """Neither ASSIGNED nor REVOKING nor LOST is polled for it; earlier losses still are."""
    hold(holdings, 0)
    holdings.lose([0])
    holdings.assign(0)
    end(holdings)
    assert polled(holdings) == [(LOST, 0)]
    assert holdings.held == set()


def test_giving_up_refers_to_the_assignment_that_was_polled(holdings):
    """An answer to an assignment that is over, or given twice, leaves the next assignment alone."""
    holdings.assign(0)
    assert holdings.give_up(0) is None, "not polled yet"
    assert polled(holdings) == [(ASSIGNED, 0)]
    holdings.lose([0])
    holdings.assign(0)
    assert holdings.give_up(0) is None, "the next one was not polled"
    assert polled(holdings) == [(LOST, 0), (ASSIGNED, 0)]
    assert holdings.give_up(0) is State.HELD
    assert holdings.give_up(0) is None
    assert holdings.give_up(7) is None


def test_a_leaving_partition_is_assigned_only_after_it_was_given_back(holdings):
    """An old view of the broker's, in which the partition is still this member's, assigns nothing."""
    hold(holdings, 0)
    holdings.give_up(0)
    holdings.assign(0)
    assert not holdings.revoke(0, 200.0)
    assert polled(holdings) == []
    holdings.freed(0)
    hold(holdings, 0)
    holdings.freed(0)
    assert holdings.held == {0}


def test_a_partition_that_the_broker_never_took_back_is_offered_again(holdings):
    """Only a partition that still leaves is offered: one that was lost meanwhile is not."""
    hold(holdings, 0, 1)
    holdings.give_up(0)
    holdings.give_up(1)
    holdings.lose([1])
    holdings.offer_again(0)
    holdings.offer_again(1)
    assert polled(holdings) == [(ASSIGNED, 0)]


def test_closing_ends_everything(holdings):
    """A closed member has no events, answers nothing and is assigned nothing; what it had leaves."""
    hold(holdings, 0, 1)
    holdings.give_up(1)
    holdings.assign(2)
    assert holdings.close() == [0, 2]
    assert holdings.close() == []
    holdings.assign(3)
    holdings.offer_again(0)
    assert polled(holdings) == []
    assert holdings.give_up(0) is None
    assert (holdings.held, holdings.leaving) == (set(), {0, 1, 2})


def test_time_without_a_poll_is_counted(holdings, clock):
    """A checker is stuck some time after the start, or after its last poll; by default it never is."""
    limited = Holdings(clock.elapsed_s, stuck_after_s=3.0)
    for _ in range(2):
        clock.now_s += 3
        assert not limited.is_stuck
        clock.now_s += 0.1
        assert limited.is_stuck
        limited.poll()
    clock.now_s += 1e9
    assert not holdings.is_stuck


def test_a_stuck_checker_resigns(holdings, clock):
    """All that it had leaves, once; it polls the losses of what it knew, and no other event."""
    hold(holdings, 0, 1)
    holdings.revoke(1, clock.now_s + 5)
    holdings.assign(2)
    assert holdings.resign() == [0, 1, 2]
    assert holdings.resign() == []
    assert (holdings.held, holdings.leaving) == (set(), {0, 1, 2})
    assert polled(holdings) == [(LOST, 0), (LOST, 1)]


class AnyOrder(RuleBasedStateMachine):
    """Random steps, and a model that remembers each assignment by a number and the news that is due of it.

    A checker that applies every event holds exactly what the model says, and no event surprises it.
    """

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.holdings = Holdings(self.clock.elapsed_s)
        self.count = 0
        self.owned = {}  # partition -> number of its assignment
        self.known = {}  # partition -> number of the assignment that the checker believes in
        self.asked = {}  # partition -> when it must be given up
        self.leaving = set()
        self.warned = set()  # partitions whose REVOKING the checker has seen

    def end(self, partition, *, leaves):
        self.owned.pop(partition, None)
        self.asked.pop(partition, None)
        self.leaving.discard(partition)
        if leaves:
            self.leaving.add(partition)

    def is_current(self, partition):
        return partition in self.owned and self.known.get(partition) == self.owned[partition]

    @rule(partition=PARTITIONS)
    def assign(self, partition):
        self.holdings.assign(partition)
        if partition not in self.owned and partition not in self.leaving:
            self.count += 1
            self.owned[partition] = self.count

    @rule(partition=PARTITIONS, drain_s=st.integers(1, 5))
    def revoke(self, partition, drain_s):
        is_unknown = partition in self.owned and not self.is_current(partition)
        assert self.holdings.revoke(partition, self.clock.now_s + drain_s) == is_unknown
        if is_unknown:
            self.end(partition, leaves=True)
        elif partition in self.owned:
            self.asked.setdefault(partition, self.clock.now_s + drain_s)

    @rule(partition=PARTITIONS)
    def lose(self, partition):
        self.holdings.lose([partition])
        self.end(partition, leaves=False)

    @rule(seconds=st.integers(1, 5))
    def pass_time(self, seconds):
        self.clock.now_s += seconds
        overdue = sorted(each for each, until_s in self.asked.items() if until_s <= self.clock.now_s)
        assert self.holdings.lose_overdue() == overdue
        for partition in overdue:
            self.end(partition, leaves=True)

    @rule()
    def resign(self):
        assert self.holdings.resign() == sorted(self.owned)
        for partition in list(self.owned):
            self.end(partition, leaves=True)

    @rule(partition=PARTITIONS)
    def give_up(self, partition):
        assert (self.holdings.give_up(partition) is not None) == self.is_current(partition)
        if self.is_current(partition):
            self.end(partition, leaves=True)
            del self.known[partition]
            self.warned.discard(partition)

    @rule(partition=PARTITIONS)
    def freed(self, partition):
        self.holdings.freed(partition)
        self.leaving.discard(partition)

    @rule(partition=PARTITIONS)
    def offer_again(self, partition):
        self.holdings.offer_again(partition)
        if partition in self.leaving:
            self.leaving.discard(partition)
            self.count += 1
            self.owned[partition] = self.count

    @rule()
    def poll(self):
        seen = dict.fromkeys(self.known)
        for event in self.holdings.poll():
            if event.kind is ASSIGNED:
                assert event.partition not in seen, "assigned twice"
                seen[event.partition] = None
                self.known[event.partition] = self.owned[event.partition]
            elif event.kind is REVOKING:
                assert event.partition in seen, "nothing to give up"
                assert self.asked[event.partition] > self.clock.now_s
                self.warned.add(event.partition)
            else:
                del seen[event.partition]
                del self.known[event.partition]
                self.warned.discard(event.partition)
        assert self.known == self.owned
        assert self.warned == set(self.asked)

    @invariant()
    def partitions_agree(self):
        assert self.holdings.held == set(self.owned)
        assert self.holdings.draining == set(self.asked)
        assert self.holdings.kept == self.owned.keys() - self.asked
        assert self.holdings.leaving == self.leaving


TestAnyOrder = AnyOrder.TestCase
