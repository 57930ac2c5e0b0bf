"""The scenarios' world: a broker in memory under a clock that is advanced by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from txcore_conformance.kit import FAST, Answers, Kit
from txcore_conformance.memory import KafkaLikeHarness, MemoryHarness, NatsLikeHarness, RabbitmqLikeHarness
from txcore_sqlite.testing import SqliteHarness

from txcore import CheckPolicy, EndState, TransactionProducer

CREEP_S = 0.0001
SLOW = replace(FAST, poll_s=0.001, idle_poll_s=0.001, retry_s=1.0, retry_max_s=64.0, check_deadline_s=5.0)


class ManualClock:
    """A stopped clock that creeps at each reading, so that short pauses end; `offset_s` skews its wall time."""

    def __init__(self, origin=None, *, offset_s=0.0):
        self._origin = origin or self
        self._offset_s = offset_s
        self.now_s = 1_000_000.0

    def advance(self, seconds):
        self.now_s += seconds

    def wall_ms(self):
        return round((self._origin.now_s + self._offset_s) * 1000)

    def elapsed_s(self):
        self._origin.now_s += CREEP_S
        return self._origin.now_s

    def boot_id(self):
        return "manual"


class World(Kit):
    """A kit with a clock that the test advances, by hours if need be."""

    def __init__(self, harness):
        super().__init__(harness)
        self.clock = ManualClock()
        self.began_s = self.clock.now_s
        if isinstance(harness, MemoryHarness):
            harness.broker.clock = self.clock

    @property
    def now_s(self):
        """Seconds since the world began."""
        return self.clock.now_s - self.began_s

    def timed_producer(self, listener=None, *, clock=None, immunity_s=6.0, **options):
        """Return a producer under the world's clock."""
        return TransactionProducer(
            self.backend,
            self.group,
            listener=listener,
            clock=clock or self.clock,
            policy=CheckPolicy(immunity_s=immunity_s),
            **options,
        )

    def half(self, *messages, **options):
        """Return a prepared transaction under the world's clock."""
        transaction = self.timed_producer(**options).begin()
        for message in messages:
            transaction.publish(message)
        transaction.prepare()
        return transaction

    def timed_checker(self, listener=None, **options):
        """Return a checker under the world's clock."""
        options.setdefault("interval_s", 30.0)
        options.setdefault("check_max", 15)
        options.setdefault("limits", SLOW)
        return self.checker(listener, clock=self.clock, **options)

    def pass_time(self, seconds, *checkers, step_s=1.0):
        """Advance the clock in steps, with a sweep of each checker after each step."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self.clock.advance(min(step_s, end_s - self.clock.now_s))
            for checker in checkers:
                checker.run_once()


class Timed(Answers):
    """A listener that also remembers the time and the half of each question."""

    def __init__(self, world, answer, **options):
        super().__init__(answer, **options)
        self._world = world
        self.times = []

    def check_local_transaction(self, half):
        self.times.append((half.messages[0].body, self._world.now_s))
        return super().check_local_transaction(half)


def _closed(world):
    world.stop_checkers()
    broken = world.judge()
    world.close()
    assert [] == broken


@pytest.fixture(params=[MemoryHarness, KafkaLikeHarness, RabbitmqLikeHarness, NatsLikeHarness])
def world(request):
    """One world per profile of the memory broker; judged by the oracle at the end."""
    made = World(request.param())
    yield made
    _closed(made)


@pytest.fixture
def strong():
    """A world whose store keeps every promise."""
    made = World(MemoryHarness())
    yield made
    _closed(made)


@pytest.fixture
def plain():
    """A world whose store promises nothing but its logs."""
    made = World(KafkaLikeHarness())
    yield made
    _closed(made)


@pytest.fixture
def timed():
    """The class of a listener that remembers when it was asked."""
    return Timed


@pytest.fixture
def sqlite():
    """A kit on a file that other processes can open."""
    harness = SqliteHarness()
    harness.start()
    made = Kit(harness)
    yield made
    _closed(made)
    harness.stop()


@pytest.fixture
def skewed():
    """Return a function that makes a clock with a world's elapsed time and another wall time."""
    return lambda world, offset_s: ManualClock(world.clock, offset_s=offset_s)


BY_HANDLE = """
import sys, txcore
backend = txcore.connect(sys.argv[1])
producer = txcore.TransactionProducer(backend, sys.argv[2])
print(producer.attach(sys.argv[3]).commit().state.value)
backend.close(5).result(10)
"""


@pytest.fixture
def in_another_process():
    """Return a function that commits a handle in a process of its own and returns the end's state."""

    def commit(kit, handle):
        command = [sys.executable, "-c", BY_HANDLE, kit.harness.url, kit.group, handle]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return EndState[done.stdout.strip()]

    return commit
