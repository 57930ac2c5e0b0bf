"""The drivers carry out the commands of a flow, in threads and in asyncio, and hold no protocol."""

from __future__ import annotations

import asyncio
import queue
import threading
import types
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from txcore.errors import BackendTimeoutError
from txcore.port import failed, resolved
from txcore.records import DURABLE, HalfRecord, Outcome, Resolution, Status
from txcore.runtime import drivers
from txcore.runtime.commands import Call, Spawn, Timed
from txcore.runtime.drivers import COLLECTING_S, AsyncBridge, BlockingBridge, run_async, run_blocking
from txcore.runtime.wakeup import PASSING_MAX

HALF = HalfRecord("g", 0, bytes(16), 0, b"", ())
RELEASE = Resolution(HALF, None)


class Backend:
    """A backend that settles each item with the test's function."""

    def __init__(self, capabilities, settle):
        self.capabilities = capabilities
        self._settle = settle

    def append_halves(self, batch):
        for index, item in enumerate(batch.items):
            self._settle(batch, index, item)

    def release(self, batch, claim=None):
        self.append_halves(batch)

    def poll(self, timeout_s, is_done=None):
        return False


@pytest.fixture
def bridge(capabilities):
    """A bridge on a backend that settles at once."""
    return BlockingBridge(Backend(capabilities(), lambda batch, index, item: batch.settle(index, DURABLE)))


def flow_of(*commands):
    """Return a flow that yields *commands* and returns their results, errors included."""
    results = []
    for command in commands:
        try:
            results.append((yield command))
        except Exception as error:  # noqa: BLE001 - every error is a result here
            results.append(error)
    return results


def raising():
    raise ValueError("user code")


async def answering():
    return "awaited"


class TestBlocking:
    def test_everything_a_flow_may_yield(self, bridge):
        """A flow may yield halves, releases, calls, Futures, delays, and flows that run beside it."""
        beside = []

        def spawned():
            beside.append((yield Call(str, (7,))))

        got = run_blocking(flow_of(HALF, RELEASE, Call(max, (1, 2)), resolved("f"), 0.0, Spawn(spawned())), bridge)
        assert [DURABLE, DURABLE, 2, "f", None, None] == got
        assert ["7"] == beside

    def test_errors_are_raised_inside_the_flow(self, bridge):
        """The flow gets errors of user code and of Futures."""
        error = OSError("control call")
        got = run_blocking(flow_of(Call(raising), failed(error)), bridge)
        assert isinstance(got[0], ValueError)
        assert error is got[1]

    def test_what_the_flow_raises_reaches_the_caller(self, bridge):
        """The caller gets an error of the flow unchanged."""

        def flow():
            yield HALF
            raise KeyError("x")

        with pytest.raises(KeyError):
            run_blocking(flow(), bridge)

    def test_an_outcome_that_never_comes_is_unknown(self, capabilities, monkeypatch):
        """A caller does not wait for ever for an outcome that was lost, such as with an interrupted delivery report."""
        monkeypatch.setattr(drivers, "LOST_S", -capabilities().release_time_max_s)
        (outcome,) = run_blocking(flow_of(HALF), BlockingBridge(Backend(capabilities(), lambda *_: None)))
        assert Status.UNKNOWN is outcome.status
        assert isinstance(outcome.error, BackendTimeoutError)

    def test_a_forgotten_turn_delays_its_caller_and_no_later_one(self, bridge):
        """Interrupted callers have kept all places; the flow ends, and the next one finds places again."""
        for _ in range(PASSING_MAX):
            bridge.turnstile.sit().settle(0, DURABLE)
        assert [DURABLE] == run_blocking(flow_of(HALF), bridge)
        assert bridge.turnstile.passing_count < PASSING_MAX

    def test_asynchronous_user_code_is_refused_with_the_name_of_the_right_producer(self, bridge):
        """Asynchronous user code is refused, and its coroutine is closed, so that no warning follows."""
        (error,) = run_blocking(flow_of(Call(answering)), bridge)
        assert isinstance(error, TypeError)
        assert "AsyncTransactionProducer" in str(error)

    def test_asynchronous_call_is_recognized_by_its_type(self, bridge):
        """A generator of `types.coroutine` is asynchronous; a proxy with every attribute, like a connection, is not."""

        class Proxy:
            def __getattr__(self, name):
                return name

        @types.coroutine
        def old_style():
            yield

        proxy = Proxy()
        got = run_blocking(flow_of(Call(lambda: proxy), Call(old_style)), bridge)
        assert proxy is got[0]
        assert isinstance(got[1], TypeError)

    def test_an_outcome_from_another_thread_wakes_the_caller(self, capabilities):
        """A broker's own thread wakes the caller when it settles an outcome."""

        def settle(batch, index, item):
            threading.Thread(target=batch.settle, args=(index, DURABLE)).start()

        assert [DURABLE] == run_blocking(flow_of(HALF), BlockingBridge(Backend(capabilities(), settle)))

    def test_caller_whose_turn_was_forgotten_continues(self, bridge):
        """A caller continues even if woken callers never left the turnstile, for example because of an exception."""
        for _ in range(PASSING_MAX):
            bridge.turnstile.sit().settle(0, DURABLE)
        assert [DURABLE, DURABLE] == run_blocking(flow_of(HALF, RELEASE), bridge)

    def test_callers_without_number_all_get_their_outcomes(self, capabilities):
        """All of 2,000 callers get their outcomes, which come in bursts from another thread."""
        held, stop = queue.SimpleQueue(), object()
        backend = Backend(capabilities(), lambda batch, index, item: held.put((batch, index)))

        def settle():
            while (each := held.get()) is not stop:
                each[0].settle(each[1], DURABLE)

        bridge, settler = BlockingBridge(backend), threading.Thread(target=settle)
        settler.start()
        with ThreadPoolExecutor(40) as pool:
            got = list(pool.map(lambda n: run_blocking(flow_of(HALF, Call(abs, (-n,)), RELEASE), bridge), range(2_000)))
        held.put(stop)
        settler.join()
        assert [[DURABLE, number, DURABLE] for number in range(2_000)] == got

    def test_caller_with_a_time_limit_gives_up_when_it_is_over(self, capabilities):
        """A caller with a time limit gets UNKNOWN at its end, and the later outcome is ignored."""
        held = []
        bridge = BlockingBridge(Backend(capabilities(), lambda batch, index, item: held.append((batch, index))))
        (outcome,) = run_blocking(flow_of(Timed(HALF, 0.01)), bridge)
        assert Status.UNKNOWN is outcome.status
        batch, index = held.pop()
        batch.settle(index, DURABLE)
        assert bridge.turnstile.is_alone()


class TestAsync:
    def run(self, flow, bridge):
        """Run a flow in a new event loop."""

        async def main():
            return await run_async(flow, AsyncBridge(asyncio.get_running_loop(), bridge.backend))

        return asyncio.run(main())

    def test_everything_a_flow_may_yield(self, bridge):
        """The asynchronous driver does the same as the blocking one, and its calls may be asynchronous."""
        beside = []

        def spawned():
            beside.append((yield Call(answering)))

        got = self.run(
            flow_of(HALF, RELEASE, Call(max, (1, 2)), Call(answering), resolved("f"), 0.0, Spawn(spawned())), bridge
        )
        assert [DURABLE, DURABLE, 2, "awaited", "f", None, None] == got
        assert ["awaited"] == beside

    def test_errors_are_raised_inside_the_flow(self, bridge):
        """The flow gets errors of user code and of Futures."""
        error = OSError("control call")
        got = self.run(flow_of(Call(raising), failed(error)), bridge)
        assert isinstance(got[0], ValueError)
        assert error is got[1]

    def test_what_tasks_hand_over_in_one_go_of_the_loop_is_one_batch(self, capabilities):
        """All tasks of one turn of the loop share a call of the backend, halves and releases apart."""
        batches = []

        def settle(batch, index, item):
            batches.append((batch, type(item)))
            batch.settle(index, DURABLE)

        async def main():
            bridge = AsyncBridge(asyncio.get_running_loop(), Backend(capabilities(batch_count_max=20), settle))
            return await asyncio.gather(*(run_async(flow_of(HALF, RELEASE), bridge) for _ in range(50)))

        assert [[DURABLE, DURABLE]] * 50 == asyncio.run(main())
        sizes = list(Counter((id(batch), kind) for batch, kind in batches).values())
        assert [20, 20, 10, 20, 20, 10] == sizes

    def test_what_tasks_that_take_long_hand_over_does_not_wait_for_them_all(self, capabilities, monkeypatch):
        """A release does not wait for all tasks of a turn when each of them blocks the loop for long."""
        events = []
        backend = Backend(capabilities(), lambda batch, index, item: events.append(type(item)))

        async def main():
            loop = asyncio.get_running_loop()
            bridge, now_s = AsyncBridge(loop, backend), loop.time
            late_s = 0.0

            def block():
                nonlocal late_s
                late_s += 1.0
                events.append("blocked")

            monkeypatch.setattr(loop, "time", lambda: now_s() + late_s)
            tasks = [asyncio.create_task(run_async(flow_of(Call(block), RELEASE), bridge)) for _ in range(3)]
            while events.count(Resolution) < 3:  # noqa: ASYNC110 - the backend is no coroutine
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()

        asyncio.run(main())
        assert ["blocked", "blocked", Resolution, Resolution, "blocked", Resolution] == events

    def test_releases_of_a_long_turn_leave_in_groups(self, capabilities, monkeypatch):
        """The releases of many tasks that keep the loop busy together share calls of the backend all the same."""
        sizes = []

        def settle(batch, index, item):
            if index == 0:
                sizes.append(len(batch.items))
            batch.settle(index, DURABLE)

        async def main():
            loop = asyncio.get_running_loop()
            bridge, now_s = AsyncBridge(loop, Backend(capabilities(), settle)), 0.0

            def work():
                nonlocal now_s
                now_s += COLLECTING_S / 10

            monkeypatch.setattr(loop, "time", lambda: now_s)
            await asyncio.gather(*(run_async(flow_of(Call(work), RELEASE), bridge) for _ in range(60)))

        asyncio.run(main())
        assert 60 == sum(sizes)
        assert max(sizes) <= 12
        assert len(sizes) <= 7

    def test_a_burst_of_outcomes_wakes_the_loop_once(self, capabilities):
        """A burst of outcomes wakes the loop once, however many items it has."""
        held = []
        backend = Backend(capabilities(), lambda batch, index, item: held.append((batch, index)))
        wakes = 0

        async def main():
            nonlocal wakes
            loop = asyncio.get_running_loop()
            bridge = AsyncBridge(loop, backend)
            tasks = [asyncio.create_task(run_async(flow_of(HALF), bridge)) for _ in range(50)]
            while len(held) < 50:  # noqa: ASYNC110 - the backend is no coroutine
                await asyncio.sleep(0)
            plain = loop.call_soon_threadsafe

            def counting(*args):
                nonlocal wakes
                wakes += 1
                return plain(*args)

            loop.call_soon_threadsafe = counting
            burst = threading.Thread(target=lambda: [batch.settle(index, DURABLE) for batch, index in held])
            burst.start()
            burst.join()  # the loop is blocked meanwhile
            return await asyncio.gather(*tasks)

        assert [[DURABLE]] * 50 == asyncio.run(main())
        assert 1 == wakes

    def test_flow_is_notified_of_a_cancelled_caller(self, capabilities):
        """A flow may undo its work after its caller was cancelled, and the late outcome is ignored."""
        held, undone = [], []
        backend = Backend(capabilities(), lambda batch, index, item: held.append((batch, index)))

        def flow():
            try:
                yield HALF
            except BaseException:
                undone.append((yield Call(answering)))
                raise

        async def main():
            bridge = AsyncBridge(asyncio.get_running_loop(), backend)
            task = asyncio.create_task(run_async(flow(), bridge))
            while not held:  # noqa: ASYNC110 - the backend is no coroutine
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            batch, index = held[0]
            batch.settle(index, DURABLE)
            await asyncio.sleep(0)

        asyncio.run(main())
        assert ["awaited"] == undone

    def test_outcome_after_the_loop_has_closed_is_ignored(self, capabilities):
        """An outcome that a broker's thread settles after the loop has closed is ignored."""
        held = []
        backend = Backend(capabilities(), lambda batch, index, item: held.append((batch, index)))

        async def main():
            bridge = AsyncBridge(asyncio.get_running_loop(), backend)
            task = asyncio.create_task(run_async(flow_of(HALF), bridge))
            while not held:  # noqa: ASYNC110 - the backend is no coroutine
                await asyncio.sleep(0)
            task.cancel()

        asyncio.run(main())
        batch, index = held[0]
        batch.settle(index, Outcome(Status.UNKNOWN))

    def test_a_cancelled_wait_leaves_the_future_alone(self, bridge):
        """A control call's Future is marked running: cancelling the waiter does not cancel it."""
        future: Future[str] = Future()
        future.set_running_or_notify_cancel()

        async def main():
            asynchronous = AsyncBridge(asyncio.get_running_loop(), bridge.backend)

            def waiting():
                return (yield future)

            task = asyncio.create_task(run_async(waiting(), asynchronous))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        future.set_result("late")
        assert "late" == future.result()
