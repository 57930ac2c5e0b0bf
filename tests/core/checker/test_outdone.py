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
    wire,
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
    assert world.run(30, lambda: any(each.extras.outdone_count for each in owner.tenure.state.pending.values()))
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


def behind_a_gap(*, is_eaten):
    """Return a world with an undecided half that is older than its op log, and with a DISCARD of that half.

    The DISCARD is under an outdated claim, or it was in force and retention has removed it.
    """
    world = Owners(NATS_LIKE, listener=lambda _: LocalTransactionState.COMMIT)
    old, new = b"a" * 16, b"b" * 16
    world.half(7)
    world.claim(old)
    if is_eaten:
        world.op(OpKind.DISCARD, 7, token=old, reason="CHECKS_EXHAUSTED", by="c:a")
    world.run(1)
    world.trim(LogKind.OP, 1 << 40)
    world.claim(new)
    if not is_eaten:
        world.op(OpKind.DISCARD, 7, token=old, reason="COVERAGE_GAP", by="c:a")
    return world


def test_a_stale_discard_closes_no_half_behind_a_gap():
    """The void DISCARD is in the log, so the half is not parked: it is decided under the next generation."""
    world = behind_a_gap(is_eaten=False)
    world.restart(world.start())
    assert ([b"b7"], "COMMIT") == (world.delivered(), world.kinds(7)[-1])
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))


def test_no_checkpoint_passes_a_stale_discard_of_an_undecided_half():
    """An owner that begins at the checkpoint must find the void DISCARD that holds the half's place."""
    world = Owners(NATS_LIKE, check_max=100_000)
    world.half(7, check_max=100_000)
    for token in (b"a" * 16, b"b" * 16):
        world.claim(token)
    place = world.op(OpKind.DISCARD, 7, token=b"a" * 16, reason="COVERAGE_GAP", by="c:a")
    world.start()
    assert world.run(60, lambda: world.checkpoint() is not None and world.kinds(7).count("CHECKED") > 3)
    assert world.checkpoint().op <= place


def test_a_discard_that_retention_removed_ends_the_half():
    """The store refuses another DISCARD and the log shows none, so the half is parked already."""
    world = behind_a_gap(is_eaten=True)
    world.restart(world.start())
    assert ([], [0]) == (world.delivered(), [half.generation for half in world.copies(7)])


def test_a_discard_whose_claim_retention_removed_is_not_taken_for_void():
    """After a gap, the claim in force at the first ops is not known, so such a DISCARD may have parked the half."""
    world = Owners(NATS_LIKE, listener=lambda _: LocalTransactionState.COMMIT)
    world.half(7)
    world.claim(b"a" * 16)
    world.run(1)
    world.trim(LogKind.OP, 1 << 40)
    world.op(OpKind.DISCARD, 7, token=b"a" * 16, reason="UNDELIVERABLE", by="c:a")
    world.claim(b"b" * 16)
    world.restart(world.start())
    assert ([], [0]) == (world.delivered(), [half.generation for half in world.copies(7)])


def with_poison():
    """Return a world with an unreadable half record, and the last of two claims in its op log."""
    world = Owners(NATS_LIKE)
    world.broker.append("g", LogKind.HALF, 0, b"\xc1 no half")
    for token in (b"a" * 16, b"b" * 16):
        world.claim(token)
    return world


def entries(world):
    """Return the records of the parked log."""
    return [wire.decode_parked(record.body) for record in world.log(LogKind.PARKED)]


def test_an_unreadable_record_is_parked_under_the_next_generation():
    """No copy of it can be made, so its DISCARD alone takes the next place, and each restart finds it closed."""
    alike = with_poison()
    alike.restart(alike.start(), 10)
    identity = entries(alike)[0].transaction_id  # its name is made of its bytes and place
    world = with_poison()
    world.broker.append_ops("g", 0, [Op(OpKind.DISCARD, identity, 0, "c:a", token=b"a" * 16, reason="POISON")])
    owner = world.start()
    for _ in range(2):
        owner = world.restart(owner)
    assert [(identity, 1)] == [(each.transaction_id, each.generation) for each in entries(world)]
    assert [identity] == [each.transaction_id for each in world.operator.parked()]
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))
