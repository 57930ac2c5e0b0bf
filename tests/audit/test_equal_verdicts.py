"""The oracle, in Python, and the audit, on each engine, give the same verdicts on the same histories."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import histories
import pytest
from judging import judged_by
from txcore_conformance.sim.mutants import MUTANTS

from txcore.audit.verdicts import PREDICATES, Thresholds, verdicts_of

SEEDS = int(os.environ.get("TXCORE_AUDIT_SEEDS", "40"))
MANY = 600  # enough seeds for the rarer faults of the mutants
MUTANT_SEEDS = max(SEEDS // 20, 2)
NOW_MS = 1_700_000_000_000 + 400_000
THRESHOLDS = Thresholds(NOW_MS, grace_ms=0, late_ms=5_000, release_ms=2_000)


@cache
def gathered():
    """Return the rows of every history and the oracle's tallies; a mutant's seeds differ from all others."""
    rows, wanted, excused = [], {}, []

    def add(seed):
        found, tallies, lost = histories.rows_and_tallies(seed)
        rows.extend(found)
        wanted.update(tallies)
        excused.extend(lost)

    for seed in range(SEEDS):
        add(seed)
    seed = SEEDS
    for name, mutant in MUTANTS.items():
        with mutant.patch():
            for _ in range(MUTANT_SEEDS):
                try:
                    add(seed)
                except Exception as error:
                    raise AssertionError(f"mutant {name}, seed {seed}") from error
                seed += 1
    return rows, wanted, excused


@cache
def judged_on(engine):
    """Return both judgements of all histories: identity -> (oracle's tally, audit's columns and verdicts)."""
    rows, wanted, excused = gathered()
    with tempfile.TemporaryDirectory() as folder:
        return wanted, judged_by(engine, rows, Path(folder) / "rows", THRESHOLDS, excused=excused)


@pytest.fixture(scope="module")
def judged(engine):
    """Return `judged_on` of each engine."""
    return judged_on(engine)


def test_every_transaction_has_the_same_verdicts(judged):
    """The verdicts agree on histories with and without a rule switched off."""
    wanted, found = judged
    differing = {}
    for identity, each in wanted.items():
        expected = {verdict.name for verdict in verdicts_of(each, THRESHOLDS)}
        actual = set(found[identity]["verdicts"]) if identity in found else set()
        if expected != actual:
            differing[identity.hex()] = (expected, actual, histories.by_name(each), found.get(identity))
    assert {} == dict(list(differing.items())[:3])
    assert len(wanted) > SEEDS


def test_both_engines_find_the_same_numbers(duck, spark):
    """Not only the verdicts are equal, but every number on which they rest."""
    by_duck, by_spark = (
        {identity: {**each, "tx": identity} for identity, each in judged_on(engine)[1].items()}
        for engine in (duck, spark)
    )
    assert by_duck == by_spark


def test_no_verdict_is_without_doubt(judged):
    """Transactions that sums alone prove correct get no verdict, and at least a tenth of the transactions are such."""
    _, found = judged
    assert [each for each in found.values() if each["verdicts"] and not each["doubt"]] == []
    assert sum(not each["doubt"] for each in found.values()) > len(found) // 10


def test_the_histories_have_findings(judged):
    """The comparison proves something only on histories with findings."""
    wanted, _ = judged
    seen = {verdict.name for each in wanted.values() for verdict in verdicts_of(each, THRESHOLDS)}
    assert {"DUP_TARGET", "DUP_OP", "DISCARDED", *(("LOST", "LEAK") if SEEDS >= MANY else ())} <= seen
    assert seen <= {verdict.name for verdict in PREDICATES}
