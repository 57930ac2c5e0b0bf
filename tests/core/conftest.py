"""Fixtures of the core's unit tests: a clock, randomness and a fence that the test controls, and flows run by steps."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from txcore_conformance.clocks import RunningClock

from txcore.fence import FenceAnswer, FenceReading
from txcore.ids import IdFactory
from txcore.message import CheckPolicy
from txcore.producer.transaction import ProducerContext
from txcore.records import Capabilities
from txcore.testing import ManualClock


class Counting:
    """Randomness that counts: every number is new and predictable."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def getrandbits(self, k):
        return next(self._numbers) % (1 << k)


class HandFence:
    """A fence whose answers the test sets; flows only name its methods."""

    is_async = False
    digests = True

    def __init__(self) -> None:
        self.open = False
        self.answer = FenceAnswer.COMMIT

    def is_open(self, connection):
        return self.open

    def begin(self, engine, transaction_id, group):
        raise AssertionError("flows call through the driver")

    insert = verify = withdraw = commit = rollback = force = begin

    def database_of(self, connection):
        return b""

    def known_database(self):
        return b""

    def check(self, transaction_ids, group):
        return {identity: FenceReading(self.answer) for identity in transaction_ids}

    def settled(self, transaction_ids, connection=None):
        return {identity: FenceReading(self.answer) for identity in transaction_ids}


def run_to_end(flow, value=None):
    """Send *value* into a flow that must end with it, and return its result."""
    with pytest.raises(StopIteration) as stop:
        flow.send(value)
    return stop.value.value


def throw_to_end(flow, error):
    """Throw *error* into a flow that must end with it, and return its result."""
    with pytest.raises(StopIteration) as stop:
        flow.throw(error)
    return stop.value.value


@pytest.fixture
def running_clock():
    """A clock that moves with real time, and a little with each reading."""
    return RunningClock()


@pytest.fixture
def clock():
    """A clock that the test controls."""
    return ManualClock()


@pytest.fixture
def randomness():
    """Numbers that count up."""
    return Counting()


@pytest.fixture
def fence():
    """A fence that the test controls."""
    return HandFence()


@pytest.fixture
def context(clock, randomness, fence):
    """A producer's context with a fence, immunity 6 s, margin 2 s."""
    return ProducerContext(
        "orders", 4, clock, IdFactory(clock, randomness), CheckPolicy(), 2.0, 100_000, "p:test", fence
    )


@pytest.fixture
def by_hand():
    """The two ways to end a flow that is driven by hand, and classes for a clock and randomness."""
    return SimpleNamespace(run_to_end=run_to_end, throw_to_end=throw_to_end, HandClock=ManualClock, Counting=Counting)


@pytest.fixture
def capabilities():
    """Return a function that makes capabilities, nothing promised unless named."""

    def make(**promised):
        nothing = dict.fromkeys(
            ("atomic_release", "resolution_is_unique", "fences_checkers", "server_time", "rejects_when_full"), False
        )
        return Capabilities(**(nothing | promised))

    return make
