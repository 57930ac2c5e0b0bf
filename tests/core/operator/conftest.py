"""A broker in memory, a producer that leaves its halves alone, and a checker that parks them."""

from __future__ import annotations

import pytest

from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)
from txcore.memory import MemoryBackend, MemoryBroker


class Unsure(TransactionListener):
    """A listener that always answers UNKNOWN."""

    def check_local_transaction(self, half):
        return LocalTransactionState.UNKNOWN


@pytest.fixture
def broker(running_clock):
    return MemoryBroker(clock=running_clock)


@pytest.fixture
def orphan(broker, running_clock):
    def make():
        policy = CheckPolicy(immunity_s=3)
        producer = TransactionProducer(MemoryBackend(broker), "g", clock=running_clock, policy=policy)
        transaction = producer.begin()
        transaction.publish(Message("t", b"b"))
        transaction.prepare()
        running_clock.advance(10)
        return transaction.transaction_id

    return make


@pytest.fixture
def checker(broker, running_clock):
    limits = Limits(poll_s=0.001, idle_poll_s=0.001, retry_s=0.01)
    policy = CheckPolicy(interval_s=1, check_max=1)
    backend = MemoryBackend(broker)
    checker = Checker(backend, "g", clock=running_clock, limits=limits, policy=policy, listener=Unsure())
    yield checker
    checker.stop()
