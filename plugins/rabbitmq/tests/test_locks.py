"""Lost locks, and the names of their substitutes, on a fake connection."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelClosedByBroker
from txcore_rabbitmq.locks import REFUSALS_APART_MAX_S, Locks
from txcore_rabbitmq.names import claim_name

LOST_AFTER_S = 30.0
RETRY_S = 2.0


class Connection:
    """A fake connection that refuses or grants each declaration at once."""

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
    """Locks with a clock that the test sets."""

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
        """Try to lock partition 0 once more; return the name that was declared."""
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
    """After a lock was refused for too long, its substitute is taken; the cluster keeps the queue of a dead node."""
    names = {member.take() for _ in range(int(LOST_AFTER_S / RETRY_S) + 1)}
    assert names == {claim_name("g", 0, 0)}
    assert member.take() == claim_name("g", 0, 1)
    assert member.answers[-1] is True


def test_a_lock_that_a_member_announces_is_not_lost(member):
    """A lock that a member announces from time to time is not replaced, even if it is refused for long."""
    for number in range(100):
        assert member.take() == claim_name("g", 0, 0)
        if number % 3 == 2:
            member.locks.held_by_other([0])
    assert not any(member.answers)


def test_a_lock_is_given_back_under_the_name_that_was_asked_for(member):
    """The queue deleted for a lock is the one that was declared, even after a long time and an announcement."""
    for _ in range(int(LOST_AFTER_S / RETRY_S) + 1):
        member.take()
    assert member.take() == claim_name("g", 0, 1)
    member.now_s += 2 * REFUSALS_APART_MAX_S
    member.locks.held_by_other([0])
    member.locks.free(0)
    assert member.connection.deleted == [claim_name("g", 0, 1)]


def test_a_substitute_is_not_asked_for_after_a_while(member):
    """After a pause without refusals the first name is tried again, as old refusals came from another holder."""
    for _ in range(int(LOST_AFTER_S / RETRY_S) + 1):
        member.take()
    member.connection.holds.clear()
    assert member.take(REFUSALS_APART_MAX_S + 1.0) == claim_name("g", 0, 0)
