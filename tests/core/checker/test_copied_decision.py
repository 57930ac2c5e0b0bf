"""A copy's decision is acted upon only if the op log proves it (R8)."""

from __future__ import annotations

import pytest
from txcore_conformance.checkpoint_bounds import judge_copy
from txcore_conformance.owners import Owners, name_of
from txcore_conformance.refine.world import One

from txcore.fence import FenceAnswer, FenceReading
from txcore.history.resuming import next_generation
from txcore.ids import TransactionId
from txcore.message import LocalTransactionState
from txcore.records import Forced, LogKind, OpKind, ParkCode

TOKEN = b"an older claim.."
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


class Fence:
    """A fence that has one answer."""

    is_async = False

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def check(self, transaction_ids, group):
        self.asked += transaction_ids
        return {each: FenceReading(self.answer) for each in transaction_ids}


def copied(world, number, **fields):
    """Append a half, a claim, and a copy of the half with these fields; the copy was made at the log's end."""
    world.half(number, fenced=fields.get("fenced", False))
    world.claim(TOKEN)
    made = {"decided_at": -1} | fields
    return world.half(number, first_appended_ms=1, folded_to=1, token=TOKEN, **made)


def test_forged_decision_of_a_half_without_a_fence_publishes_nothing():
    """No op proves it: the half is parked with the reason, and the listener is not asked again."""
    world = Owners(listener=lambda _: COMMIT)
    copied(world, 7, decided=OpKind.COMMIT)
    world.start()
    world.run(60)
    assert ([], [(7, ParkCode.COVERAGE_GAP)], []) == (world.delivered(), world.parked(), world.asked)


def test_first_half_that_says_it_is_decided_publishes_nothing():
    """A producer's half cannot be decided, so such a half is forged."""
    world = Owners(listener=lambda _: COMMIT)
    world.half(7, decided=OpKind.COMMIT)
    world.start()
    world.run(60)
    assert [] == world.delivered()


@pytest.mark.parametrize(
    ("answer", "said", "kinds"),
    [
        (FenceAnswer.COMMIT, OpKind.COMMIT, ["COMMIT"]),
        (FenceAnswer.ROLLBACK, OpKind.ROLLBACK, ["ROLLBACK"]),
        (FenceAnswer.ROLLBACK, OpKind.COMMIT, ["DISCARD"]),
        (FenceAnswer.COMMIT, OpKind.ROLLBACK, ["DISCARD"]),
    ],
)
def test_fence_that_agrees_is_a_proof_and_another_parks_the_half(answer, said, kinds):
    """A fenced half's copy may repeat an override, so that a fence which says otherwise decides nothing alone."""
    fence = Fence(answer)
    world = Owners(fence=fence)
    copied(world, 7, fenced=True, decided=said)
    world.start()
    world.run(60)
    assert kinds == world.kinds(7)
    assert {name_of(7)} == set(fence.asked)
    assert (kinds == ["COMMIT"]) == bool(world.delivered())
    assert (kinds == ["DISCARD"]) == bool(world.parked())


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_operator_ends_what_was_parked_without_a_proof(kind):
    """Neither resume nor request is refused for the copy's sake, whatever the copy says."""
    world = Owners(listener=lambda _: UNKNOWN)
    copied(world, 7, decided=OpKind.ROLLBACK if kind is OpKind.COMMIT else OpKind.COMMIT)
    world.start()
    world.run(60)
    assert [7] == world.listed()
    end = world.operator.commit if kind is OpKind.COMMIT else world.operator.rollback
    end(TransactionId(name_of(7)), "asked the customer")
    world.run(60)
    assert kind.name == world.kinds(7)[-1]
    assert (kind is OpKind.COMMIT) == bool(world.delivered())


def test_forged_copy_does_not_undo_a_decision_in_the_log():
    """The decision that the owner has read itself is carried out, also against a copy of a later generation."""
    for generation in (0, 1):
        world = Owners(listener=lambda _: UNKNOWN)
        world.half(7)
        world.claim(TOKEN)
        place = world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT)
        fields = {"decided": OpKind.ROLLBACK, "decided_at": place, "folded_to": place, "token": TOKEN}
        world.half(7, generation=generation, first_appended_ms=1, **fields)
        world.start()
        world.run(60)
        assert ([b"b7"], []) == (world.delivered(), world.listed())


def test_void_decision_of_a_replaced_checker_proves_nothing():
    """It is in the log, but not under the claim in force there, as an owner knows that has read it."""
    world = Owners(listener=lambda _: UNKNOWN)
    world.half(7)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=b"a former claim..", decision=OpKind.COMMIT)
    world.half(7, first_appended_ms=1, folded_to=place, token=TOKEN, decided=OpKind.COMMIT, decided_at=place)
    world.start()
    world.run(60)
    assert ([], [(7, ParkCode.COVERAGE_GAP)]) == (world.delivered(), world.parked())


def test_decision_that_was_read_proves_a_copy_that_names_no_place():
    """The op is in the log, and the owner has read it; so the copy need not say where."""
    world = Owners(listener=lambda _: UNKNOWN)
    world.half(7)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT)
    world.half(7, first_appended_ms=1, folded_to=place, token=TOKEN, decided=OpKind.COMMIT)
    world.start()
    world.run(60)
    assert [b"b7"] == world.delivered()


@pytest.mark.parametrize(
    ("number", "decision", "token"),
    [(8, 1, TOKEN), (7, 2, TOKEN), (7, 1, b"")],
    ids=["other half", "other end", "no claim"],
)
def test_op_about_something_else_proves_nothing(number, decision, token):
    """Only a checker's DECIDED of the same end about the same transaction is a proof."""
    world = Owners(listener=lambda _: UNKNOWN)
    world.half(8)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, number, token=token, decision=decision)
    world.half(7, first_appended_ms=1, folded_to=place + 1, token=TOKEN, decided=OpKind.COMMIT, decided_at=place)
    world.start()
    world.run(60)
    assert b"b7" not in world.delivered()


def test_genuine_copy_is_finished_without_a_question():
    """The DECIDED is found where the copy names it, long before the place to which the copy is folded."""
    world = Owners(listener=lambda _: ROLLBACK)
    world.half(7)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT, forced=Forced.YES)
    later = world.op(OpKind.NUDGE, 8)
    world.half(7, first_appended_ms=1, folded_to=later, token=TOKEN, decided=OpKind.COMMIT, decided_at=place)
    world.start()
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.asked)
    assert Forced.YES == world.ops(7)[-1].forced


def test_copy_whose_proof_retention_has_removed_is_parked():
    """Without a fence nothing else can decide it as before: an operator does."""
    world = Owners(listener=lambda _: ROLLBACK)
    world.half(7)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT)
    later = world.op(OpKind.NUDGE, 8)
    world.half(7, first_appended_ms=1, folded_to=later, token=TOKEN, decided=OpKind.COMMIT, decided_at=place)
    world.trim(LogKind.OP, later)
    world.start()
    world.run(60)
    assert ([], [(7, ParkCode.COVERAGE_GAP)]) == (world.delivered(), world.parked())


def test_resume_names_the_place_of_the_decision():
    """An operator's copy of a decided half has the place of its DECIDED, so that the next owner finishes it."""
    world = Owners(listener=lambda _: ROLLBACK)
    world.half(7)
    world.claim(TOKEN)
    place = world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT)
    world.op(OpKind.DISCARD, 7, token=TOKEN, reason=ParkCode.UNDELIVERABLE)
    journey = world.operator.show(name_of(7))
    copy = next_generation(journey, "anna", "the topic is there")
    world.backend.append_halves(One(copy))
    assert place == world.copies(7)[-1].decided_at
    world.start()
    world.run(60)
    assert ([b"b7"], []) == (world.delivered(), world.asked)


def test_judge_of_copies_sees_a_wrong_place():
    """A copy that names another op than the first DECIDED is a fault of its writer."""
    world = Owners()
    half = world.half(7, folded_to=5, decided=OpKind.COMMIT, decided_at=3)
    world.claim(TOKEN)
    world.op(OpKind.DECIDED, 7, token=TOKEN, decision=OpKind.COMMIT)
    journal = [(2, world.ops(7)[0])]
    assert "names op 3 as the place of its DECIDED, which is at op 2" in judge_copy(half, journal)
