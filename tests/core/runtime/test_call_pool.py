"""User code that never returns: its call is abandoned, its thread replaced, and their number is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from txcore.errors import BusyError
from txcore.runtime.call_pool import CallPool
from txcore.runtime.commands import Call

WAIT_S = 10.0


@pytest.fixture
def release():
    """An event on which stuck calls wait; set at the end, so that no thread is left over."""
    event = threading.Event()
    yield event
    event.set()


def stuck_in(pool, release):
    """Return a job that has started and does not return."""
    started = threading.Event()

    def hang():
        started.set()
        release.wait()

    job = pool.submit(Call(hang))
    assert started.wait(WAIT_S)
    return job


@pytest.fixture
def event_loop():
    """An event loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Later:
    """An awaitable that is no coroutine, as compiled code and some libraries return."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return self.value


@pytest.mark.parametrize("make", [lambda: asyncio.sleep(0, 3), lambda: Later(3)])
def test_any_awaitable_is_awaited_on_the_event_loop(event_loop, make):
    """A listener may return an awaitable of any kind; without an event loop each kind is refused."""
    assert 3 == CallPool(event_loop=event_loop).submit(Call(make)).future.result(WAIT_S)
    error = CallPool().submit(Call(make)).future.exception(WAIT_S)
    assert isinstance(error, TypeError)
    assert "event_loop" in str(error)


def test_a_call_gives_its_value_or_its_error():
    """Any error of user code is returned, BaseException included."""
    pool = CallPool()
    assert 3 == pool.submit(Call(len, ("abc",))).future.result(WAIT_S)

    def leave():
        raise SystemExit(3)

    assert isinstance(pool.submit(Call(leave)).future.exception(WAIT_S), SystemExit)
    assert "still works" == pool.submit(Call(str, ("still works",))).future.result(WAIT_S)
    pool.close()


def test_a_coroutine_is_refused():
    """A coroutine is closed and refused, because a checker's listener is not asynchronous."""

    async def answer():
        raise AssertionError("never runs")

    pool = CallPool()
    assert isinstance(pool.submit(Call(answer)).future.exception(WAIT_S), TypeError)
    pool.close()


def test_a_stuck_call_is_replaced(release):
    """With one thread and one stuck call, the next call still runs."""
    pool = CallPool(threads_max=1)
    job = stuck_in(pool, release)
    waiting = pool.submit(Call(str, (1,)))
    pool.abandon(job)
    assert "1" == waiting.future.result(WAIT_S)
    assert 1 == pool.abandoned_count
    pool.abandon(job)
    assert 1 == pool.abandoned_count
    release.set()
    job.future.result(WAIT_S)
    assert 0 == pool.abandoned_count
    pool.close()


def test_stuck_calls_are_bounded(release):
    """Beyond the bound no more calls are made; after one returns, calls are made again."""
    pool = CallPool(threads_max=1, abandoned_max=2)
    jobs = [stuck_in(pool, release)]
    pool.abandon(jobs[0])
    jobs.append(stuck_in(pool, release))
    pool.abandon(jobs[1])
    refused = pool.submit(Call(str, (1,)))
    assert isinstance(refused.future.exception(WAIT_S), BusyError)
    release.set()
    for job in jobs:
        job.future.result(WAIT_S)
    assert "1" == pool.submit(Call(str, (1,))).future.result(WAIT_S)
    pool.close()


def test_a_call_abandoned_before_it_began_never_runs(release):
    """A call that was abandoned while it waited for a stuck call never runs."""
    pool = CallPool(threads_max=1)
    job = stuck_in(pool, release)
    ran = []
    waiting = pool.submit(Call(ran.append, (1,)))
    last = pool.submit(Call(str, (2,)))
    pool.abandon(waiting)
    release.set()
    job.future.result(WAIT_S)
    assert "2" == last.future.result(WAIT_S)
    assert [] == ran
    assert 0 == pool.abandoned_count
    pool.close()


def test_threads_are_bounded_and_reused():
    """A pool never runs more than `threads_max` threads at a time, and uses them again."""
    pool = CallPool(threads_max=3)
    barrier = threading.Barrier(3)
    names = []

    def meet():
        barrier.wait(WAIT_S)
        names.append(threading.current_thread().name)

    for job in [pool.submit(Call(meet)) for _ in range(9)]:
        job.future.result(WAIT_S)
    assert 3 == len(set(names))
    pool.close()


def test_a_closed_pool_refuses():
    """A closed pool returns a Future that holds the error; `submit` raises none."""
    pool = CallPool()
    pool.close()
    assert isinstance(pool.submit(Call(str)).future.exception(WAIT_S), BusyError)
