"""The verdicts say of simulated histories what the oracle's invariants say, where both speak of the same."""

from __future__ import annotations

import histories
import pytest
from txcore_conformance.sim.mutants import MUTANTS

from txcore.invariants import INVARIANTS_OF, Local, Promises, Verdict, judge
from txcore.records import OpKind
from txcore.tallying import tally_of
from txcore.verdicts import Thresholds, verdicts_of

SEEDS = 60
#: Those with a twin on either side; S6 and S9 rest on what only a test knows, S11 and S12 on more than one transaction.
SAME = (Verdict.LOST, Verdict.MISDECIDED, Verdict.PHANTOM, Verdict.CORRUPT)
THRESHOLDS = Thresholds(now_ms=1_700_000_400_000)


def differing(seed):
    """Return the transactions of a seed about which oracle and verdicts say different things."""
    _, facts = histories.played(seed)
    found = {}
    for identity, each in facts.items():
        broken = {violation.invariant for violation in judge(each, Promises(), at_rest=True)}
        verdicts = set(verdicts_of(tally_of(each), THRESHOLDS))
        for verdict in SAME:
            says = bool(broken & INVARIANTS_OF[verdict])
            if says != (verdict in verdicts) and not is_excepted(verdict, each):
                found[identity.hex(), verdict.name] = (sorted(i.name for i in broken), sorted(v.name for v in verdicts))
    return found


def is_excepted(verdict, facts):
    """The oracle's S8 says "lost" beside what the audit calls MISDECIDED, PHANTOM or, while undecided, STUCK.

    A half that is not fenced is decided by its listener, whose word no row contradicts; the oracle knows what it did.
    And no log says how many messages a transaction had in the message table, so there one that came hides the others.
    """
    journey = facts.journey
    is_fenced = any(half.fenced for half in journey.halves)
    if verdict is Verdict.MISDECIDED and facts.local is Local.ROLLED_BACK and not is_fenced:
        return True
    if verdict is Verdict.LOST and facts.is_via_table and journey.half is None and facts.targets:
        return True
    is_other = journey.final if journey.half is None else journey.final != OpKind.COMMIT
    return verdict is Verdict.LOST and bool(is_other)


@pytest.mark.parametrize("seed", range(0, SEEDS, 10))
def test_whole_histories_are_judged_alike(seed):
    """No rule switched off."""
    assert {} == {key: both for number in range(seed, seed + 10) for key, both in differing(number).items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_with_a_rule_switched_off_are_judged_alike(name):
    """Each mutant breaks something of its own."""
    with MUTANTS[name].patch():
        assert {} == {key: both for number in range(8) for key, both in differing(number).items()}
