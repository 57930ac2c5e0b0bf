"""The circuit around a callback or database: open while that is down, one question at a time probes, then closed."""

from __future__ import annotations

import logging
import threading

import pytest

from txcore import CheckPostponedError
from txcore.clock import SystemClock
from txcore.sidecar.source_circuit import SourceCircuit


def ask(circuit, failure="", retry_after_s=0.0):
    """Pass the circuit once, with or without a failure."""
    with circuit.question(0.0) as question:
        question.failure, question.retry_after_s = failure, retry_after_s


def refused_for_s(circuit):
    """Return the seconds for which the circuit refuses questions."""
    with pytest.raises(CheckPostponedError) as raised, circuit.question(0.0):
        pass
    return raised.value.retry_after_s


@pytest.fixture
def circuit(clock, no_jitter):
    return SourceCircuit("callback", clock, no_jitter, group="orders", failures_max=3, first_s=1.0, longest_s=4.0)


def test_circuit_opens_after_failures_in_a_row(circuit):
    """A success between failures restarts the count."""
    ask(circuit, "down")
    ask(circuit, "down")
    ask(circuit)
    ask(circuit, "down")
    ask(circuit, "down")
    assert "" == circuit.reason
    ask(circuit, "refused")
    assert ("refused", 1.0) == (circuit.reason, refused_for_s(circuit))


def test_pauses_double_up_to_a_bound_and_start_anew_after_a_success(circuit, clock):
    """Each probe that fails lengthens the pause."""
    pauses = []
    for _ in range(3):
        ask(circuit, "down")
    for _ in range(4):
        pauses.append(refused_for_s(circuit))
        clock.advance(pauses[-1])
        ask(circuit, "down")
    assert [1.0, 2.0, 4.0, 4.0] == pauses
    clock.advance(4)
    ask(circuit)
    assert ("", 0.0) == (circuit.reason, circuit.retry_after_s)
    for _ in range(3):
        ask(circuit, "down")
    assert 1.0 == refused_for_s(circuit)


def test_circuit_obeys_a_longer_retry_after(circuit):
    """A Retry-After that is longer than the circuit's own pause is obeyed."""
    ask(circuit, "busy")
    ask(circuit, "busy")
    ask(circuit, "busy", retry_after_s=60)
    assert 60.0 == refused_for_s(circuit)


def test_an_exception_in_the_passage_is_a_failure(circuit):
    """Any exception counts, and reaches the caller."""
    for _ in range(3):
        with pytest.raises(ValueError, match="odd"), circuit.question(0.0):
            raise ValueError("odd")
    assert "ValueError('odd')" == circuit.reason


def test_failures_under_way_when_it_opens_do_not_lengthen_the_pause(circuit):
    """Eight questions that fail together count as one failure."""
    passages = [circuit.question(0.0) for _ in range(8)]
    for each in passages:
        each.__enter__().failure = "down"
    for each in passages:
        each.__exit__(None, None, None)
    assert 1.0 == refused_for_s(circuit)


def test_one_probe_at_a_time_and_the_others_wait_for_it(no_jitter, wait_until):
    """The other callers pass after the probe succeeds, and send no question before that."""
    circuit = SourceCircuit("callback", SystemClock(), no_jitter, failures_max=1, first_s=0.01)
    ask(circuit, "down")
    wait_until(lambda: not circuit.retry_after_s, "the end of the pause")
    inside, order = threading.Event(), []
    probe = circuit.question(10.0)
    probe.__enter__()

    def knock():
        with circuit.question(10.0):
            order.append("passed")
        inside.set()

    thread = threading.Thread(target=knock)
    thread.start()
    assert not inside.wait(0.1)
    order.append("probe ends")
    probe.__exit__(None, None, None)
    thread.join(10)
    assert ["probe ends", "passed"] == order


def test_hanging_probe_delays_no_caller_beyond_its_wait(no_jitter, wait_until):
    """A caller whose wait ends before the probe does gets a time for its next try."""
    circuit = SourceCircuit("callback", SystemClock(), no_jitter, failures_max=1, first_s=0.01)
    ask(circuit, "down")
    wait_until(lambda: not circuit.retry_after_s, "the end of the pause")
    probe = circuit.question(10.0)
    probe.__enter__()
    assert 0 < refused_for_s(circuit) < 1
    probe.__exit__(None, None, None)


def test_going_down_and_coming_back_are_one_log_line_each(circuit, clock, caplog):
    """Each line has the group and the source; that it is back has no reason."""
    with caplog.at_level(logging.WARNING, "txcore.sidecar"):
        for _ in range(3):
            ask(circuit, "down")
        for _ in range(3):
            clock.advance(60)
            ask(circuit, "still down")
        clock.advance(60)
        ask(circuit)
        ask(circuit)
    assert ["callback.down", "callback.up"] == [record.message for record in caplog.records]
    assert {"group": "orders", "source": "callback", "reason": "down"} == caplog.records[0].txcore
    assert {"group": "orders", "source": "callback"} == caplog.records[1].txcore


def test_notes_open_and_close_it_without_a_question(circuit, clock, caplog):
    """What a watch hears counts as the questions do; its failures lengthen no pause and end no probe of another one."""
    with caplog.at_level(logging.WARNING, "txcore.sidecar"):
        for _ in range(3):
            circuit.note("down")
        pause_s = circuit.retry_after_s
        circuit.note("still down")
        assert ("still down", pause_s) == (circuit.reason, circuit.retry_after_s)
        circuit.note("")
    assert ("", 0.0) == (circuit.reason, circuit.retry_after_s)
    assert ["callback.down", "callback.up"] == [record.message for record in caplog.records]
    ask(circuit)
