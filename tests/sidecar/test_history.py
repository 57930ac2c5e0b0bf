"""Figures of the last hour, and the charts made of them."""

from __future__ import annotations

import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txcore.sidecar.figures import Figures
from txcore.sidecar.web.charts import Series, make_chart, nice_top
from txcore.sidecar.web.history import SAMPLE_S, SAMPLES_MAX, History, quantile


class Runner:
    """The part of a group's runner that the history samples."""

    def __init__(self, clock):
        self.figures = Figures(clock)
        self.halves_read = 0
        self.pending = 0

    def status(self):
        partition = types.SimpleNamespace(pending=self.pending, oldest_age_s=float(self.pending))
        return types.SimpleNamespace(checker=types.SimpleNamespace(partitions=[partition, partition]))


@pytest.fixture
def group(clock):
    return Runner(clock)


@pytest.fixture
def history(clock, group):
    return History(types.SimpleNamespace(runners={"orders": group}), clock)


def play(history, group, clock, count, halves=0):
    for _ in range(count):
        history.sample()
        clock.advance(SAMPLE_S)
        group.halves_read += halves


def test_rates_are_those_between_two_samples(history, group, clock):
    """A rate is the same whatever the width of a step is."""
    play(history, group, clock, 121, halves=10)
    for steps, range_s in ((60, 600.0), (10, 600.0), (6, 60.0)):
        found = history.steps("orders", range_s, steps)
        assert [2.0] * steps == [round(each.rates["halves"], 6) for each in found if each]


def test_before_the_first_sample_there_is_nothing(history, group, clock):
    """Steps before the first sample are None and not zero."""
    play(history, group, clock, 13, halves=5)
    found = history.steps("orders", 600.0, 60)
    assert [None] * 53 == found[:53]
    assert all(each is not None for each in found[55:])
    assert [None] * 60 == history.steps("unused", 600.0, 60)


def test_pending_is_the_sum_over_partitions_and_the_age_is_the_highest(history, group, clock):
    """Both values are those at the end of the step."""
    play(history, group, clock, 2)
    group.pending = 7
    play(history, group, clock, 1)
    last = history.steps("orders", 60.0, 6)[-1]
    assert (14, 7.0) == (last.pending, last.oldest_s)


def test_an_hour_is_kept_and_no_more(history, group, clock):
    """The history keeps a bounded number of samples, and forgets removed groups."""
    play(history, group, clock, SAMPLES_MAX + 50)
    assert SAMPLES_MAX == len(history._kept["orders"])
    history._sidecar.runners.clear()
    history.sample()
    assert {} == history._kept


def test_sampler_continues_after_a_failure(history, wait_until, caplog):
    """The log reports the failure."""
    history._sidecar = None
    history.start()
    wait_until(lambda: "history.failed" in [record.message for record in caplog.records], "the report")
    assert history._thread.is_alive()
    history.stop()
    assert not history._thread.is_alive()


def test_a_quantile_lies_inside_its_bucket():
    """A quantile is interpolated between the bounds of its bucket; beyond the last bound it is that bound."""
    bounds = (1.0, 2.0, 4.0)
    assert 1.5 == quantile(bounds, (0, 0, 0, 0), (0, 10, 10, 10), 0.5)
    assert 4.0 == quantile(bounds, (0, 0, 0, 0), (0, 0, 0, 10), 0.5)
    assert 0.5 == quantile(bounds, (5, 5, 5, 5), (15, 15, 15, 15), 0.5)
    assert None is quantile(bounds, (1, 1, 1, 1), (1, 1, 1, 1), 0.5)


@example(5e-324)
@given(st.floats(0, 1e12))
def test_the_top_of_an_axis_is_a_round_number_not_far_above(value):
    """The top is not below the value, and at most three times the value or 3."""
    top = nice_top(value)
    assert value <= top * (1 + 1e-9)
    assert top <= max(value * 3, 3.0)


@given(st.lists(st.none() | st.floats(0, 1e9), min_size=1, max_size=60))
def test_every_value_is_drawn_inside_the_chart_and_listed(values):
    """The chart draws and lists each known value, and leaves gaps for missing ones."""
    chart = make_chart("k", "Title", [Series("line", values)], 600.0, str, "-")
    known = [value for value in values if value is not None]
    assert len(known) == len(chart.rows)
    assert chart.is_empty == (not known)
    points = [part.split() for part in chart.lines[0].path.replace("L", "M").split("M") if part]
    assert len(known) == len(points)
    for _, y in points:
        assert 9.9 <= float(y.split("h")[0]) <= 128.1
    assert (str(known[-1]) if known else "-") == chart.lines[0].latest
    assert chart.lines[0].latest in chart.summary
