"""When a lock counts as lost, and under which name it is asked for; on a connection that is made up."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelClosedByBroker
from txcore_rabbitmq.locks import REFUSALS_APART_MAX_S, Locks
from txcore_rabbitmq.names import claim_name

LOST_AFTER_S = 30.0
RETRY_S = 2.0


class Connection:
    """Refuses or grants what is asked for, at once."""

    is_open = True

    def __init__(self):
        self.holds = set()  #: names that another connection holds
        self.asked = []
        self.deleted = []

    def channel(self, on_open_callback):
        self.callback = on_open_callback
        return self

    def open(self):
        self.callback(self)

    def add_on_close_callback(self, callback):
        self.closed = callback

    def queue_delete(self, name, *, callback):
        self.deleted.append(name)
        callback(None)

    def queue_declare(self, name, *, callback, **_):
        self.asked.append(name)
        if name in self.holds:
            self.closed(self, ChannelClosedByBroker(405, "RESOURCE_LOCKED"))
        else:
            callback(None)


class Member:
    """Locks with a clock that the test moves."""

    def __init__(self):
        self.now_s = 100.0
        self.answers = []
        self.connection = Connection()
        answered = lambda _partition, is_granted: self.answers.append(is_granted)  # noqa: E731
        self.locks = Locks(None, self, "g", LOST_AFTER_S, answered, lambda _: None)
        self.locks.open(self.connection)

    def elapsed_s(self):
        return self.now_s

    def take(self, after_s=RETRY_S):
        """Ask for partition 0 once more; returns the name that was asked for."""
        self.now_s += after_s
        self.locks.take(0)
        if self.locks._channel is self.connection and not self.connection.asked[len(self.answers) :]:
            self.connection.open()
        return self.connection.asked[-1]


@pytest.fixture
def member():
    made = Member()
    made.connection.holds.add(claim_name("g", 0, 0))
    return made


def test_a_lock_that_is_refused_for_long_is_replaced(member):
    """Its holder is dead, and its queue is kept for a node that is down."""
    names = {member.take() for _ in range(int(LOST_AFTER_S / RETRY_S) + 1)}
    assert names == {claim_name("g", 0, 0)}
    assert member.take() == claim_name("g", 0, 1)
    assert member.answers[-1] is True


def test_a_lock_that_a_member_announces_is_not_lost(member):
    """A member that stalls again and again, and speaks in between, holds it under its one name."""
    for number in range(100):
        assert member.take() == claim_name("g", 0, 0)
        if number % 3 == 2:
            member.locks.held_by_other([0])
    assert not any(member.answers)


def test_a_lock_is_given_back_under_the_name_that_was_asked_for(member):
    """Also where the answer came late, or a member spoke in between."""
    for _ in range(int(LOST_AFTER_S / RETRY_S) + 1):
        member.take()
    assert member.take() == claim_name("g", 0, 1)
    member.now_s += 2 * REFUSALS_APART_MAX_S
    member.locks.held_by_other([0])
    member.locks.free(0)
    assert member.connection.deleted == [claim_name("g", 0, 1)]


def test_a_substitute_is_not_asked_for_after_a_while(member):
    """Refusals long ago were of another holder: the next member would take the first name."""
    for _ in range(int(LOST_AFTER_S / RETRY_S) + 1):
        member.take()
    member.connection.holds.clear()
    assert member.take(REFUSALS_APART_MAX_S + 1.0) == claim_name("g", 0, 0)
