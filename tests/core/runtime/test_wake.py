"""The event for one waiting thread."""

from __future__ import annotations

import threading

from txcore.wake import Wake


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
    wake, is_over, errors = Wake(), threading.Event(), []

    def set_often():
        try:
            while not is_over.is_set():
                wake.set()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=set_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert all(wake.wait(60.0) for _ in range(2_000))
    is_over.set()
    for thread in threads:
        thread.join(60.0)
    assert errors == []
