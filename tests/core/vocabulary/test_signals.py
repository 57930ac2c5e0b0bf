"""Signals are received while the main thread does anything at all; the handlers of before are back after the block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from txcore.signals import END, end_requested, received

ROUNDS = 300
CHILD = f"""
import random, signal
from txcore.signals import end_requested

for number in range({ROUNDS}):
    with end_requested() as requested:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
        while not requested.wait(1e-9):
            pass
print("ended")
"""


def test_a_signal_never_blocks_the_thread_that_it_interrupts():
    """A handler that set the event itself blocked a main thread that held the event's lock, one time in fifty."""
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=False)
    assert "ended\n" == ended.stdout, ended.stderr


@pytest.mark.parametrize("number", sorted(END))
def test_a_request_to_end_sets_the_event(number):
    before = signal.getsignal(number)
    with end_requested() as requested:
        assert not requested.is_set()
        os.kill(os.getpid(), number)
        assert requested.wait(20)
    assert before == signal.getsignal(number)
    assert not any(thread.name == "txcore-signals" for thread in threading.enumerate())


def test_other_signals_are_not_passed_on():
    taken, is_taken = [], threading.Event()

    def take(number):
        taken.append(number)
        is_taken.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with received([signal.SIGUSR2], take):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
            assert is_taken.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [signal.SIGUSR2] == taken


def test_blocks_inside_each_other_keep_the_outer_ones_signals():
    with end_requested() as outer:
        with end_requested() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner.wait(20)
        assert not outer.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.wait(20)


def test_another_thread_cannot_receive_signals():
    refused = []

    def attempt():
        with pytest.raises(ValueError, match="main thread"), end_requested():
            refused.append("entered")
        refused.append("refused")

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert ["refused"] == refused
