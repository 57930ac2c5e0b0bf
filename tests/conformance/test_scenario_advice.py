"""The advice of the crash plugin: which lines it names for a finding, and what is to be changed."""

from __future__ import annotations

from txcore_conformance.scenario_advice import UNKILLED, advice
from txcore_conformance.scenario_crash import Finding
from txcore_conformance.user_lines import Line

COMMIT = Line("/shop/shop.py", 10, "with engine.begin() as connection:")
HALF = Line("/shop/shop.py", 20, "with producer.transaction(engine) as tx:")


def steps(*commands):
    """Return the steps of commands with their lines, killed before and after each."""
    lines = {"database COMMIT": COMMIT, "half": HALF, "release COMMIT": HALF}
    return {f"{when} {command}:1": lines[command] for command in commands for when in ("before", "after")}


def text_of(finding, *commands):
    (text,) = advice([Finding(UNKILLED, both=["one"]), finding], steps(*commands))
    return text


def test_record_before_its_half_is_to_be_written_in_one_transaction():
    """Both lines are quoted."""
    text = text_of(Finding("after database COMMIT:1", lost=["one"]), "database COMMIT", "half", "release COMMIT")
    assert text.startswith("LOST: the record is committed at /shop/shop.py:10 (`with engine.begin() as connection:`)")
    assert "stored only later, at /shop/shop.py:20 (`with producer.transaction(engine) as tx:`). Do both in one" in text


def test_half_that_the_check_ended_wrongly_points_at_the_sources_of_answers():
    """A half before the commit is there, so its fence or listener has given the wrong answer."""
    text = text_of(Finding("after database COMMIT:1", lost=["one"]), "half", "database COMMIT")
    assert "the check decided ROLLBACK" in text
    assert "`fence` and `listener` of the scenario" in text


def test_record_without_any_half_is_to_be_published():
    """A program that sends by another way stores no half."""
    assert "no step stores a message for it" in text_of(
        Finding("after database COMMIT:1", lost=["one"]), "database COMMIT"
    )


def test_message_before_its_record_names_both_places():
    """A leak before a later commit is the reverse mistake."""
    text = text_of(Finding("after release COMMIT:1", leaked=["one"]), "half", "release COMMIT", "database COMMIT")
    assert "sent at /shop/shop.py:20" in text
    assert "its record is committed only later, at /shop/shop.py:10" in text


def test_leak_without_a_later_commit_doubts_the_listener():
    """Nothing of the program follows: the check has said COMMIT."""
    text = text_of(Finding("after half:1", leaked=["one"]), "database COMMIT", "half")
    assert "A listener answers COMMIT only for a record that it has found" in text


def test_findings_without_a_kill_doubt_the_names_too():
    """The two functions of the scenario may disagree about names."""
    found = Finding(UNKILLED, lost=["1"], leaked=["one"])
    lost, leaked = advice([found], steps("half", "database COMMIT", "release COMMIT"))
    assert "`committed` and `announced`" in lost
    assert "`committed` and `announced`" in leaked
    assert "/shop/shop.py:10" in lost


def test_each_kind_and_each_cure_is_said_once():
    """Ten findings of one kind have one cause; a correct scenario has no advice."""
    findings = [
        Finding("after half:1", doubled=["one"], cure="Do it."),
        Finding("before half:1", doubled=["one"], cure="Do it."),
    ]
    assert ["DOUBLED", "Do it."] == [each.partition(":")[0] for each in advice(findings, steps("half"))]
    assert [] == advice([Finding(UNKILLED, both=["one"])], steps("half"))
