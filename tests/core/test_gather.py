"""Items of concurrent transactions share a batch; nobody waits when the lane is idle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from txcore.drivers import run_blocking
from txcore.errors import BackendUnavailableError
from txcore.gather import IN_FLIGHT_MAX, Gatherer, Lane
from txcore.records import DURABLE, HalfRecord, Outcome, Resolution, Status


class Waiter:
    """Keeps its outcomes."""

    def __init__(self):
        self.outcomes = []

    def settle(self, outcome):
        self.outcomes.append(outcome)


@pytest.fixture
def sent():
    """The batches that were handed over."""
    return []


@pytest.fixture
def lane(sent):
    """A lane into `sent`, ten items a batch at most."""
    return Lane(sent.append, 10)


def fill(lane, count=IN_FLIGHT_MAX):
    """Make the lane as busy as it may be."""
    for number in range(count):
        lane.put(f"busy {number}", Waiter())


def test_a_lone_item_leaves_at_once(lane, sent):
    """As a batch of one."""
    waiter = Waiter()
    lane.put("a", waiter)
    assert [["a"]] == [batch.items for batch in sent]
    sent[0].settle(0, DURABLE)
    assert [DURABLE] == waiter.outcomes


def test_items_gather_while_the_lane_is_busy_and_leave_together(lane, sent):
    """One round trip for all of them, once a batch has landed."""
    fill(lane)
    for item in "abc":
        lane.put(item, Waiter())
    assert IN_FLIGHT_MAX == len(sent)
    sent[0].settle(0, DURABLE)
    lane.flush()
    assert ["a", "b", "c"] == sent[-1].items


def test_a_flush_of_a_busy_lane_sends_nothing(lane, sent):
    """Unless it is forced."""
    fill(lane)
    lane.put("a", Waiter())
    lane.flush()
    assert IN_FLIGHT_MAX == len(sent)
    lane.flush(force=True)
    assert ["a"] == sent[-1].items


def test_a_batch_is_bounded(sent):
    """More items than the backend takes at once leave as several batches."""
    lane = Lane(sent.append, 2)
    fill(lane)
    for item in "abcde":
        lane.put(item, Waiter())
    lane.flush(force=True)
    assert [["a", "b"], ["c", "d"], ["e"]] == [batch.items for batch in sent[IN_FLIGHT_MAX:]]


def test_each_waiter_hears_of_its_own_item(lane, sent):
    """Whatever the order in which a batch is settled."""
    fill(lane)
    waiters = [Waiter(), Waiter()]
    for item, waiter in zip("ab", waiters, strict=True):
        lane.put(item, waiter)
    lane.flush(force=True)
    refused = Outcome(Status.REFUSED)
    sent[-1].settle(1, refused)
    sent[-1].settle(0, DURABLE)
    assert [[DURABLE], [refused]] == [waiter.outcomes for waiter in waiters]


def test_a_backend_that_takes_nothing_refuses_each_item():
    """The error of the submitting call is every item's reason."""
    error = BackendUnavailableError("closed")

    def refuse(batch):
        raise error

    lane, waiter = Lane(refuse, 10), Waiter()
    lane.put("a", waiter)
    assert [(Status.REFUSED, error)] == [(each.status, each.error) for each in waiter.outcomes]
    lane.put("b", waiter)
    assert 2 == len(waiter.outcomes)


def test_a_busy_lane_holds_callers_for_a_moment_only(capabilities):
    """A backend that settles only when all have come still gets the last one: the wait is forced to an end."""
    callers = IN_FLIGHT_MAX + 3
    lock, held = threading.Lock(), []

    class Backend:
        def __init__(self):
            self.capabilities = capabilities()

        def append_halves(self, batch):
            with lock:
                held.extend((batch, index) for index in range(len(batch.items)))
                if len(held) < callers:
                    return
                ready, held[:] = list(held), []
            for each, index in ready:
                each.settle(index, DURABLE)

        def release(self, batch, claim):
            raise AssertionError("no release is sent")

        def poll(self, timeout_s, is_done):
            return False

    gatherer = Gatherer(Backend())

    def one():
        return (yield HalfRecord("g", 0, bytes(16), 0, b"", ()))

    with ThreadPoolExecutor(callers) as pool:
        outcomes = list(pool.map(lambda _: run_blocking(one(), gatherer), range(callers)))
    assert [DURABLE] * callers == outcomes


def test_releases_carry_the_claim(capabilities):
    """A checker's releases are fenced by its claim."""
    seen = []

    class Backend:
        def __init__(self):
            self.capabilities = capabilities()

        def append_halves(self, batch):
            raise AssertionError("no half is sent")

        def release(self, batch, claim):
            seen.append(claim)
            batch.settle(0, DURABLE)

    half = HalfRecord("g", 0, bytes(16), 0, b"", ())
    Gatherer(Backend(), "claim").releases.put(Resolution(half, None), Waiter())
    assert ["claim"] == seen
