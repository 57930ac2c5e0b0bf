"""The loop of many flows: batches, timers, deadlines, spawns; one thread turns it."""

from __future__ import annotations

import itertools
import threading

import pytest

from txcore.errors import BackendTimeoutError, BackendUnavailableError
from txcore.port import failed, resolved
from txcore.records import DURABLE, HalfRecord, Outcome, Resolution, Status
from txcore.runtime.call_pool import CallPool
from txcore.runtime.commands import Call, Calls, Each, Spawn
from txcore.runtime.flow_loop import Loop


def half(number=0):
    """Return a half with its own id."""
    return HalfRecord("g", 0, number.to_bytes(16, "big"), 0, b"", ())


class Backend:
    """A backend that keeps its batches, which the test settles."""

    def __init__(self, capabilities, *, error=None):
        self.capabilities = capabilities
        self.batches = []
        self.claims = []
        self.polled_s = []
        self.error = error

    def append_halves(self, batch):
        if self.error:
            raise self.error
        self.batches.append(batch)

    def release(self, batch, claim):
        self.append_halves(batch)
        self.claims.append(claim)

    def poll(self, timeout_s, is_done=None, *, comes_again=False):
        self.polled_s.append(timeout_s)


@pytest.fixture
def backend(capabilities):
    """A backend whose batches the test settles."""
    return Backend(capabilities(batch_count_max=3))


@pytest.fixture
def loop(backend, clock):
    """A loop on a clock that the test moves."""
    return Loop(backend, clock, claim="claim")


def ending(command, results):
    """Return a flow that yields once and keeps the result."""
    try:
        results.append((yield command))
    except Exception as error:  # noqa: BLE001 - every error is a result here
        results.append(error)


def test_what_is_ready_together_leaves_as_one_batch(loop, backend):
    """Halves of many flows share a batch, up to the size that the backend accepts."""
    results = []
    for number in range(5):
        loop.spawn(ending(half(number), results))
    loop.turn()
    assert [3, 2] == [len(batch.items) for batch in backend.batches]
    for batch in backend.batches:
        for index in range(len(batch.items)):
            batch.settle(index, DURABLE)
    loop.turn()
    assert [DURABLE] * 5 == results
    assert 0 == loop.task_count


def test_releases_carry_the_claim(loop, backend):
    """A release of a checker carries its claim."""
    loop.spawn(ending(Resolution(half(), None), []))
    loop.turn()
    assert ["claim"] == backend.claims


def collecting(answers):
    """Return a function that keeps the answers of an `Each`, grouped as they arrived."""
    return lambda answered: answers.append(
        [(index, outcome.status) for indices, outcome in answered for index in indices]
    )


class TestEach:
    def test_flows_answered_together_continue_together(self, loop, backend):
        """One batch is handed over at once; its flow continues when all items have outcomes."""
        portions, ends = [], []
        loop.spawn(ending(Each([half(0), half(1), half(2)], collecting(portions)), ends))
        loop.step(*loop._ready.popleft())
        (batch,) = backend.batches
        assert [half(0), half(1), half(2)] == list(batch.items)
        batch.settle(2, DURABLE)
        batch.settle(0, DURABLE)
        loop.turn()
        assert [[(2, Status.DURABLE), (0, Status.DURABLE)]] == portions
        assert [] == ends
        batch.settle(1, DURABLE)
        loop.run_all()
        assert [(1, Status.DURABLE)] == portions[1]
        assert [None] == ends

    def test_it_waits_for_the_flows_of_all_portions(self, loop, backend, clock):
        """An `Each` ends after the flows of all portions, which run beside each other."""
        ends, beside = [], []

        def waiting(answered):
            ((index,), _) = answered[0]
            yield 1.0 + index
            beside.append(index)

        loop.spawn(ending(Each([half(0), half(1)], waiting), ends))
        loop.turn()
        for index in (1, 0):
            backend.batches[0].settle(index, DURABLE)
            loop.turn()
            loop.turn()
        clock.advance(1.0)
        loop.turn()
        assert ([0], []) == (beside, ends)
        clock.advance(1.0)
        loop.turn()
        loop.turn()
        assert ([0, 1], [None]) == (beside, ends)
        assert 0 == loop.task_count

    def test_a_wake_up_that_finds_nothing_does_nothing(self, loop, backend):
        """A wake-up does nothing if the loop has found its answer before."""
        ends = []
        loop.spawn(ending(Each([half(0)], collecting([])), ends))
        loop.turn()
        (batch,) = backend.batches
        batch.settle(0, DURABLE)
        loop.turn()
        assert batch.send(None) is not None
        loop.run_all()
        assert [None] == ends

    def test_items_that_end_alike_continue_together(self, loop, backend):
        """Items that the backend settles with one call, and others settled before the next turn, share a portion."""
        portions = []
        loop.spawn(ending(Each([half(0), half(1), half(2)], collecting(portions)), []))
        loop.turn()
        (batch,) = backend.batches
        batch.settle_all([2, 1], DURABLE)
        batch.settle(0, Outcome(Status.UNKNOWN))
        loop.run_all()
        assert [[(2, Status.DURABLE), (1, Status.DURABLE), (0, Status.UNKNOWN)]] == portions

    def test_releases_carry_the_claim(self, loop, backend):
        """The releases of an `Each` carry the claim, like the release of a single flow."""
        loop.spawn(ending(Each([Resolution(half(), None)], collecting([])), []))
        loop.turn()
        assert ["claim"] == backend.claims

    def test_a_backend_that_takes_nothing_refuses_each_item(self, capabilities, clock):
        """If the backend raises, each item of an `Each` is refused."""
        error = BackendUnavailableError("down")
        loop, portions, ends = Loop(Backend(capabilities(), error=error), clock), [], []
        loop.spawn(ending(Each([half(0), half(1)], collecting(portions)), ends))
        loop.run_all()
        assert [[(0, Status.REFUSED), (1, Status.REFUSED)]] == portions
        assert [None] == ends


def test_a_backend_that_takes_nothing_refuses_each_item(capabilities, clock):
    """If the backend raises, the flows continue with REFUSED and the error."""
    error = BackendUnavailableError("down")
    loop, results = Loop(Backend(capabilities(), error=error), clock), []
    loop.spawn(ending(half(), results))
    loop.spawn(ending(Resolution(half(), None), results))
    loop.turn()
    loop.turn()
    assert [(Status.REFUSED, error)] * 2 == [(each.status, each.error) for each in results]


def test_a_delay_ends_when_the_clock_says_so(loop, clock):
    """A delay ends no turn before its time, and timers fire in the order of their times."""
    results = []
    for delay_s in (3.0, 1.0):
        loop.spawn(ending(delay_s, results), lambda task, delay_s=delay_s: results.append(delay_s))
    loop.turn()
    clock.advance(0.999)
    loop.turn()
    assert [] == results
    clock.advance(0.001)
    loop.turn()
    assert [None, 1.0] == results
    clock.advance(2)
    loop.turn()
    assert [None, 1.0, None, 3.0] == results


def test_futures_and_calls_give_values_or_raise(loop):
    """A Future or a call gives its value or raises; without a pool, calls run in the loop's own thread."""
    results = []
    error = OSError("x")
    for command in (resolved(1), failed(error), Call(len, ("ab",)), Call(int, ("x",))):
        loop.spawn(ending(command, results))
    loop.run_all()
    assert [1, 2] == sorted(each for each in results if isinstance(each, int))
    assert {OSError, ValueError} == {type(each) for each in results if isinstance(each, Exception)}


def test_calls_are_made_in_turn_until_they_are_over(loop, clock):
    """Each item gets the function's value or its error, and no item after the one at which the turn is over."""
    results, reached = [], []
    began_s = clock.elapsed_s()

    def call(item):
        reached.append(item)
        clock.advance(1.0)
        return 6 // item

    loop.spawn(ending(Calls(call, [(3,), (0,), (2,), (1,)], 3.0), results))
    loop.run_all()
    (called,) = results
    assert ([3, 0, 2], [2, None, 3]) == (reached, called.values)
    assert [began_s + 1.0, began_s + 2.0, began_s + 3.0] == called.ended_s
    assert {1: ZeroDivisionError} == {place: type(error) for place, error in called.errors.items()}


def test_an_asynchronous_call_is_refused(loop):
    """An asynchronous call is refused, and its coroutine is closed, so that no warning follows."""

    async def answer():
        raise AssertionError("never runs")

    results = []
    loop.spawn(ending(Call(answer), results))
    loop.run_all()
    assert isinstance(results[0], TypeError)


def test_a_spawned_flow_runs_beside_its_parent(loop):
    """A flow does not wait for a flow that it spawned."""
    order = []

    def child():
        order.append("child")
        yield 0.0

    def parent():
        yield Spawn(child())
        order.append("parent")

    loop.spawn(parent())
    loop.run_all()
    assert {"child", "parent"} == set(order)


def test_what_spawned_flows_hand_over_leaves_as_one_batch(loop, backend):
    """The items of one flow's children leave as one batch, like those of flows without a parent."""

    def parent():
        for number in range(3):
            yield Spawn(ending(half(number), []))

    loop.spawn(parent())
    loop.turn()
    loop.turn()
    assert [3] == [len(batch.items) for batch in backend.batches]


def test_error_reaches_the_spawner_of_the_flow(loop):
    """The spawner of a flow gets its error through the task, and the loop serves the other flows."""
    ended, results = [], []

    def bad():
        yield 0.0
        raise KeyError("x")

    loop.spawn(bad(), ended.append)
    loop.spawn(ending(resolved(1), results))
    loop.run_all()
    assert [KeyError] == [type(task.error) for task in ended]
    assert [1] == results


def test_error_of_an_unwatched_flow_is_raised(loop):
    """The loop raises the error of a flow that has no watcher."""

    def bad():
        yield resolved(None)
        raise KeyError("x")

    loop.spawn(bad())
    with pytest.raises(KeyError):
        loop.run_all()


def test_a_call_past_its_deadline_is_given_up(backend, clock):
    """A call past its deadline is given up, its late answer is dropped, and the next call has a thread."""
    pool = CallPool(threads_max=1)
    loop, results, go_on, started = Loop(backend, clock, pool=pool), [], threading.Event(), threading.Event()

    def hang():
        started.set()
        go_on.wait()
        return "late"

    def flow():
        yield from ending(Call(hang, (), 5.0), results)
        yield from ending(Call(str, ("next",), 5.0), results)

    loop.spawn(flow())
    loop.turn()
    assert started.wait(10)
    clock.advance(5)
    try:
        loop.run_all()
        assert isinstance(results[0], BackendTimeoutError)
        assert "next" == results[1]
        assert 1 == pool.abandoned_count
    finally:
        go_on.set()
        pool.close()


def test_waiting_for_a_thread_uses_up_no_deadline(backend, clock):
    """A call's deadline does not count while it waits for a thread, so a queue of slow calls is worked off."""
    pool = CallPool(threads_max=1)
    loop, results, turns = Loop(backend, clock, pool=pool), [], [threading.Event() for _ in range(4)]
    started = [threading.Event() for _ in turns]

    def slow(number):
        started[number].set()
        turns[number].wait(10)
        return number

    for number in range(4):
        loop.spawn(ending(Call(slow, (number,), 5.0), results))
    loop.turn()
    for number, event in enumerate(turns):
        assert started[number].wait(10)
        clock.advance(4)
        loop.turn()
        event.set()
    loop.run_all()
    assert ([0, 1, 2, 3], 0) == (results, pool.abandoned_count)
    pool.close()


def test_a_call_that_had_to_wait_has_its_whole_deadline_from_its_start_on(backend, clock):
    """The wait for a thread neither shortens nor extends the deadline of a call."""
    pool = CallPool(threads_max=1)
    loop, results, go_on = Loop(backend, clock, pool=pool), [], threading.Event()
    first, started = threading.Event(), threading.Event()

    def hang():
        started.set()
        go_on.wait(10)

    loop.spawn(ending(Call(first.wait, (10,), 5.0), results))
    loop.spawn(ending(Call(hang, (), 5.0), results))
    loop.turn()
    clock.advance(4)
    first.set()
    assert started.wait(10)
    clock.advance(4)
    try:
        while not results:
            loop.turn()
        loop.turn()
        assert [True] == results
        clock.advance(1)
        loop.run_all()
        assert isinstance(results[1], BackendTimeoutError)
    finally:
        go_on.set()
        pool.close()


def test_call_queued_after_a_stuck_one_is_given_up_too(backend, clock):
    """A call in the queue after a stuck call is given up without a run, so that it takes no other thread."""
    pool = CallPool(threads_max=1)
    loop, results, go_on, started = Loop(backend, clock, pool=pool), [], threading.Event(), []

    def hang():
        started.append(1)
        go_on.wait(10)

    for _ in range(20):
        loop.spawn(ending(Call(hang, (), 5.0), results))
    loop.turn()
    while not started:
        loop.turn()
    clock.advance(5)
    try:
        loop.run_all()
        assert [BackendTimeoutError] * 20 == [type(each) for each in results]
        assert 1 == len(started)
    finally:
        go_on.set()
        pool.close()


def test_a_call_in_time_is_not_disturbed_by_its_deadline(backend, clock):
    """The timer of a deadline does nothing after its call has ended."""
    pool = CallPool()
    loop, results = Loop(backend, clock, pool=pool), []
    loop.spawn(ending(Call(str, (1,), 5.0), results))
    loop.run_all()
    clock.advance(10)
    loop.turn()
    assert ["1"] == results
    assert 0 == pool.abandoned_count
    pool.close()


def test_waiting_polls_a_backend_that_makes_progress_only_then(capabilities, clock):
    """The loop polls its backend for no longer than until the next timer."""
    backend = Backend(capabilities(polled=True))
    loop = Loop(backend, clock)
    loop.later(0.25, lambda: None)
    loop.wait()
    loop.later(0.125, lambda: None)
    loop.wait()
    assert [0.25, 0.125] == backend.polled_s


def test_an_outcome_from_another_thread_ends_the_wait(loop, backend):
    """An outcome from another thread ends the loop's wait, and the flow continues."""
    results = []
    loop.spawn(ending(half(), results))
    loop.turn()
    threading.Thread(target=backend.batches[0].settle, args=(0, DURABLE)).start()
    for _ in itertools.count():
        loop.turn()
        if results:
            break
        loop.wait()
    assert [DURABLE] == results
