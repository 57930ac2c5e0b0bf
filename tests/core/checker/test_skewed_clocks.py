"""Half and op log on nodes whose clocks differ: a half is never judged before its immunity is over."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from txcore_conformance.kit import Answers
from txcore_conformance.owners import Owners

import txcore
from txcore.memory import KAFKA_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.records import LogKind, OpKind

IMMUNITY_S = 6.0
HOUR_MS = 3_600_000


class Cluster(MemoryBroker):
    """A broker whose half logs are led by a node with another clock."""

    skew_ms = 0

    def append(self, group, kind, partition, body):
        if kind is LogKind.HALF:
            clock, self.clock = self.clock, Skewed(self.clock, self.skew_ms)
            try:
                return super().append(group, kind, partition, body)
            finally:
                self.clock = clock
        return super().append(group, kind, partition, body)


class Skewed:
    def __init__(self, clock, skew_ms):
        self._clock, self._skew_ms = clock, skew_ms

    def wall_ms(self):
        return self._clock.wall_ms() + self._skew_ms


def cluster(clock, skew_ms):
    profile = replace(
        KAFKA_LIKE, capabilities=replace(KAFKA_LIKE.capabilities, half_retention_s=None, clock_skew_max_s=10.0)
    )
    broker = Cluster(profile, clock=clock)
    broker.skew_ms = skew_ms
    backend = MemoryBackend(broker)
    backend.ensure_group("g", 1).result()
    return broker, backend


def prepared(backend, clock):
    producer = txcore.TransactionProducer(backend, "g", clock=clock)
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"body"))
    transaction.prepare()
    return transaction


def checker_of(backend, clock, listener):
    return txcore.Checker(backend, "g", listener=listener, clock=clock)


def asks_once_immunity_is_over(checker, listener, clock):
    """Require that a half which was just prepared is asked about once: not before its immunity ends, and soon after."""
    began_s = clock.now_s
    while clock.now_s < began_s + IMMUNITY_S - 0.5:
        checker.run_once()
        assert listener.asked == [] or clock.now_s >= began_s + IMMUNITY_S
        clock.advance(0.2)
    clock.advance(2.0)
    checker.run_once()
    assert len(listener.asked) == 1
    checker.stop()


@pytest.mark.parametrize("skew_ms", [-24 * HOUR_MS, -HOUR_MS, -7_000, 0, 7_000, HOUR_MS])
def test_an_owner_counts_immunity_from_when_it_read_the_half(running_clock, skew_ms):
    """A half that came after the claim is asked about soon after its immunity, and not before, under any two clocks."""
    _, backend = cluster(running_clock, skew_ms)
    listener = Answers(txcore.LocalTransactionState.ROLLBACK)
    checker = checker_of(backend, running_clock, listener)
    checker.run_once()
    prepared(backend, running_clock)
    asks_once_immunity_is_over(checker, listener, running_clock)


@pytest.mark.parametrize("skew_ms", [-9_000, -7_000, 0, 7_000, HOUR_MS])
def test_a_new_owner_allows_for_clocks_that_differ(running_clock, skew_ms):
    """A new owner takes a half for old only if its append time is past by more than clocks may differ."""
    _, backend = cluster(running_clock, skew_ms)
    prepared(backend, running_clock)
    listener = Answers(txcore.LocalTransactionState.ROLLBACK)
    asks_once_immunity_is_over(checker_of(backend, running_clock, listener), listener, running_clock)


def test_old_halves_are_not_immune_again(running_clock):
    """A restarted checker asks at once about halves whose age leaves no doubt."""
    _, backend = cluster(running_clock, 0)
    for _ in range(20):
        prepared(backend, running_clock)
    running_clock.advance(60.0)
    began_s = running_clock.now_s
    listener = Answers(txcore.LocalTransactionState.ROLLBACK)
    checker = checker_of(backend, running_clock, listener)
    checker.run_once()
    assert len(listener.asked) == 20
    assert running_clock.now_s - began_s < IMMUNITY_S
    checker.stop()


@pytest.fixture(params=["another leader", "a clock that is set"])
def ahead(request):
    """Two ways in which the broker's clock jumps ahead under a running owner."""
    if request.param == "another leader":
        return Ahead(KAFKA_LIKE, [LogKind.OP], 9_000, clock_skew_max_s=10.0)
    return Ahead(STRONG, list(LogKind), HOUR_MS)


class Ahead(Owners):
    """A partition whose listener answers ROLLBACK; the clocks of some logs are *ahead_ms* ahead while `is_ahead`."""

    def __init__(self, profile, kinds, ahead_ms, **capabilities):
        super().__init__(profile, listener=lambda _: txcore.LocalTransactionState.ROLLBACK, **capabilities)
        self.is_ahead = False
        self._kinds, self._ahead_ms = kinds, ahead_ms
        self._append, self.broker.append = self.broker.append, self.append

    def append(self, group, kind, partition, body):
        """Append a record with the time of the log's own clock."""
        now_ms = self.clock.wall_ms() + self._ahead_ms * (self.is_ahead and kind in self._kinds)
        with mock.patch.object(self.clock, "wall_ms", return_value=now_ms):
            return self._append(group, kind, partition, body)

    def asked_s(self, number):
        """Run until the listener was asked about that half, and return the seconds that this took."""
        began_s = self.clock.now_s
        assert self.run(60, lambda: number in self.asked)
        return self.clock.now_s - began_s


def test_an_immunity_is_not_ended_by_a_clock_that_goes_ahead(ahead):
    """A clock that jumps ahead ends no immunity, because the producer counts it by a clock of its own."""
    ahead.start()
    ahead.run(2)
    ahead.half(7, immunity_ms=20_000)
    ahead.half(8)
    ahead.run(1)
    ahead.is_ahead = True
    ahead.half(9)
    assert 19.0 <= ahead.asked_s(7) <= 20.0
    assert {8, 9} < set(ahead.asked)
    ahead.half(10, immunity_ms=5_000)
    assert 5.0 <= ahead.asked_s(10) <= 6.0


def test_an_immunity_is_not_ended_by_a_claim_that_was_slow_to_come_back():
    """A claim that was read back late ends no immunity: a tick that comes back soon shows the broker's time."""
    world = Ahead(KAFKA_LIKE, [], 0, clock_skew_max_s=10.0)
    with mock.patch.object(world.faults, "readable", side_effect=lambda kind, _, count: count * (kind is LogKind.HALF)):
        world.start()
        world.run(4)
    world.run(1)
    world.half(7, immunity_ms=20_000)
    world.run(1)
    world.half(8)
    assert world.asked_s(7) >= 19.0


def test_a_copy_names_no_start_before_the_first_one():
    """A copy's start is by the clock of the op log's leader, and not before the append of the first half."""
    world = Ahead(KAFKA_LIKE, [LogKind.OP], 9_000, clock_skew_max_s=0.0, half_retention_s=4.0)
    owner = world.start()
    world.run(2)
    world.half(7, immunity_ms=20_000)
    stored_ms = world.clock.wall_ms()
    world.is_ahead = True
    world.half(8)
    world.run(3)
    assert world.copies(7)[-1].folded_to >= 0
    assert world.copies(7)[-1].first_appended_ms >= stored_ms + 9_000
    assert owner.tenure.is_active


def test_a_copy_under_the_claim_shortens_no_immunity():
    """A copy whose start is too early, by as much as clocks may differ, shortens no immunity."""
    world = Ahead(KAFKA_LIKE, [], 0, clock_skew_max_s=10.0)
    world.start()
    world.run(2)
    stored_ms = world.clock.wall_ms()
    world.half(7, immunity_ms=20_000)
    world.run(1)
    world.copied(7, immunity_ms=20_000, folded_to=1, first_appended_ms=stored_ms - 9_000)
    world.op(OpKind.NUDGE, 7)
    assert world.asked_s(7) >= 19.0
