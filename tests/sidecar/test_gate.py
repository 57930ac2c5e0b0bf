"""The gate before a callback or database: closed while that is down, one question at a time to find out, then open."""

from __future__ import annotations

import logging
import threading

import pytest

from txcore import CheckPostponedError
from txcore.clock import SystemClock
from txcore.sidecar.gate import Gate


def ask(gate, failure="", retry_after_s=0.0):
    """Pass the gate once, with or without a failure."""
    with gate.passage(0.0) as passage:
        passage.failure, passage.retry_after_s = failure, retry_after_s


def refused_for_s(gate):
    """Return for how long the gate turns a question away."""
    with pytest.raises(CheckPostponedError) as raised, gate.passage(0.0):
        pass
    return raised.value.retry_after_s


@pytest.fixture
def gate(clock, no_jitter):
    return Gate("callback", clock, no_jitter, group="orders", failures_max=3, first_s=1.0, longest_s=4.0)


def test_it_closes_after_failures_in_a_row(gate):
    """A success between them starts the count again."""
    ask(gate, "down")
    ask(gate, "down")
    ask(gate)
    ask(gate, "down")
    ask(gate, "down")
    assert "" == gate.reason
    ask(gate, "refused")
    assert ("refused", 1.0) == (gate.reason, refused_for_s(gate))


def test_pauses_double_up_to_a_bound_and_start_anew_after_a_success(gate, clock):
    """Each probe that fails closes it for longer."""
    pauses = []
    for _ in range(3):
        ask(gate, "down")
    for _ in range(4):
        pauses.append(refused_for_s(gate))
        clock.advance(pauses[-1])
        ask(gate, "down")
    assert [1.0, 2.0, 4.0, 4.0] == pauses
    clock.advance(4)
    ask(gate)
    assert ("", 0.0) == (gate.reason, gate.retry_after_s)
    for _ in range(3):
        ask(gate, "down")
    assert 1.0 == refused_for_s(gate)


def test_whoever_says_for_how_long_is_left_in_peace(gate):
    """A Retry-After beyond the own pause holds."""
    ask(gate, "busy")
    ask(gate, "busy")
    ask(gate, "busy", retry_after_s=60)
    assert 60.0 == refused_for_s(gate)


def test_an_exception_in_the_passage_is_a_failure(gate):
    """Whatever it is; it goes on to the caller."""
    for _ in range(3):
        with pytest.raises(ValueError, match="odd"), gate.passage(0.0):
            raise ValueError("odd")
    assert "ValueError('odd')" == gate.reason


def test_failures_under_way_when_it_closes_do_not_lengthen_the_pause(gate):
    """Eight threads that run into the same wall are one failure."""
    passages = [gate.passage(0.0) for _ in range(8)]
    for each in passages:
        each.__enter__().failure = "down"
    for each in passages:
        each.__exit__(None, None, None)
    assert 1.0 == refused_for_s(gate)


def test_one_probe_at_a_time_and_the_others_wait_for_it(no_jitter, wait_until):
    """If it succeeds they pass; nobody else has knocked meanwhile."""
    gate = Gate("callback", SystemClock(), no_jitter, failures_max=1, first_s=0.01)
    ask(gate, "down")
    wait_until(lambda: not gate.retry_after_s, "the end of the pause")
    inside, order = threading.Event(), []
    probe = gate.passage(10.0)
    probe.__enter__()

    def knock():
        with gate.passage(10.0):
            order.append("passed")
        inside.set()

    thread = threading.Thread(target=knock)
    thread.start()
    assert not inside.wait(0.1)
    order.append("probe ends")
    probe.__exit__(None, None, None)
    thread.join(10)
    assert ["probe ends", "passed"] == order


def test_a_probe_that_hangs_holds_nobody_for_longer_than_asked(no_jitter, wait_until):
    """Then they come back later."""
    gate = Gate("callback", SystemClock(), no_jitter, failures_max=1, first_s=0.01)
    ask(gate, "down")
    wait_until(lambda: not gate.retry_after_s, "the end of the pause")
    probe = gate.passage(10.0)
    probe.__enter__()
    assert 0 < refused_for_s(gate) < 1
    probe.__exit__(None, None, None)


def test_going_down_and_coming_back_are_one_log_line_each(gate, clock, caplog):
    """With group, source and reason."""
    with caplog.at_level(logging.WARNING, "txcore.sidecar"):
        for _ in range(3):
            ask(gate, "down")
        for _ in range(3):
            clock.advance(60)
            ask(gate, "still down")
        clock.advance(60)
        ask(gate)
        ask(gate)
    assert ["source.down", "source.up"] == [record.message for record in caplog.records]
    assert {"group": "orders", "source": "callback", "reason": "down"} == caplog.records[0].txcore
