"""The thread that runs requests of other threads, on a loop as simple as one can be."""

from __future__ import annotations

import logging
import queue
import threading

import pytest

from txcore.backends.request_thread import RequestThread

WAIT_S = 10


class QueueThread(RequestThread):
    """Its loop is a queue."""

    wakes = 0
    is_interrupted = False

    def end(self):
        """End the thread."""
        self._queue.put(None)
        self._thread.join(WAIT_S)

    def _make_loop(self):
        self._queue = queue.SimpleQueue()

    def _run(self):
        while (run := self._queue.get()) is not None:
            run()

    def _wake(self, run):
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.wakes += 1
        self._queue.put(run)


@pytest.fixture
def thread():
    """A thread that has started."""
    made = QueueThread("under-test", logging.getLogger("txcore.test"), "test.request_error")
    is_awake = threading.Event()
    made.call(is_awake.set)
    assert is_awake.wait(WAIT_S)
    yield made
    made.end()


def test_requests_run_in_their_order_by_one_wake_up(thread):
    """Requests that are handed over while another one runs need no wake-up of their own."""
    runs, begun, release, done = [], threading.Event(), threading.Event(), threading.Event()

    def hold():
        begun.set()
        assert release.wait(WAIT_S)

    thread.call(hold)
    assert begun.wait(WAIT_S)
    wakes = thread.wakes
    for number in range(100):
        thread.call(lambda number=number: runs.append(number))
    thread.call(done.set)
    assert thread.backlog == 101
    release.set()
    assert done.wait(WAIT_S)
    assert runs == list(range(100))
    assert thread.wakes == wakes + 1


def test_a_request_that_a_signal_interrupts_does_not_stop_the_later_ones(thread):
    """A caller is interrupted while it wakes the thread; the next request wakes it."""
    runs, done = [], threading.Event()
    thread.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        thread.call(lambda: runs.append("interrupted"))
    thread.is_interrupted = False
    thread.call(done.set)
    assert done.wait(WAIT_S)
    assert runs == ["interrupted"]


def test_a_request_that_fails_is_logged_and_takes_no_other_along(thread, caplog):
    """Its error is in the log, with the thread's name."""
    done = threading.Event()
    thread.call(lambda: 1 / 0)
    thread.call(done.set)
    assert done.wait(WAIT_S)
    assert [(each.message, each.txcore) for each in caplog.records] == [("test.request_error", {"loop": "under-test"})]
