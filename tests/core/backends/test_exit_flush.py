"""Open backends are closed when the process ends, in bounded time, by the process that opened them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

import pytest

from txcore.backends import exit_flush as exiting
from txcore.clock import SystemClock

SHORT_S = 0.2
LONG_S = 60.0


class Open:
    """An open backend; its closing ends when `end` is called."""

    def __init__(self, *, ends=False):
        self.asked_s = []
        self.closing = Future()
        if ends:
            self.end()

    def end(self):
        self.closing.set_result(None)

    def close(self, timeout_s=10.0):
        self.asked_s.append(timeout_s)
        return self.closing


@pytest.fixture
def opened(monkeypatch):
    """A function that registers a backend; backends that the test run itself has open are left alone."""
    monkeypatch.setattr(exiting, "_open", {})

    def open_(backend):
        exiting.close_at_exit(backend)
        return backend

    return open_


def test_every_open_backend_is_closed(opened):
    """Each backend is closed within its share of the time."""
    first, second = opened(Open(ends=True)), opened(Open(ends=True))
    exiting.close_all(LONG_S)
    assert [1, 1] == [len(first.asked_s), len(second.asked_s)]
    assert first.asked_s[0] <= LONG_S / 2
    assert LONG_S / 2 <= second.asked_s[0] <= LONG_S


def test_closing_that_is_under_way_is_waited_for(opened):
    """The exit waits for a closing under way, so a program that called `close` need not wait for it."""
    backend = opened(Open())
    thread = threading.Timer(SHORT_S, backend.end)
    thread.start()
    exiting.close_all(LONG_S)
    assert backend.closing.done()
    thread.join()


def test_backend_that_hangs_holds_the_process_up_no_longer_than_the_bound(opened):
    """A backend that hangs delays the exit by no more than the bound, and another backend is still closed."""
    hanging, other = opened(Open()), opened(Open(ends=True))
    began_s = SystemClock().elapsed_s()
    exiting.close_all(SHORT_S)
    assert SHORT_S <= SystemClock().elapsed_s() - began_s + 0.01 < LONG_S
    assert (False, 1) == (hanging.closing.done(), len(other.asked_s))


def test_backend_that_cannot_be_closed_hinders_no_other(opened):
    """The exit raises a backend's error after it has closed the others, and Python prints the error."""

    class Broken(Open):
        def close(self, timeout_s=10.0):
            raise RuntimeError("can't start new thread")

    opened(Broken())
    other = opened(Open())
    thread = threading.Timer(SHORT_S, other.end)
    thread.start()
    with pytest.raises(RuntimeError, match="new thread"):
        exiting.close_all(LONG_S)
    assert other.closing.done()
    thread.join()


def test_backend_that_has_closed_is_forgotten(opened):
    """The exit neither keeps a closed backend nor closes it again."""
    backend = opened(Open())
    exiting.closed(backend)
    exiting.close_all(LONG_S)
    assert [] == backend.asked_s


def test_backend_of_the_parent_is_left_alone(opened):
    """A forked child closes only backends that it has opened itself."""
    parents = opened(Open(ends=True))
    process = os.fork()
    if not process:
        own = opened(Open(ends=True))
        exiting.close_all(LONG_S)
        os._exit(0 if (parents.asked_s, len(own.asked_s)) == ([], 1) else 1)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_call_runs_in_the_calling_thread_where_none_can_be_started(monkeypatch):
    """A call runs in the calling thread where Python (3.12 and later) starts no thread while it ends."""

    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ran = []
    exiting.run_beside(lambda: ran.append(threading.current_thread()), "closing")
    assert [threading.current_thread()] == ran
