"""Waiting for other threads, also by a thread that is interrupted."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
from contextlib import suppress

import pytest
from txcore_conformance.interrupts import Interrupts

from txcore.port import running
from txcore.wake import Wake

PATIENCE_S = 60.0
QUIET_COUNT = 3


class TimeLimitError(Exception):
    pass


def test_a_set_before_the_wait_ends_it_once():
    """`wait` returns True for a `set`, however often it was set, and clears it."""
    wake = Wake()
    wake.set()
    wake.set()
    assert [wake.wait(0.0), wake.wait(0.0)] == [True, False]


def test_a_cleared_event_is_not_set():
    """`clear` forgets an earlier `set`, and does nothing without one."""
    wake = Wake()
    wake.set()
    wake.clear()
    wake.clear()
    assert not wake.wait(0.0)


def test_another_thread_ends_the_wait():
    """A waiting thread continues after `set`."""
    wake, ended = Wake(), []
    thread = threading.Thread(target=lambda: ended.append(wake.wait(60.0)))
    thread.start()
    wake.set()
    thread.join(60.0)
    assert ended == [True]


def test_threads_that_set_at_a_time_raise_nothing():
    """Each of many threads may set it, while one waits."""
    wake, errors = Wake(), []

    def set_often():
        try:
            for _ in range(5_000):
                wake.set()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=set_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        wake.wait(0.001)
    assert errors == []


def test_a_result_can_be_set_after_any_interrupt_of_a_waiter():
    """An exception at each place of a waiting call keeps no lock: another thread sets the result, and it is there."""
    interrupts, quiet_count = Interrupts(TimeLimitError), 0

    def wait():
        future.add_done_callback(id)
        future.done()
        future.result(PATIENCE_S)

    while quiet_count < QUIET_COUNT:
        tried_count, future = len(interrupts.tried), running()
        setter = threading.Timer(0.001, future.set_result, ("set",))
        setter.daemon = True
        setter.start()
        with suppress(TimeLimitError):
            interrupts.during(wait)
        setter.join(PATIENCE_S)
        assert not setter.is_alive(), interrupts.place
        assert future.result(0) == "set"
        quiet_count = 0 if len(interrupts.tried) > tried_count else quiet_count + 1


def test_an_interrupt_during_the_wait_for_a_result_is_raised():
    """The handler's exception reaches the waiting caller, and the result can be set and read afterwards."""
    future, handler = running(), signal.getsignal(signal.SIGUSR1)

    def limit(*_):
        raise TimeLimitError

    signal.signal(signal.SIGUSR1, limit)
    try:
        sender = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        sender.start()
        with pytest.raises(TimeLimitError):
            future.result(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    future.set_result("set")
    assert future.result(0) == "set"


def test_a_future_times_out_and_ends_the_wait_of_many():
    """`result` raises TimeoutError in time; each of many waiting threads gets the result."""
    future = running()
    for timeout_s in (0, -1, 0.001):
        with pytest.raises(TimeoutError):
            future.result(timeout_s)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = [pool.submit(future.result, PATIENCE_S if number % 2 else None) for number in range(8)]
        future.set_result("set")
        assert [result.result(PATIENCE_S) for result in results] == ["set"] * 8
    assert concurrent.futures.wait([future], PATIENCE_S).done == {future}
