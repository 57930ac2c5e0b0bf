"""`with` and `async with` of backends, checkers and relays: the order, the errors, and the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

import txcore
from txcore import BackendTimeoutError, BackendUnavailableError, ClosedError, TransactionStateError, lifecycle
from txcore.lifecycle import ClosedAtExit, RunningInside
from txcore.port import failed, resolved


class Closing(ClosedAtExit):
    """An object whose closing ends as the test says."""

    def __init__(self, answer):
        self.answer = answer
        self.closed_count = 0

    def close(self, timeout_s=10.0):
        self.closed_count += 1
        return self.answer


class Running(RunningInside):
    """An object that notes its starts and stops, and waits for the test in them."""

    def __init__(self, has_ended=None):
        self.calls = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.has_begun = threading.Event()
        self.has_ended = has_ended

    def _note(self, call):
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        self.calls.append(call)

    def start(self):
        self._note("start")

    def stop(self, timeout_s=30.0):
        self._note("stop")
        return self.has_ended


def in_blocking_code(opened, body=lambda: None):
    """Run *body* in a `with` block of *opened*."""
    with opened as entered:
        assert entered is opened
        body()


def in_a_coroutine(opened, body=lambda: None):
    """Run *body* in an `async with` block of *opened*."""

    async def main():
        async with opened as entered:
            assert entered is opened
            body()

    asyncio.run(main())


both = pytest.mark.parametrize("run", [in_blocking_code, in_a_coroutine])


def fail():
    """Raise the error of a block."""
    raise KeyError("the block's own")


@both
class TestBothForms:
    def test_the_block_ends_with_the_closing(self, run):
        """The object is closed once, after the block."""
        closing = Closing(resolved(None))
        run(closing, lambda: closing.closed_count == 0 or fail())
        assert 1 == closing.closed_count

    def test_an_error_of_closing_is_raised(self, run):
        """The error in the Future of `close` is raised at the end of the block."""
        with pytest.raises(BackendUnavailableError, match="gone"):
            run(Closing(failed(BackendUnavailableError("gone"))))

    def test_a_closing_that_takes_too_long_is_an_error(self, run, monkeypatch):
        """A closing that does not end in time raises BackendTimeoutError, which names what becomes of the messages."""
        monkeypatch.setattr(lifecycle, "CLOSE_TIMEOUT_S", 0.01)
        monkeypatch.setattr(lifecycle, "CLOSE_SPARE_S", 0.01)
        never = Future()
        never.set_running_or_notify_cancel()
        with pytest.raises(BackendTimeoutError, match="a checker finishes the transactions"):
            run(Closing(never))

    def test_the_error_of_the_block_is_never_hidden(self, run):
        """The block's error is raised; that of closing is a note on it."""
        with pytest.raises(KeyError, match="the block's own") as caught:
            run(Closing(failed(BackendUnavailableError("gone"))), fail)
        assert ["closing failed, too: BackendUnavailableError('gone')"] == caught.value.__notes__

    def test_a_thread_runs_inside_the_block(self, run):
        """The object is started before the block and stopped after it, after an error, too."""
        running = Running()
        run(running, lambda: running.calls == ["start"] or fail())
        with pytest.raises(KeyError):
            run(running, fail)
        assert ["start", "stop"] * 2 == running.calls

    def test_a_thread_that_does_not_stop_is_an_error(self, run):
        """A thread that still runs after its timeout raises BackendTimeoutError, or is a note on the block's error."""
        with pytest.raises(BackendTimeoutError, match="the running has not stopped in time"):
            run(Running(has_ended=False))
        with pytest.raises(KeyError) as caught:
            run(Running(has_ended=False), fail)
        assert "has not stopped" in caught.value.__notes__[0]


def test_a_coroutine_blocks_its_event_loop_neither_at_the_start_nor_at_the_stop():
    """The event loop runs other tasks while the thread starts and while it stops."""

    async def main():
        running = Running()
        for run in (running.__aenter__, lambda: running.__aexit__(None, None, None)):
            running.may_go_on.clear()
            running.has_begun.clear()
            task = asyncio.ensure_future(run())
            assert await asyncio.to_thread(running.has_begun.wait, 30)
            assert not task.done()
            running.may_go_on.set()
            await task
        return running.calls

    assert ["start", "stop"] == asyncio.run(main())


def test_a_cancelled_start_is_undone():
    """A task that is cancelled while it starts the thread leaves no thread that runs."""

    async def main():
        running = Running()
        running.may_go_on.clear()
        task = asyncio.ensure_future(running.__aenter__())
        assert await asyncio.to_thread(running.has_begun.wait, 30)
        task.cancel()
        await asyncio.sleep(0.01)
        running.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return running.calls

    assert ["start", "stop"] == asyncio.run(main())


class Rollback(txcore.TransactionListener):
    """A listener that knows of no transaction."""

    def check_local_transaction(self, half):
        return txcore.LocalTransactionState.ROLLBACK


def test_a_checker_checks_inside_its_block():
    """The checker's thread runs inside the block, and its backend is open until the checker has left its group."""
    with txcore.connect("memory://") as backend, txcore.Checker(backend, "g", listener=Rollback()) as checker:
        assert checker.stats().is_running
        with pytest.raises(TransactionStateError, match="runs in a thread"):
            checker.run_once()
    assert not checker.stats().is_running
    with pytest.raises(ClosedError):
        backend.ensure_group("g")


def test_a_checker_asks_a_coroutine_until_its_block_ends():
    """The event loop answers an asynchronous listener while the block of its checker ends."""

    class Later(txcore.AsyncTransactionListener):
        async def check_local_transaction(self, half):
            await asyncio.sleep(0)
            return txcore.LocalTransactionState.ROLLBACK

    async def main():
        loop = asyncio.get_running_loop()
        async with (
            txcore.connect("memory://") as backend,
            txcore.Checker(backend, "g", listener=Later(), event_loop=loop) as checker,
        ):
            assert checker.stats().is_running
        return checker.stats().is_running

    assert not asyncio.run(main())


def test_an_operator_is_used_by_with_as_well():
    """The operator's block needs no closing, and returns the operator."""
    with txcore.connect("memory://") as backend:
        backend.ensure_group("g").result(10)
        with txcore.Operator(backend, "g", by="anna") as operator:
            assert [] == operator.pending()
