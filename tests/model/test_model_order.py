"""The model of the order per key holds, and notices each rule that is left out."""

from __future__ import annotations

import pytest
from txcore_conformance.model_order import MUTANTS, explore
from txcore_conformance.model_order_steps import Bounds

STATES = 31_055
"""Number of states without a carried copy. After a change of protocol or model, review the new states first."""
COUNTEREXAMPLES = {
    "order_ignored": ("S12", 2),
    "later_half_passes_undecided": ("S12", 2),
    "parked_half_frees_key": ("S12", 5),
    "held_half_forgotten": ("S12", 9),
    "carried_half_overtaken": ("S12", 9),
    "hold_not_carried": ("S12 held", 13),
    "held_half_judged": ("S12 held", 13),
    "resumed_half_overtaken": ("S12", 11),
    "key_freed_before_release": ("S12", 4),
}
"""The rule that each mutant breaks, and the number of steps of the shortest way there."""


def test_the_order_is_kept_in_every_state():
    """Whatever is killed, frozen, parked and resumed, no first copy comes before one of an earlier half."""
    run = explore(Bounds(carries=0))
    assert (STATES, "", ()) == (run.states, run.violation, run.trace)


@pytest.mark.heavy
def test_the_order_is_kept_with_a_carried_copy():
    """As above, with a copy of any half at any time."""
    run = explore()
    assert (684_056, "") == (run.states, run.violation)


def test_every_mutant_has_a_counterexample():
    """No mutant is left out here."""
    assert set(MUTANTS) == set(COUNTEREXAMPLES)


@pytest.mark.parametrize("name", COUNTEREXAMPLES)
def test_a_rule_that_is_left_out_is_noticed(name):
    """The shortest way to a broken rule is found."""
    with MUTANTS[name]():
        run = explore()
    assert COUNTEREXAMPLES[name] == (run.violation, len(run.trace))
