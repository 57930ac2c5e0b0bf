"""A DISCARD that holds its generation's place without being in force (a store with unique resolutions)."""

from __future__ import annotations

import pytest
from txcore_conformance.kit import Answers

from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    LocalTransactionState,
    Message,
    TransactionProducer,
)
from txcore.history.journey import journeys_of
from txcore.memory import NATS_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.records import HalfRecord, LogKind, Op, OpKind, Resolution
from txcore.runtime.drivers import BlockingBridge, run_blocking


def one(command):
    return (yield command)


@pytest.mark.parametrize("profile", [NATS_LIKE, STRONG], ids=["nats-like", "strong"])
@pytest.mark.parametrize("answer", [LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN])
def test_a_stale_discard_does_not_close_a_half(profile, answer, running_clock):
    """A replaced owner's DISCARD lands behind the new claim: the half goes on under the next generation."""
    listener, clock = Answers(answer), running_clock
    broker = MemoryBroker(profile, clock=clock)
    backend = MemoryBackend(broker)
    producer = TransactionProducer(
        backend, "g", listener=listener, clock=clock, partition_count=1, policy=CheckPolicy(immunity_s=5)
    )
    identity = producer.send_message_in_transaction(Message("t", b"body")).transaction_id
    for token in (b"old" + bytes(13), b"new" + bytes(13)):
        backend.mark("g", 0, Op(OpKind.CLAIM, token, token=token)).result(1)
    half = HalfRecord("g", 0, identity, 0, b"", ())
    stale = Op(OpKind.DISCARD, identity, 0, "c:old", 0, b"old" + bytes(13), reason="CHECKS_EXHAUSTED")
    run_blocking(one(Resolution(half, stale, (), b"parked", "c:old", flush=True)), BlockingBridge(backend))
    clock.advance(10)
    policy, limits = CheckPolicy(check_max=1), Limits(poll_s=0.001)
    checker = Checker(backend, "g", listener=listener, clock=clock, policy=policy, limits=limits)
    for _ in range(3):
        checker.run_once()
    checker.stop()
    logs = [broker.log("g", kind, 0) for kind in (LogKind.HALF, LogKind.OP)]
    journey = journeys_of(0, *logs, ())[identity]
    assert 1 == journey.generation
    if answer is LocalTransactionState.COMMIT:
        assert (OpKind.COMMIT, [b"body"]) == (journey.final, [target.body for target in broker.topics["t"]])
    else:
        assert journey.is_parked
