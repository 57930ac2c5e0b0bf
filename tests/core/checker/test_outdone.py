"""A DISCARD that occupies its generation's place although it is void (on a store with unique resolutions)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as replaced
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.kit import Answers
from txcore_conformance.oracle import journeys_of
from txcore_conformance.owners import Owners, name_of

from txcore import (
    Checker,
    CheckPolicy,
    Limits,
    LocalTransactionState,
    Message,
    TransactionProducer,
    wire,
)
from txcore.checker.limits import NewerRecords
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


@pytest.mark.parametrize("is_eaten", [False, True])
def test_a_half_behind_a_gap_is_parked_under_the_next_generation(is_eaten):
    """Whether the DISCARD that holds its place is in force cannot be known, so the half is parked visibly."""
    world = behind_a_gap(is_eaten=is_eaten)
    world.restart(world.start())
    assert ([], [7]) == (world.delivered(), world.listed())
    assert [half.generation for half in world.copies(7)] == [0]
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))


def test_a_second_void_discard_does_not_hide_the_half():
    """Two frozen checkers have parked a record that they could not read; the upgraded one still lists it."""
    world = Owners(NATS_LIKE, listener=lambda _: LocalTransactionState.COMMIT)
    first, second, third = b"a" * 16, b"b" * 16, b"c" * 16
    world.half(7)
    world.claim(first)
    world.run(1)
    world.trim(LogKind.OP, 1 << 40)
    world.claim(second)
    world.op(OpKind.DISCARD, 7, 0, token=first, reason="NEWER", by="c:a")
    world.claim(third)
    world.op(OpKind.DISCARD, 7, 1, token=second, reason="NEWER", by="c:b")
    world.restart(world.start())
    assert ([], [7]) == (world.delivered(), world.listed())


@pytest.mark.parametrize("profile", [NATS_LIKE, STRONG], ids=["nats-like", "strong"])
def test_a_parked_half_stays_parked_when_its_claim_is_removed(profile):
    """The op log is cut at the checkpoint, so that the claim of the DISCARD that parked the half is not known."""
    answers = {7: LocalTransactionState.UNKNOWN}
    world = Owners(profile, listener=answers.get, check_max=1)
    world.half(7, check_max=1)
    owner = world.start()
    world.run(5)
    assert [7] == world.listed()
    world.half(1)  # stays undecided
    world.run(2)
    world.operator.resume(name_of(7), "again")
    world.run(10)
    assert [7] == world.listed()
    world.kill(owner)
    world.trim(LogKind.OP, world.checkpoint().op)
    answers[7] = LocalTransactionState.COMMIT
    world.start()
    world.run(60)
    assert [] == world.delivered()


@pytest.mark.parametrize("profile", [NATS_LIKE, STRONG], ids=["nats-like", "strong"])
def test_a_newer_record_that_was_parked_without_a_copy_stays_parked_after_the_upgrade(profile, monkeypatch):
    """The DISCARD of the next generation closes the record that the upgraded checker can read."""
    answers = {}
    world = Owners(
        profile, listener=answers.get, limits=Limits(checkpoint_interval_s=0.0, newer_records=NewerRecords.PARK)
    )
    world.half(1)  # holds the checkpoint back
    half = world.half(7)
    records = world.broker.logs["g", LogKind.HALF, 0].records
    records[-1] = replaced(records[-1], body=wire.encode_half(replaced(half, version=3)))
    for token in (b"a" * 16, b"b" * 16):
        world.claim(token)
    world.op(OpKind.DISCARD, 7, token=b"a" * 16, reason="NEWER", by="c:a")
    owner = world.start()
    world.run(60)
    assert [7] == world.listed()
    monkeypatch.setattr(wire, "VERSION_READ_MAX", 3)
    answers[7] = LocalTransactionState.COMMIT
    world.restart(owner, 60)
    assert ([], [7]) == (world.delivered(), world.listed())
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))


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
