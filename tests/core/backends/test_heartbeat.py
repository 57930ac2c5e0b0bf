"""The heartbeats of a backend's members: at once, in time, when woken, and never after the end."""

from __future__ import annotations

import threading

import pytest

from txcore.backends.heartbeat import BEATS_PER_LEASE, Heartbeat
from txcore.errors import ClosedError
from txcore.port import resolved

WAIT_S = 10.0
NEVER_S = 10_000.0


class Member:
    """Counts its heartbeats."""

    def __init__(self, heartbeat, error=None):
        self.heartbeat, self.error = heartbeat, error
        self.beats = threading.Semaphore(0)
        self.is_closed = False
        self.is_stuck = False

    def beat(self):
        self.beats.release()
        if self.error is not None and threading.current_thread() is not threading.main_thread():
            raise self.error

    def close(self, timeout_s):
        self.is_closed = True
        self.heartbeat.forget(self)
        return resolved(None)


@pytest.fixture
def heartbeats():
    """Return a function that makes heartbeats, which end with the test."""
    made = []

    def make(lease_s):
        made.append(Heartbeat("test-heartbeat", lease_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_new_member_beats_at_once_and_then_a_few_times_a_lease(heartbeats):
    """The first heartbeat is made by the call; the thread makes the others."""
    heartbeat = heartbeats(0.01 * BEATS_PER_LEASE)
    member = Member(heartbeat)
    heartbeat.add(member)
    for _ in range(3):
        assert member.beats.acquire(timeout=WAIT_S)


def test_a_wake_makes_every_member_beat(heartbeats):
    """Members of a long lease beat when they are woken; one that was forgotten does not."""
    heartbeat = heartbeats(NEVER_S)
    first, second, gone = (Member(heartbeat) for _ in range(3))
    for member in (first, second, gone):
        heartbeat.add(member)
        assert member.beats.acquire(timeout=WAIT_S)
    heartbeat.forget(gone)
    heartbeat.forget(gone)
    heartbeat.wake()
    assert all(member.beats.acquire(timeout=WAIT_S) for member in (first, second))
    assert not gone.beats.acquire(blocking=False)


def test_a_stuck_member_does_not_beat(heartbeats):
    """Its lease runs out; it beats again when it is no longer stuck."""
    heartbeat = heartbeats(NEVER_S)
    stuck, other = Member(heartbeat), Member(heartbeat)
    for member in (stuck, other):
        heartbeat.add(member)
        assert member.beats.acquire(timeout=WAIT_S)
    stuck.is_stuck = True
    heartbeat.wake()
    assert other.beats.acquire(timeout=WAIT_S)
    assert not stuck.beats.acquire(blocking=False)
    stuck.is_stuck = False
    heartbeat.wake()
    assert stuck.beats.acquire(timeout=WAIT_S)


@pytest.mark.parametrize("error", [None, ClosedError("the backend is closed")])
def test_the_end_closes_the_members_and_the_thread(heartbeats, error):
    """The thread ends after `close`, and after a member that says that its backend is closed."""
    heartbeat = heartbeats(NEVER_S)
    member = Member(heartbeat, error)
    heartbeat.add(member)
    thread = heartbeat._thread
    if error is None:
        heartbeat.close()
        assert member.is_closed
    else:
        heartbeat.wake()
    thread.join(WAIT_S)
    assert not thread.is_alive()
