"""The real core on simulated brokers breaks no invariant, unless one of its rules is switched off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from txcore_conformance.sim.__main__ import first_failure
from txcore_conformance.sim.mutants import MUTANTS
from txcore_conformance.sim.play import PROFILES, run

SEEDS = 2_000
CHUNK = 125
REPLAYED = 100
KNOWN = json.loads(Path(__file__).with_name("known_seeds.json").read_text(encoding="utf-8"))
"""A seed for each mutant and profile, which is played first: a search from 0 takes up to 25 s (`known_seeds.py`)."""
IN_A_BROWSER = """
import sys, threading

def start(_):
    raise RuntimeError("a browser has no threads")

sys.modules["sqlalchemy"] = None
threading.Thread.start = start
from txcore_conformance.sim import page, run
print(*[run(seed, may_be_real=False).trace for seed in range(8)])
"""
"""What Python in a browser lacks: threads, and packages that are not there."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_history_breaks_an_invariant(first):
    """No history with crashes, lost and late answers, outages, operators and pruning breaks an invariant at rest."""
    bad = {seed: result.violations for seed in range(first, first + CHUNK) if (result := run(seed)).violations}
    assert {} == bad


def test_a_resume_of_a_frozen_operator_after_the_faults_is_decided_before_it_is_judged():
    """A half that a frozen operator resumes after the faults is asked about and decided before the judgement."""
    assert run(940_519).violations == ()


def test_a_forged_copy_of_an_ended_transaction_delivers_nothing_again():
    """The copy is the only record of the transaction that is read, and the op log has its end."""
    assert run(54_003_202).violations == ()


def test_a_checkpoint_hides_no_gap_from_the_next_owner():
    """A gap whose owner died before it parked the affected halves causes no second delivery."""
    assert run(286).violations == ()


def test_a_seed_replays_its_history():
    """The same seed gives the same trace, step by step, and different seeds give different ones."""
    once = [run(seed).trace for seed in range(REPLAYED)]
    assert once == [run(seed).trace for seed in range(REPLAYED)]
    assert REPLAYED == len(set(once))


def test_a_seed_plays_without_threads_and_sqlalchemy():
    """As in a browser, where neither exists, a seed gives the same trace."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_BROWSER], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stderr, done.stdout.split()) == ("", [run(seed, may_be_real=False).trace for seed in range(8)])


@pytest.mark.parametrize(
    ("mutant", "profile"), [(name, profile) for name, mutant in MUTANTS.items() for profile in mutant.needed_in]
)
def test_a_rule_that_is_switched_off_is_missed(mutant, profile):
    """In each profile that needs a rule, some history breaks an invariant while the rule is off."""
    result = first_failure(mutant, profile, known=[KNOWN.get(f"{mutant} {profile}", 0)])
    assert result is not None, f"{mutant} ({MUTANTS[mutant].rule}) was not caught"


def test_a_profile_that_needs_no_rule_says_why():
    """Each mutant that some profile does not need names the reason."""
    silent = [
        name for name, mutant in MUTANTS.items() if len(mutant.needed_in) < len(PROFILES) and not mutant.elsewhere
    ]
    assert [] == silent
