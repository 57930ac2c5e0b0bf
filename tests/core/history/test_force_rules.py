"""The rule of forced decisions: the logs' part and the fence's part."""

from __future__ import annotations

import pytest

from txcore import wire
from txcore.fence import FenceAnswer
from txcore.history.force_rules import Consent, Ruling, consent_of, ruling_on
from txcore.history.journey import Journey
from txcore.records import Half, OpKind, ParkCode, Parked, TargetMessage

A = b"a" * 16
COMMIT, ROLLBACK = OpKind.COMMIT, OpKind.ROLLBACK


def half(group="g"):
    return Half(1, A, group, 0, 0, 5, 100, 0, 3, fenced=True, by="p", messages=[TargetMessage("t", None, b"1", {})])


def journey(*, final=0, decided=0, code="", body=b""):
    """What the logs hold: a half, or with a *code* its parked record alone."""
    found = Journey(A, 0, "g")
    found.final, found.journaled = final, decided
    if not code:
        found.add_half(half(), 5)
        return found
    found.add_parked(Parked(1, A, 0, code, "r", 3, "c", 5, b"", body, []))
    found.discarded_generation = 0
    return found


@pytest.mark.parametrize(
    ("found", "kind", "override", "ruling"),
    [
        (journey(), COMMIT, False, Ruling.REQUEST),
        (journey(), ROLLBACK, True, Ruling.REQUEST),
        (journey(final=COMMIT), COMMIT, False, Ruling.HOLDS),
        (journey(final=COMMIT), ROLLBACK, True, Ruling.REVERSED),
        (journey(decided=COMMIT), COMMIT, False, Ruling.REQUEST),
        (journey(decided=COMMIT), COMMIT, True, Ruling.REFUSED),
        (journey(decided=COMMIT), ROLLBACK, False, Ruling.REFUSED),
        (journey(code=ParkCode.PRUNED, body=wire.encode_half(half())), COMMIT, False, Ruling.REQUEST),
        (journey(code=ParkCode.LOST), COMMIT, False, Ruling.REFUSED),
        (journey(code=ParkCode.LOST), ROLLBACK, True, Ruling.DISMISS),
        (journey(code=ParkCode.LOST, decided=ROLLBACK), ROLLBACK, True, Ruling.DISMISS),
        (journey(code=ParkCode.LOST, decided=COMMIT), ROLLBACK, False, Ruling.REFUSED),
        (journey(code=ParkCode.LOST, decided=COMMIT), COMMIT, False, Ruling.DISMISS),
        (journey(code=ParkCode.LOST, decided=ROLLBACK), COMMIT, False, Ruling.REFUSED),
        (journey(code=ParkCode.POISON, body=b"\xc1"), ROLLBACK, False, Ruling.DISMISS),
        (journey(code=ParkCode.POISON, body=b"\xc1"), COMMIT, False, Ruling.REFUSED),
        (journey(code=ParkCode.POISON, body=wire.encode_half(half())), ROLLBACK, False, Ruling.REFUSED),
        (Journey(A, 0), ROLLBACK, False, Ruling.REFUSED),
    ],
)
def test_the_logs_allow_a_decision_that_contradicts_nothing(found, kind, override, ruling):
    """Neither a final nor a journaled decision is reversed; a request needs a half that can be read."""
    judged, text = ruling_on(found, kind, override=override)
    assert ruling is judged
    assert (text == "") is (ruling is Ruling.REQUEST)


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("answer", FenceAnswer)
def test_the_fence_consents_to_its_own_answer_only(answer, kind):
    """A tombstone of a half that its listener may have committed without a row leaves the decision to the operator."""
    expected = Consent.AGREES if answer.value == kind.name else Consent.OBJECTS
    if answer in {FenceAnswer.VIA_TABLE, FenceAnswer.SENT}:
        expected = Consent.FORBIDS
    assert expected is consent_of(answer, kind, fence_decides=True)
    if answer is FenceAnswer.ROLLBACK:
        expected = Consent.ABSTAINS
    assert expected is consent_of(answer, kind, fence_decides=False)
