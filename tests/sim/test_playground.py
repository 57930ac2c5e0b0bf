"""A visitor of the playground may kill and freeze what there is at any moment, and sees what is true."""

from __future__ import annotations

import json
import random
import re

import pytest
from txcore_conformance.sim.page import Page
from txcore_conformance.sim.playground import Choice, Playground, replayed

from txcore.memory import PROFILES
from txcore.records import LogKind

STEPS_MAX = 60
VISITS = 60


def rest(visit):
    """Play a visit until everything is decided; return the sentences."""
    said = []
    for _ in range(STEPS_MAX):
        said += visit.choose("step").sentences
        if visit.is_at_rest:
            return [*said, *visit.choose("step").sentences]
    pytest.fail(f"never at rest after {visit.chosen}")


def steps_of(broker):
    """Return the number of steps of an order that is not disturbed."""
    visit = Playground(1, broker)
    visit.choose("order")
    rest(visit)
    return len(visit.chosen)


@pytest.mark.parametrize("broker", PROFILES)
def test_an_order_whose_producer_is_killed_at_any_step_is_in_both_places_or_in_neither(broker):
    """Wherever the producer is killed, the order and its message are both there at rest, or both not."""
    ends = set()
    for after in range(steps_of(broker)):
        visit = Playground(1, broker)
        said = [*visit.choose("order").sentences]
        for _ in range(after):
            said += visit.choose("step").sentences
        visit.choose("kill producer")
        said += rest(visit)
        assert (0, []) == visit.verdict() or "comes again" in " ".join(said)
        assert [] == visit.verdict()[1]
        delivered = bool(visit.cast.world.broker.topics["orders.created"])
        assert delivered == bool(visit.cast.database.committed)
        assert visit.opening[0].startswith("A checker writes CLAIM")
        assert any(re.match("(COMMIT|ROLLBACK) is in the op log", sentence) for sentence in said) == (after > 0)
        ends.add((delivered, any("the checker publishes" in sentence for sentence in said)))
    assert {(False, False), (True, True), (True, False)} == ends


def test_a_half_waits_while_no_checker_runs():
    """Without a checker nothing is decided however long it takes, and the next checker publishes the message."""
    visit = Playground(1)
    visit.choose("order")
    while not visit.cast.database.committed:
        visit.choose("step")
    visit.choose("kill checker")
    visit.choose("kill producer")
    while "no checker runs" not in visit.choose("step").sentences[0]:
        pass
    assert not visit.is_at_rest
    visit.choose("start checker")
    assert any("the checker publishes" in sentence for sentence in rest(visit))


def test_a_frozen_producer_gives_way_to_the_checker():
    """A producer that is frozen after its half holds its row's lock, and publishes nothing when it wakes too late."""
    visit = Playground(1)
    visit.choose("order")
    while not visit.cast.archive.records(LogKind.HALF, 0):
        visit.choose("step")
    visit.choose("freeze producer")
    said = " ".join(rest(visit))
    assert "locked by an open transaction" in said
    assert "too late for order 1" in said
    assert "the checker publishes the message" in said


@pytest.mark.parametrize("broker", PROFILES)
def test_no_visit_breaks_a_rule_and_each_can_be_repeated(broker):
    """Random visits end with everything decided and no rule broken; the same choices give the same trace."""
    traces = set()
    for seed in range(VISITS // len(PROFILES)):
        rng, visit = random.Random(seed), Playground(seed, broker)
        for _ in range(rng.randrange(10, 50)):
            choices = visit.open_choices()
            visit.choose(rng.choices(choices, [8 if each is Choice.STEP else 2 for each in choices])[0])
        if Choice.START_CHECKER in visit.open_choices():
            visit.choose("start checker")
        rest(visit)
        assert [] == visit.verdict()[1], (seed, visit.chosen)
        assert visit.trace == replayed(seed, broker, visit.chosen).trace
        traces.add(visit.trace)
    assert len(traces) == VISITS // len(PROFILES)


@pytest.mark.parametrize(
    ("rule", "broker", "until", "choice", "broken"),
    [
        ("no_fence", "kafka-like", "stored in the half log", "freeze producer", "S4"),
        ("op_before_target", "nats-like", "COMMIT is in the op log", "kill producer", "S3"),
        ("late_producer_publishes", "kafka-like", "The database commits", "freeze producer", "S6"),
    ],
)
def test_a_rule_that_is_switched_off_is_missed(rule, broker, until, choice, broken):
    """Each rule that a visitor may switch off has a visit that breaks an invariant, which is named; with it none is."""
    page = Page()
    assert rule in json.loads(page.rules())
    for switched_off in (rule, ""):
        page.begin(1, broker, rule=switched_off)
        seen = json.loads(page.choose("order"))
        for _ in range(STEPS_MAX):
            if until in seen["sentences"][0]:
                break
            seen = json.loads(page.choose("step"))
        page.choose(choice)
        for _ in range(STEPS_MAX):
            seen = json.loads(page.choose("step"))
        start = f"A rule is broken: {broken} order 1: " if switched_off else "All is decided"
        assert seen["sentences"][0].startswith(start)


def test_a_choice_that_is_not_open_is_refused():
    """A dead producer takes no order, a living checker is not started, and an unknown choice has no effect."""
    visit = Playground(1)
    visit.choose("kill producer")
    for choice in ("order", "kill producer", "start checker"):
        with pytest.raises(ValueError, match="is not open now"):
            visit.choose(choice)
    with pytest.raises(ValueError, match="dance"):
        visit.choose("dance")
    assert ["kill producer"] == visit.chosen


def test_the_page_shows_each_record_and_row():
    """The page's JSON has the sentences, both processes, the rows, the logs and the message of an order."""
    page = Page()
    opened = json.loads(page.begin(5, "nats-like"))
    assert re.search("CLAIM", opened["sentences"][0])
    seen = json.loads(page.choose("order"))
    assert [{"order": 1, "row": "order 1", "fence": "not yet visible", "state": "open"}] == seen["database"]
    while not seen["is_at_rest"]:
        seen = json.loads(page.choose("step"))
    assert [("alive", "waits for an order"), ("alive", "owns the partition; no half is undecided")] == [
        (seen[name]["state"], seen[name]["text"]) for name in ("producer", "checker")
    ]
    assert ["committed"] == [half["state"] for half in seen["halves"]]
    assert [("CLAIM", 0, "checker"), ("COMMIT", 1, "producer")] == [
        (op["kind"], op["order"], op["by"]) for op in seen["ops"]
    ]
    assert [(1, '{"order": 1}', False)] == [(each["order"], each["body"], each["is_copy"]) for each in seen["messages"]]
    again = json.loads(page.begin(5, "nats-like", seen["chosen"]))
    assert (seen["trace"], seen["now_s"]) == (again["trace"], again["now_s"])


def test_the_page_plays_a_seed_of_the_simulator():
    """The page plays one of the simulator's whole seeds, with its faults, and gives its result."""
    result = json.loads(Page().play(1))
    assert ("kafka-like", []) == (result["broker"], result["violations"])
    assert result["transactions"] > 1
    assert result["crashes"] > 0


def test_sentences_are_short():
    """Each sentence of a visit has fewer than 30 words."""
    visit = Playground(2)
    said = [*visit.opening]
    for _ in range(3):
        said += visit.choose("order").sentences
    said += visit.choose("freeze producer").sentences
    said += rest(visit)
    long = [each for text in said for each in re.split(r"(?<=[.:]) ", text) if len(each.split()) >= 30]
    assert [] == long
    assert len(said) > 20
