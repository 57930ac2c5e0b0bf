"""An operator's request stays open until it was executed, or until a reply that names it was read back."""

from __future__ import annotations

import pytest
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.owners import Owners, name_of

from txcore.fence import FenceAnswer, FenceReading
from txcore.memory import Fate, Faults
from txcore.op_rules import reply_count
from txcore.records import Forced, LogKind, OpKind

OTHER = b"o" * 16


class Away:
    """A fence whose database does not answer; `asked` is called when it is asked."""

    is_async = False

    def __init__(self):
        self.overridden = []
        self.answer = FenceAnswer.NO_ANSWER

    def asked(self):
        """Do nothing; a test puts its own function here."""

    def check(self, identities, group, databases=None):
        self.asked()
        return {identity: FenceReading(self.answer, "away") for identity in identities}

    def force(self, identity, group, database=b""):
        self.overridden.append(identity)


class LostOps(Faults):
    """Faults that store no op while `is_on`."""

    is_on = False

    def fate(self, what, transaction_ids):
        return Fate.LOST if self.is_on and what == "op" else Fate.DONE


def request(world, by, forced=Forced.YES, decision=OpKind.COMMIT):
    """Write a request about half 7."""
    return world.op(OpKind.FORCE, 7, by=by, decision=decision, forced=forced, reason="ticket 12")


def journey(world):
    """Return half 7 as its operators see it."""
    return world.operator.show(name_of(7))


def test_a_refusal_leaves_a_request_that_came_meanwhile():
    """A refusal leaves a request open that lands while the fence is asked for the first one."""
    fence = Away()
    world = Owners(fence=fence)
    world.half(7, fenced=True)
    world.start()
    world.run(3)

    def asked():
        if "FORCE" in world.kinds(7) and "bob" not in {op.by for op in world.ops(7)}:
            request(world, "bob", Forced.OVERRIDE, OpKind.ROLLBACK)

    fence.asked = asked
    request(world, "anna")
    world.run(30)
    assert [name_of(7)] == fence.overridden
    assert OpKind.ROLLBACK == journey(world).final
    assert journey(world).overrides
    assert journey(world).reply_to("bob") is None
    assert "away" in journey(world).reply_to("anna").reason


def test_a_refusal_that_was_not_stored_is_written_again():
    """The owner writes a refusal again that was not stored, so that the operator gets the reply."""
    faults = LostOps()
    world = Owners(fence=Away(), faults=faults)
    world.half(7, fenced=True)
    world.start()
    world.run(1)
    faults.is_on = True
    request(world, "anna")
    world.run(3)
    assert journey(world).request is not None
    faults.is_on = False
    world.run(30)
    (reply,) = [op for op in world.ops(7) if op.kind == OpKind.FORCE and op.token]
    assert (journey(world).reply_to("anna"), journey(world).request) == (reply, None)
    assert "" == judge_checkpoint(world.checkpoint(), world.log(LogKind.HALF), world.log(LogKind.OP))


@pytest.mark.parametrize("count", [0, 1])
def test_a_reply_under_an_outdated_claim_answers_nothing(count):
    """A reply of a replaced owner, which was frozen for a while, does not close a request."""
    world = Owners()
    world.half(7, check_max=1_000, immunity_ms=5_000)
    world.claim(OTHER)
    world.start()
    world.run(1)
    place = request(world, "bob")
    world.op(OpKind.FORCE, 7, by="c:other", token=OTHER, decision=OpKind.COMMIT, count=count and reply_count(place))
    assert journey(world).request is not None
    world.run(30)
    assert [b"b7"] == world.delivered()


def test_a_reply_names_its_request_at_any_place():
    """`reply_count` gives a number in its field's range for any place, also for one beyond that range."""
    for place in (0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**62):
        assert 1 <= reply_count(place) < 2**31
    assert reply_count(2**31) != reply_count(2**31 + 1)


def test_an_override_against_a_row_that_decides_is_recorded_as_one():
    """An override against a half of the listener style that may have a fence row is recorded as an override."""
    world = Owners(fence=Away())
    world.half(7, database=b"d" * 16)
    world.start()
    world.run(1)
    request(world, "bob", Forced.OVERRIDE, OpKind.ROLLBACK)
    world.run(30)
    assert (OpKind.ROLLBACK, True) == (journey(world).final, journey(world).overrides > 0)


def test_a_decision_that_is_read_back_late_is_not_overwritten_by_the_fence():
    """The fence's answer does not replace an override whose DECIDED is read back while the fence is asked."""
    fence = Away()
    world = Owners(fence=fence)
    world.half(7, fenced=True)
    world.call_s = 1.0
    owner = world.start()
    fence.answer = FenceAnswer.COMMIT

    def asked():
        if "DECIDED" not in world.kinds(7):
            token, rollback = owner.tenure.token, OpKind.ROLLBACK
            world.op(OpKind.DECIDED, 7, token=token, decision=rollback, forced=Forced.OVERRIDE)

    fence.asked = asked
    world.run(30)
    assert (OpKind.ROLLBACK, []) == (journey(world).final, world.delivered())
