"""A DISCARD that occupies its generation's place although it is void (on a store with unique resolutions)."""

from __future__ import annotations

import pytest
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.kit import Answers
from txcore_conformance.owners import Owners

from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    LocalTransactionState,
    Message,
    TransactionProducer,
)
from txcore.history.folding import journeys_of
from txcore.memory import NATS_LIKE, STRONG, Faults, MemoryBackend, MemoryBroker
from txcore.records import HalfRecord, LogKind, Op, OpKind, Resolution
from txcore.runtime.drivers import BlockingBridge, run_blocking


def one(command):
    return (yield command)


@pytest.mark.parametrize("profile", [NATS_LIKE, STRONG], ids=["nats-like", "strong"])
@pytest.mark.parametrize("answer", [LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN])
def test_a_stale_discard_does_not_close_a_half(profile, answer, running_clock):
    """A replaced owner's DISCARD lands after the new claim: the half continues under the next generation."""
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


class SilentHalves(Faults):
    """Faults with which the half log brings nothing while `is_on`."""

    is_on = False

    def readable(self, kind, partition, count):
        return 0 if self.is_on and kind is LogKind.HALF else count


def test_a_second_copy_of_an_outdone_half_passes_no_request():
    """A second copy of an outdone half is folded to a place before the request that waits for the first copy."""
    faults = SilentHalves()
    world = Owners(NATS_LIKE, faults=faults, check_max=1)
    world.half(7, check_max=1)
    for token in (b"a" * 16, b"b" * 16):
        world.claim(token)
    world.op(OpKind.DISCARD, 7, token=b"a" * 16, reason="CHECKS_EXHAUSTED", by="c:a")
    owner = world.start()
    assert world.run(30, lambda: any(each.extras.is_outdone for each in owner.tenure.state.pending.values()))
    faults.is_on = True
    world.run(3)
    place = world.op(OpKind.FORCE, 7, 1, by="bob", decision=OpKind.COMMIT, forced=1, reason="ticket 12")
    world.run(5.5)
    assert [0, 1, 1] == [half.generation for half in world.copies(7)]
    assert world.copies(7)[-1].folded_to <= place
    faults.is_on = False
    second = world.log(LogKind.HALF)[-1].position
    assert world.run(30, lambda: world.checkpoint().half == second)
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))
    world.restart(owner)
    assert [b"b7"] == world.delivered()
