"""Half and op log on nodes whose clocks differ: a half is never judged before its immunity is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from txcore_conformance.kit import Answers

import txcore
from txcore.memory import KAFKA_LIKE, MemoryBackend, MemoryBroker
from txcore.records import LogKind

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
    """Whatever the two clocks say of a half that came after its claim: not asked early, and not much later."""
    _, backend = cluster(running_clock, skew_ms)
    listener = Answers(txcore.LocalTransactionState.ROLLBACK)
    checker = checker_of(backend, running_clock, listener)
    checker.run_once()
    prepared(backend, running_clock)
    asks_once_immunity_is_over(checker, listener, running_clock)


@pytest.mark.parametrize("skew_ms", [-9_000, -7_000, 0, 7_000, HOUR_MS])
def test_a_new_owner_allows_for_clocks_that_differ(running_clock, skew_ms):
    """What it finds when it begins is old only if the append time says so by more than clocks may differ."""
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
