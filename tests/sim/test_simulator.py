"""The real core on simulated brokers: no violation in thousands of histories; every rule is missed when it is off."""

from __future__ import annotations

import pytest
from txcore_conformance.sim.__main__ import first_failure
from txcore_conformance.sim.mutants import MUTANTS
from txcore_conformance.sim.play import PROFILES, run

SEEDS = 2_000
CHUNK = 125
REPLAYED = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_history_breaks_an_invariant(first):
    """Crashes, lost and late answers, outages, stuck halves, operators and pruning, judged at rest."""
    bad = {seed: result.violations for seed in range(first, first + CHUNK) if (result := run(seed)).violations}
    assert {} == bad


def test_a_resume_of_a_frozen_operator_after_the_faults_is_decided_before_it_is_judged():
    """At rest but for one process that is still frozen: what it resumes when it thaws is asked about three times."""
    assert run(940_519).violations == ()


def test_a_checkpoint_hides_no_gap_from_the_next_owner():
    """Ops were eaten, and the owner that saw it died before it had parked what lacked them: no second delivery."""
    assert run(286).violations == ()


def test_a_seed_replays_its_history():
    """The same seed gives the same trace, step by step; different seeds differ."""
    once = [run(seed).trace for seed in range(REPLAYED)]
    assert once == [run(seed).trace for seed in range(REPLAYED)]
    assert REPLAYED == len(set(once))


@pytest.mark.parametrize(
    ("mutant", "profile"), [(name, profile) for name, mutant in MUTANTS.items() for profile in mutant.needed_in]
)
def test_a_rule_that_is_switched_off_is_missed(mutant, profile):
    """In every profile that needs the rule, some history breaks an invariant."""
    assert first_failure(mutant, profile) is not None, f"{mutant} ({MUTANTS[mutant].rule}) was not caught"


def test_a_profile_that_needs_no_rule_says_why():
    """Nothing is left out silently."""
    silent = [
        name for name, mutant in MUTANTS.items() if len(mutant.needed_in) < len(PROFILES) and not mutant.elsewhere
    ]
    assert [] == silent
