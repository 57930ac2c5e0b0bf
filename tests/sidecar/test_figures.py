"""The counters, the page for Prometheus, and the log of the process."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from txcore.config import LogSection
from txcore.hookspecs import Event
from txcore.ids import first_id_at, id_text
from txcore.runtime import instrumentation as names
from txcore.sidecar import logs
from txcore.sidecar.figures import ALERTS_KEPT, Figures, Histogram
from txcore.sidecar.metrics import METRICS, Page

ID = first_id_at(1_700_000_995_000)  # five seconds before the hand clock's wall time


def test_a_histogram_counts_up_to_each_bound():
    """A value on a bound counts for that bound; the last bound is infinity."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert ([2, 3, 4], 12.0) == histogram.read()


def test_events_become_figures(clock):
    """The figures count each answer once, even if it makes several events."""
    figures = Figures(clock)
    for name, fields in (
        (names.CHECK_ANSWERED, {"transaction_id": ID, "answer": "COMMIT"}),
        (names.CHECK_ANSWERED, {"transaction_id": ID, "answer": "UNKNOWN"}),
        (names.CHECK_ANSWERED, {"transaction_id": ID, "answer": "NO_ANSWER"}),
        (names.CHECK_NO_ANSWER, {"transaction_id": ID, "reason": "locked"}),
        (names.CHECK_WRONG_DATABASE, {"transaction_id": ID, "reason": "another one"}),
        (names.HALF_FINISHED, {"transaction_id": ID, "end": "COMMIT"}),
        (names.HALF_FINISHED, {"transaction_id": ID, "end": "ROLLBACK"}),
        (names.HALF_PARKED, {"transaction_id": ID, "code": "POISON", "reason": "x"}),
        (names.CHECKER_ERROR, {"error": "x"}),
        (names.RELEASE_UNKNOWN, {"transaction_id": ID, "error": "x"}),
        (names.CHECKER_CLAIMED, {"partition": 1}),
    ):
        figures.txcore_on_event(Event(name, fields))
    assert {"COMMIT": 1, "ROLLBACK": 0, "UNKNOWN": 1, "PRUNED": 0, "none": 2} == dict(figures.answers)
    assert {"COMMIT": 1, "ROLLBACK": 1} == dict(figures.ends)
    assert ({"POISON": 1}, 2, 1) == (dict(figures.parked), figures.broker_errors, figures.events[names.CHECKER_CLAIMED])
    counts, total = figures.visible_s.read()
    assert (1, 5.0) == (counts[-1], total)
    told = [names.CHECK_NO_ANSWER, names.CHECK_WRONG_DATABASE, names.HALF_PARKED, names.CHECKER_ERROR]
    assert told == [each.event for each in figures.alerts]
    assert {"transaction_id": id_text(ID), "reason": "locked"} == figures.alerts[0].facts


def test_alerts_are_bounded(clock):
    """The figures keep only the newest alerts."""
    figures = Figures(clock)
    for number in range(ALERTS_KEPT + 5):
        figures.txcore_on_event(Event(names.CHECKER_ERROR, {"error": number}))
    assert (ALERTS_KEPT, "5") == (len(figures.alerts), figures.alerts[0].facts["error"])


def test_metrics_follow_prometheus_rules():
    """A counter's name ends with `_total`, a histogram's with `_seconds`; each metric has one entry and a sentence."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"txcore_[a-z_]+", metric.name)
        assert ("counter" == metric.kind) == metric.name.endswith("_total")
        assert ("histogram" == metric.kind) <= metric.name.endswith("_seconds")
        assert metric.help.endswith(".")


def test_an_empty_page_is_one():
    """Without any group the page has the metrics of the process itself."""
    families = {family.name: family for family in text_string_to_metric_families(Page({}).render().decode())}
    assert 1.0 == families["txcore_build_info"].samples[0].value
    assert "process_resident_memory_bytes" in families


def record(message="check.no_answer", level=logging.WARNING, facts=None, exc_info=None):
    made = logging.LogRecord("txcore.checker", level, __file__, 1, message, (), exc_info)
    made.created = 1_700_000_000.5
    if facts is not None:
        made.txcore = facts
    return made


def test_lines_for_people():
    """A line has time, level, event and facts, and stays one line whatever the facts contain."""
    facts = {"group": "orders", "transaction_id": ID, "reason": "no such\ntable", "count": 3}
    assert (
        f"2023-11-14 22:13:20.500 WARNING check.no_answer group=orders transaction_id={id_text(ID)} "
        "reason='no such\\\\ntable' count=3" == logs.HumanFormatter().format(record(facts=facts))
    )


def test_lines_for_machines():
    """A line has the facts beside fixed keys, which the facts cannot replace; ids are text, numbers are numbers."""
    facts = {"group": "orders", "transaction_id": ID, "level": "none", "text": "ä\n", "count": 3, "nothing": None}
    assert {
        "time": "2023-11-14T22:13:20.500+00:00",
        "level": "warning",
        "logger": "txcore.checker",
        "event": "check.no_answer",
        "group": "orders",
        "transaction_id": id_text(ID),
        "text": "ä\n",
        "count": 3,
        "nothing": None,
    } == json.loads(logs.JsonFormatter().format(record(facts=facts)))


@pytest.mark.parametrize("formatter", [logs.HumanFormatter(), logs.JsonFormatter()])
def test_a_traceback_is_kept_and_long_facts_are_cut(formatter):
    """A line has a bounded length even with long facts, and keeps the traceback."""
    try:
        int("odd")
    except ValueError:
        text = formatter.format(record(facts={"reason": "x" * 100_000}, exc_info=sys.exc_info()))
    assert "ValueError: invalid literal" in text
    assert 5_000 > len(text)


def test_repetitions_are_held_back_and_counted(clock):
    """Repeated lines are counted by event and group."""
    repeats = logs.RepeatFilter(clock, 2)
    passed = [repeats.filter(record(facts={"group": group})) for group in "aaaab"]
    assert [True, True, False, False, True] == passed
    clock.advance(10)
    next_one = record(facts={"group": "a"})
    assert repeats.filter(next_one)
    assert {"group": "a", "left_out": 2} == next_one.txcore


def test_tracebacks_are_held_back_by_the_type_of_their_error(clock):
    """The first traceback of each type passes; an endless row of the same does not fill the log."""
    repeats = logs.RepeatFilter(clock, 2)
    errors = [ValueError(), ValueError(), ValueError(), KeyError()]
    passed = [repeats.filter(record(exc_info=(type(each), each, None))) for each in errors]
    assert [True, True, False, True] == passed


def test_lines_of_a_library_count_by_the_statement_that_logs_them(clock):
    """Texts that differ in a port number only are repetitions, as pika's are."""
    repeats = logs.RepeatFilter(clock, 2)
    texts = [f"Socket failed to connect: ('127.0.0.1', {port}); error=111" for port in range(47_000, 47_010)]
    lines = [logging.LogRecord("pika", logging.ERROR, "pika/io.py", 336, text, (), None) for text in texts]
    assert 2 == sum(map(repeats.filter, lines))


def test_configuring_twice_leaves_one_handler(clock):
    """A reload replaces format and level; other libraries stay at warnings."""
    root, ours = logging.getLogger(), logging.getLogger("txcore")
    before = list(root.handlers), root.level, ours.level
    try:
        logs.configure(LogSection(), clock)
        logs.configure(LogSection(format="json", level="debug"), clock)
        assert (1, logging.DEBUG, logging.WARNING) == (len(root.handlers), ours.level, root.level)
        assert isinstance(root.handlers[0].formatter, logs.JsonFormatter)
    finally:
        root.handlers[:], root.level, ours.level = before
