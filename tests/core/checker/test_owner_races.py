"""An owner and a COMMITTED that comes at an awkward moment: beside a check, without its half, before a resume."""

from __future__ import annotations

import pytest
from txcore_conformance.owners import AnsweringFence, Owners, name_of

from txcore import LocalTransactionState as State
from txcore.fence import FenceAnswer
from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Fate, Faults
from txcore.records import LogKind, OpKind, ParkCode

PROFILES = [KAFKA_LIKE, RABBITMQ_LIKE, NATS_LIKE, STRONG]
COMMITTED = OpKind.COMMITTED
by_profile = pytest.mark.parametrize("profile", PROFILES, ids=lambda each: each.name)


class Refusing(Faults):
    """The faults of a broker that refuses targets."""

    refused = "target"

    def fate(self, what, transaction_ids):
        return Fate.REFUSED if what == self.refused else Fate.DONE


@by_profile
@pytest.mark.parametrize("answer", [FenceAnswer.ROLLBACK, FenceAnswer.PRUNED, FenceAnswer.NO_ANSWER])
def test_a_committed_that_is_read_while_the_fence_is_asked_holds(profile, answer):
    """The answer is too late: the half is published, and nothing else is written about it."""
    world = Owners(profile, fence=AnsweringFence(answer))
    world.call_s = 5.0
    world.owned(7, fenced=True)
    world.start()
    assert world.run(10, lambda: world.fence.asked)
    world.op(COMMITTED, 7)
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.parked())
    assert ["COMMITTED", "RELEASED"] == world.kinds(7)


@by_profile
@pytest.mark.parametrize("answer", [State.UNKNOWN, State.ROLLBACK, None])
def test_a_committed_that_is_read_while_the_listener_is_asked_is_released_at_once(profile, answer):
    """Neither the answer nor the pause after it delays the release."""
    world = Owners(profile, listener=lambda _: answer)
    world.call_s = 5.0
    world.owned(7, interval_ms=600_000)
    world.start()
    assert world.run(10, lambda: world.asked)
    world.op(COMMITTED, 7)
    world.run(10)
    assert ([b"b7"], ["COMMITTED", "RELEASED"]) == (world.delivered(), world.kinds(7))


@by_profile
def test_a_committed_before_the_owners_rollback_is_published(profile):
    """A COMMITTED is stored after the owner's tick and before its ROLLBACK; the acknowledged ROLLBACK ends nothing.

    Nor does it free the order key.
    """
    world = Owners(profile, listener=lambda _: State.ROLLBACK)
    world.owned(7, order_key=b"k")
    world.owned(8, order_key=b"k")
    world.op(COMMITTED, 8)
    release, late = world.backend.release, []

    def released(batch, claim):
        if batch.items[0].op.kind == OpKind.ROLLBACK and not late:
            late.append(world.op(COMMITTED, 7))
        release(batch, claim)

    world.backend.release = released
    world.start()
    world.run(60)
    kinds = world.kinds(7)
    assert ([b"b7", b"b8"], True) == (world.delivered(), kinds.index("COMMITTED") < kinds.index("RELEASED"))


class LaterError(Exception):
    """A failed check that is to be repeated much later."""

    retry_after_s = 600.0


def test_a_committed_half_waits_for_no_repeated_check():
    """A COMMITTED that is read while the listener is asked is due at once, although the listener failed."""

    def fail(number):
        world.op(COMMITTED, number)
        raise LaterError

    world = Owners(KAFKA_LIKE, listener=fail)
    world.call_s = 0.5
    world.owned(7)
    world.start()
    world.run(60)
    assert ([b"b7"], [7]) == (world.delivered(), world.asked)


def test_a_request_is_void_once_a_committed_was_read():
    """The first final op in the log holds, although the fence allows what an operator asks for."""
    world = Owners(fence=AnsweringFence(FenceAnswer.ROLLBACK))
    world.call_s = 5.0
    world.owned(7, fenced=True)
    world.operator.rollback(name_of(7), "the customer has called")
    world.start()
    assert world.run(10, lambda: world.fence.asked)
    world.op(COMMITTED, 7)
    world.run(60)
    assert [b"b7"] == world.delivered()
    assert "ROLLBACK" not in world.kinds(7)


@pytest.mark.parametrize("before", [OpKind.NUDGE, OpKind.CHECKED])
def test_a_stray_committed_is_parked_whatever_ops_come_before_it(before):
    """An op that decides nothing does not hide that the half was committed, and is gone unreleased."""
    world = Owners(KAFKA_LIKE)
    world.owned(7)
    world.op(before, 7)
    world.op(COMMITTED, 7)
    lose_halves(world)
    world.start()
    world.run(60)
    assert (7, ParkCode.LOST) in world.parked()


def lose_halves(world):
    """Have the half log lose all that it holds, and hold another half."""
    world.half(8, check_max=1_000)
    world.trim(LogKind.HALF, world.log(LogKind.HALF)[-1].position)


def undeliverable(profile):
    """Return a partition with a committed half that its target refuses, and the owner that has parked it."""
    world = Owners(profile, faults=Refusing(), listener=lambda _: State.ROLLBACK)
    world.owned(7)
    world.op(COMMITTED, 7)
    owner = world.start()
    world.run(600)
    assert [(7, ParkCode.UNDELIVERABLE)] == world.parked()
    return world, owner


@pytest.mark.parametrize("profile", PROFILES[:-1], ids=lambda each: each.name)
def test_a_rollback_after_a_committed_leaves_the_parked_half_on_the_list(profile):
    """The next owner reads of a parked half only that ROLLBACK; the COMMITTED before it makes that void."""
    world, owner = undeliverable(profile)
    world.half(8)
    world.op(OpKind.ROLLBACK, 8)
    world.run(10)
    world.restart(owner)
    world.op(OpKind.ROLLBACK, 7)
    world.run(60)
    assert [7] == world.listed()
    world.faults.refused = ""
    world.operator.resume(name_of(7), "the target is back")
    world.run(60)
    assert [b"b7"] == world.delivered()


@pytest.mark.parametrize("profile", PROFILES[:-1], ids=lambda each: each.name)
def test_a_resume_asks_nothing_about_what_is_committed_when_retention_has_removed_it(profile):
    """The entry says that its half is committed, and where its COMMITTED was."""
    world, owner = undeliverable(profile)
    world.kill(owner)
    world.faults.refused = ""
    world.half(8)
    for kind in (LogKind.HALF, LogKind.OP):
        world.trim(kind, world.log(kind)[-1].position)
    (parked,) = world.operator.parked()
    assert name_of(7) == parked.transaction_id
    world.operator.resume(parked.transaction_id, "the target is back")
    world.start()
    world.run(60)
    assert (True, False, False) == (b"b7" in world.delivered(), 7 in world.asked, 7 in world.listed())
