"""A producer that was frozen for longer than its store keeps unique resolutions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from txcore_conformance.kit import FAST, Answers

import txcore
from txcore.memory import STRONG, MemoryBackend, MemoryBroker

KEPT_S = 600.0


@pytest.mark.parametrize(
    ("frozen_s", "state"),
    [(60.0, txcore.EndState.CONFLICT), (KEPT_S + 1, txcore.EndState.TOO_LATE), (1e6, txcore.EndState.TOO_LATE)],
)
def test_a_producer_frozen_beyond_the_stores_memory_publishes_nothing(running_clock, frozen_s, state):
    """A frozen producer's commit after a rollback is refused by the store or, once the store forgot, by the clock."""
    profile = replace(STRONG, capabilities=replace(STRONG.capabilities, resolution_kept_s=KEPT_S))
    broker = MemoryBroker(profile, clock=running_clock)
    backend = MemoryBackend(broker)
    producer = txcore.TransactionProducer(backend, "g", clock=running_clock)
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"body"))
    transaction.prepare()
    running_clock.advance(10.0)
    checker = txcore.Checker(
        backend, "g", listener=Answers(txcore.LocalTransactionState.ROLLBACK), limits=FAST, clock=running_clock
    )
    assert checker.run_once().rolled_back == 1
    checker.stop()
    running_clock.advance(frozen_s)
    assert transaction.commit().state is state
    assert broker.topics.get("t", []) == []
