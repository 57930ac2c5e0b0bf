"""The audit's verdicts on simulated histories agree with the oracle's invariants, where both cover the same fault."""

from __future__ import annotations

import histories
import pytest
from txcore_conformance.invariants import INVARIANTS_OF, Local, Promises, judge
from txcore_conformance.sim.mutants import MUTANTS
from txcore_conformance.tally import tally_of

from txcore.audit.verdicts import Thresholds, Verdict, verdicts_of
from txcore.records import OpKind

SEEDS = 60
#: Invariants with an equal verdict; S6 and S9 need a test's own knowledge, S11 and S12 more than one transaction.
SAME = (Verdict.LOST, Verdict.MISDECIDED, Verdict.PHANTOM, Verdict.CORRUPT)
THRESHOLDS = Thresholds(now_ms=1_700_000_400_000)


def differing(seed):
    """Return the transactions of a seed on which oracle and verdicts disagree."""
    _, facts = histories.played(seed)
    found = {}
    for identity, each in facts.items():
        broken = {violation.invariant for violation in judge(each, Promises(), at_rest=True)}
        verdicts = set(verdicts_of(tally_of(each), THRESHOLDS))
        for verdict in SAME:
            says = bool(broken & INVARIANTS_OF[verdict])
            if says != (verdict in verdicts) and not is_excepted(verdict, each, says=says):
                found[identity.hex(), verdict.name] = (sorted(i.name for i in broken), sorted(v.name for v in verdicts))
    return found


def is_excepted(verdict, facts, *, says):
    """Return whether the difference is expected.

    A half without a fence, or one that may lack its row, is decided by its listener, and no row contradicts its answer;
    the oracle knows the truth.
    No log has the number of a transaction's messages in the message table, so one delivered message hides lost ones;
    but with them the digest is another one.
    """
    journey = facts.journey
    is_listeners = bool(journey.halves) and not any(half.fenced and not half.may_lack_row for half in journey.halves)
    if verdict is Verdict.MISDECIDED and facts.local is Local.ROLLED_BACK and is_listeners:
        return says
    if verdict is Verdict.LOST and facts.is_via_table and journey.half is None and facts.targets:
        return True
    if verdict is Verdict.CORRUPT and facts.is_via_table and journey.half is None:
        if says:  # not while a message is in the table, or all are lost
            return bool(facts.in_table) or not facts.targets
        return len({target.index for target in facts.targets}) < len(facts.messages)
    is_other = journey.final if journey.half is None else journey.final != OpKind.COMMIT
    return verdict is Verdict.LOST and bool(is_other)


@pytest.mark.parametrize("seed", range(0, SEEDS, 10))
def test_whole_histories_are_judged_alike(seed):
    """Oracle and verdicts agree on histories without a rule switched off."""
    assert {} == {key: both for number in range(seed, seed + 10) for key, both in differing(number).items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_with_a_rule_switched_off_are_judged_alike(name):
    """Oracle and verdicts agree on the histories of each mutant."""
    with MUTANTS[name].patch():
        assert {} == {key: both for number in range(8) for key, both in differing(number).items()}
