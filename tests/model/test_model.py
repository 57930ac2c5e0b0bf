"""The explicit-state model holds, notices each rule that is left out, and reaches each rare situation."""

from __future__ import annotations

from functools import cache

import pytest
from txcore_conformance import model, model_fold
from txcore_conformance.model import CONFIGURATIONS, SOMETIMES, Exploration, explore
from txcore_conformance.model_mutants import INEXPRESSIBLE, MUTANTS
from txcore_conformance.sim.owner_mutants import close_parked_entry, committed_is_delivered

from txcore.checker import decide as deciding
from txcore.checker import partition_state as fold
from txcore.checker.decide import Decision, decide
from txcore.records import OpKind

STATES_AND_EDGES = {
    "fenced": (37_991, 145_942),
    "fenced-half-first": (39_995, 154_126),
    "listener": (232_308, 947_830),
    "resume": (149_723, 504_476),
    "table": (123_187, 524_694),
    "prune": (126_867, 546_664),
    "owner": (46_373, 149_251),
    "owner-resume": (169_993, 565_332),
    "owner-table": (126_172, 554_029),
}
"""Numbers of states and edges by configuration. After a change of protocol or model, review the new states first."""

COUNTEREXAMPLES = {
    "no_fence": ("S4", 10),
    "op_before_target": ("S3", 10),
    "local_after_uncertain_ack": ("S8", 3),
    "exception_is_rollback": ("S4", 6),
    "immunity_counts_as_check": ("S9", 5),
    "unanswered_counts_as_check": ("S9", 8),
    "checkpoint_past_undecided": ("S11", 6),
    "late_producer_publishes": ("S6", 13),
    "last_op_wins": ("S1", 22),
    "discard_before_park": ("S10", 15),
    "rollback_without_tombstone": ("S4", 7),
    "prune_without_horizon": ("S4", 11),
    "checkpoint_past_unread_op": ("S11", 10),
    "resume_as_op": ("S11", 17),
    "stale_checkpoint_accepted": ("L4", 11),
    "decided_not_read_back": ("S10", 22),
    "discard_after_decided": ("S10", 23),
    "margin_too_small": ("S10", 18),
    "no_new_assignment": ("L1", 9),
    "released_before_target": ("S3", 12),
    "owner_publishes_state_3": ("S14", 13),
}
"""The invariant each mutant breaks, and the number of steps of the shortest way there."""

ISSUE_MUTANTS = {
    "no_fence",
    "op_before_target",
    "local_after_uncertain_ack",
    "exception_is_rollback",
    "immunity_counts_as_check",
    "unanswered_counts_as_check",
    "head_of_line_stop",
    "checkpoint_past_undecided",
    "late_producer_publishes",
    "last_op_wins",
    "discard_before_park",
    "rollback_without_tombstone",
    "prune_without_horizon",
    "checkpoint_past_unread_op",
    "resume_as_op",
    "stale_checkpoint_accepted",
}


def _never_discards(pending, now_ms, *, must_carry):
    decision = decide(pending, now_ms, must_carry=must_carry)
    return Decision.CHECK if decision is Decision.DISCARD else decision


def _asks_again(pending, now_ms, *, must_carry):
    decision = decide(pending, now_ms, must_carry=must_carry)
    return Decision.CHECK if decision is Decision.FINISH else decision


BROKEN_CODE = {
    "a discard counts after a decision": (deciding, "is_discard_in_force", lambda *_, **__: True, "resume", "S10"),
    "a rollback is not final": (fold, "DECIDING_KINDS", frozenset({OpKind.COMMIT}), "fenced", "L1"),
    "checks have no limit": (model_fold, "decide", _never_discards, "listener", "S9"),
    "what is decided is asked again": (model_fold, "decide", _asks_again, "listener", "S9"),
    "a committed half counts as delivered": (fold.PartitionState, "_end", committed_is_delivered, "owner", "S3"),
    "a commit takes a parked half off the list": (fold.PartitionState, "_take", close_parked_entry, "owner", "S3"),
}
"""Changes of the production code that the model must notice: what, where, and the invariant that breaks."""


@cache
def explored(name: str) -> Exploration:
    """Explore a configuration once for all tests of this module."""
    return explore(CONFIGURATIONS[name])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_reachable_state_keeps_every_invariant(name):
    """No order of steps and faults within the budget breaks an invariant or leaves a half undecided."""
    run = explored(name)
    assert run.violation is None


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_state_count_is_the_pinned_one(name):
    """The model explores exactly the states it explored when it was last judged."""
    run = explored(name)
    assert STATES_AND_EDGES[name] == (run.states, run.edges)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_leaving_a_rule_out_gives_the_shortest_counterexample(mutant):
    """Without the rule, the recorded invariant breaks in the recorded number of steps and in no fewer."""
    run = explore(CONFIGURATIONS[MUTANTS[mutant]], mutant)
    assert run.violation is not None
    assert COUNTEREXAMPLES[mutant] == (run.violation.invariant, len(run.violation.trace))


@pytest.fixture
def fresh_answers():
    """Clear the cached results of the production code before and after the test."""
    for answers in (model_fold.landed, model_fold.judged):
        answers.cache_clear()
    yield
    for answers in (model_fold.landed, model_fold.judged):
        answers.cache_clear()


@pytest.mark.usefixtures("fresh_answers")
@pytest.mark.parametrize("change", BROKEN_CODE)
def test_the_model_explores_the_code_that_runs_in_production(change, monkeypatch):
    """A rule that is broken in the fold or in the decision breaks an invariant here."""
    module, name, broken, configuration, invariant = BROKEN_CODE[change]
    monkeypatch.setattr(module, name, broken)
    run = explore(CONFIGURATIONS[configuration])
    assert run.violation is not None
    assert invariant == run.violation.invariant


def test_every_rare_situation_is_reached():
    """A run that never sees a rare situation proves nothing about it."""
    reached = frozenset().union(*(explored(name).reached for name in CONFIGURATIONS))
    assert reached == frozenset(SOMETIMES)


def test_every_mutant_of_the_issue_is_found_or_explained():
    """Each mutant shared with the simulator is found here or named with the reason why it cannot be."""
    assert not ISSUE_MUTANTS - MUTANTS.keys() - INEXPRESSIBLE.keys()
    assert not MUTANTS.keys() & INEXPRESSIBLE.keys()


def test_tombstone_that_beats_the_producer_needs_the_half_first():
    """A tombstone can be earlier than the fence row only if the half is, and not if the row is sent with BEGIN."""
    assert "tombstone_beat_the_producer" not in explored("fenced").reached
    assert "tombstone_beat_the_producer" in explored("fenced-half-first").reached


def test_unknown_mutant_is_refused():
    """An unknown mutant is refused, so that a misspelt name does not pass as a correct protocol."""
    with pytest.raises(ValueError, match="no_fense"):
        explore(CONFIGURATIONS["fenced"], "no_fense")


def test_table_names_a_mutant_that_is_not_found(monkeypatch, capsys):
    """The command fails when a rule can be left out unnoticed."""
    monkeypatch.setattr(model, "CONFIGURATIONS", {"fenced": CONFIGURATIONS["fenced"]})
    monkeypatch.setattr(model, "MUTANTS", {"unanswered_counts_as_check": "fenced"})
    monkeypatch.setattr(model, "SOMETIMES", {})
    assert model.main([]) == 1
    assert "NOT FOUND" in capsys.readouterr().out


def test_table_names_a_situation_that_is_not_reached(monkeypatch, capsys):
    """The command fails when a rare situation was never seen."""
    monkeypatch.setattr(model, "CONFIGURATIONS", {"fenced": CONFIGURATIONS["fenced"]})
    monkeypatch.setattr(model, "MUTANTS", {})
    monkeypatch.setattr(model, "SOMETIMES", {"flying_pig": "pig: flies"})
    assert model.main([]) == 1
    assert "never reached: flying_pig" in capsys.readouterr().out


def test_table_shows_the_shortest_trace_of_a_mutant(monkeypatch, capsys):
    """The command prints each step of a counterexample and succeeds when all are found."""
    monkeypatch.setattr(model, "CONFIGURATIONS", {"fenced": CONFIGURATIONS["fenced"]})
    monkeypatch.setattr(model, "MUTANTS", {"local_after_uncertain_ack": "fenced"})
    monkeypatch.setattr(model, "SOMETIMES", {})
    assert model.main([]) == 0
    assert "  2. producer: half append: request lost" in capsys.readouterr().out
