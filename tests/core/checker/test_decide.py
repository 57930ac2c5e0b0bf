"""The table of the owner's decisions about one half."""

from __future__ import annotations

import pytest

from txcore.checker.decide import Decision, Extras, Pending, decide, terms_of
from txcore.records import Op, OpKind, ParkCode


def pending(**changes):
    """Return a half that became due at 6,000 ms, unfenced, never asked."""
    terms = terms_of(6_000.0, 0.0, 2, fenced=changes.pop("fenced", False))
    made = Pending(transaction_id=bytes(16), position=1, generation=0, terms=terms, immune_until_ms=6_000.0)
    for name, value in changes.items():
        if name in Extras.__struct_fields__:
            made.note(**{name: value})
        else:
            setattr(made, name, value)
    return made


FORCE = Op(OpKind.FORCE, bytes(16), decision=OpKind.COMMIT)
GAP = (ParkCode.COVERAGE_GAP, "")
TABLE = {
    "due at the last millisecond of immunity exactly": (pending(), 6_000, False, Decision.CHECK),
    "one millisecond before it": (pending(), 5_999, False, Decision.WAIT),
    "closed": (pending(is_closed=True), 9_000, True, Decision.DONE),
    "not yet due": (pending(due_ms=9_000), 8_999, False, Decision.WAIT),
    "asked often enough": (pending(count=2), 9_000, False, Decision.DISCARD),
    "one answer short": (pending(count=1), 9_000, False, Decision.CHECK),
    "a fenced half is asked for ever": (pending(count=99, fenced=True), 9_000, False, Decision.CHECK),
    "journaled": (pending(decision=OpKind.COMMIT, count=2), 9_000, False, Decision.FINISH),
    "journaled but immune": (pending(decision=OpKind.COMMIT), 5_000, False, Decision.WAIT),
    "an operator asks": (pending(force=FORCE), 9_000, False, Decision.FORCE),
    "an operator asks too late": (pending(force=FORCE, decision=OpKind.ROLLBACK), 9_000, False, Decision.FINISH),
    "an operator asks during immunity": (pending(force=FORCE), 5_000, False, Decision.WAIT),
    "an operator asks before the discard": (pending(force=FORCE, count=2), 9_000, False, Decision.FORCE),
    "cannot be checked": (pending(park=GAP), 0, False, Decision.PARK),
    "to be carried before it is due": (pending(due_ms=9_000), 1_000, True, Decision.CARRY),
    "carried a moment ago": (pending(carry_again_ms=2_000), 1_000, True, Decision.WAIT),
    "outdone by a void discard": (pending(outdone_count=1), 9_000, False, Decision.CARRY),
    "outdone and already appended anew": (pending(outdone_count=1, carry_again_ms=9_999), 9_000, False, Decision.WAIT),
}


@pytest.mark.parametrize("what", TABLE)
def test_decision(what):
    """The decision about each half is that of the table."""
    half, now_ms, must_carry, expected = TABLE[what]
    assert expected is decide(half, now_ms, must_carry=must_carry)


def test_deciding_changes_nothing():
    """The same half gives the same decision again."""
    half = pending(count=1)
    before = repr(half)
    assert decide(half, 9_000, must_carry=False) is decide(half, 9_000, must_carry=False)
    assert before == repr(half)
