"""The drivers carry out what a flow yields, in threads and in asyncio, and hold no protocol."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from txcore.commands import Call, Spawn
from txcore.drivers import AsyncBridge, run_async, run_blocking
from txcore.gather import Gatherer
from txcore.port import failed, resolved
from txcore.records import DURABLE, HalfRecord, Outcome, Resolution, Status

HALF = HalfRecord("g", 0, bytes(16), 0, b"", ())
RELEASE = Resolution(HALF, None)


class Backend:
    """Settles each item by calling what the test gave it."""

    def __init__(self, capabilities, settle):
        self.capabilities = capabilities
        self._settle = settle

    def append_halves(self, batch):
        for index, item in enumerate(batch.items):
            self._settle(batch, index, item)

    def release(self, batch, claim):
        self.append_halves(batch)

    def poll(self, timeout_s, is_done):
        return False


@pytest.fixture
def gatherer(capabilities):
    """A gatherer on a backend that settles at once."""
    return Gatherer(Backend(capabilities(), lambda batch, index, item: batch.settle(index, DURABLE)))


def flow_of(*commands):
    """Return a flow that yields *commands* and returns what came back, errors included."""
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
    def test_everything_a_flow_may_yield(self, gatherer):
        """Halves, releases, calls, futures, delays and flows beside this one."""
        beside = []

        def spawned():
            beside.append((yield Call(str, (7,))))

        got = run_blocking(flow_of(HALF, RELEASE, Call(max, (1, 2)), resolved("f"), 0.0, Spawn(spawned())), gatherer)
        assert [DURABLE, DURABLE, 2, "f", None, None] == got
        assert ["7"] == beside

    def test_errors_are_raised_inside_the_flow(self, gatherer):
        """Of user code and of Futures."""
        error = OSError("control call")
        got = run_blocking(flow_of(Call(raising), failed(error)), gatherer)
        assert isinstance(got[0], ValueError)
        assert error is got[1]

    def test_what_the_flow_raises_reaches_the_caller(self, gatherer):
        """Unchanged."""

        def flow():
            yield HALF
            raise KeyError("x")

        with pytest.raises(KeyError):
            run_blocking(flow(), gatherer)

    def test_asynchronous_user_code_is_refused_with_the_name_of_the_right_producer(self, gatherer):
        """Its coroutine is closed, so that no warning follows."""
        (error,) = run_blocking(flow_of(Call(answering)), gatherer)
        assert isinstance(error, TypeError)
        assert "AsyncTransactionProducer" in str(error)

    def test_an_outcome_from_another_thread_wakes_the_caller(self, capabilities):
        """As brokers settle."""

        def settle(batch, index, item):
            threading.Thread(target=batch.settle, args=(index, DURABLE)).start()

        assert [DURABLE] == run_blocking(flow_of(HALF), Gatherer(Backend(capabilities(), settle)))


class TestAsync:
    def run(self, flow, gatherer):
        """Run a flow in a new event loop."""

        async def main():
            return await run_async(flow, AsyncBridge(asyncio.get_running_loop(), gatherer))

        return asyncio.run(main())

    def test_everything_a_flow_may_yield(self, gatherer):
        """As the blocking driver, and what it calls may be asynchronous."""
        beside = []

        def spawned():
            beside.append((yield Call(answering)))

        got = self.run(
            flow_of(HALF, RELEASE, Call(max, (1, 2)), Call(answering), resolved("f"), 0.0, Spawn(spawned())), gatherer
        )
        assert [DURABLE, DURABLE, 2, "awaited", "f", None, None] == got
        assert ["awaited"] == beside

    def test_errors_are_raised_inside_the_flow(self, gatherer):
        """Of user code and of Futures."""
        error = OSError("control call")
        got = self.run(flow_of(Call(raising), failed(error)), gatherer)
        assert isinstance(got[0], ValueError)
        assert error is got[1]

    def test_a_burst_of_outcomes_wakes_the_loop_once(self, capabilities):
        """However many items a batch holds (one wake-up per batch)."""
        held = []
        backend = Backend(capabilities(), lambda batch, index, item: held.append((batch, index)))
        wakes = 0

        async def main():
            nonlocal wakes
            loop = asyncio.get_running_loop()
            bridge = AsyncBridge(loop, Gatherer(backend))
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
            burst.join()  # the loop stands still meanwhile
            return await asyncio.gather(*tasks)

        assert [[DURABLE]] * 50 == asyncio.run(main())
        assert 1 == wakes

    def test_a_cancelled_caller_is_told_to_the_flow(self, capabilities):
        """The flow may still call what undoes its work; the late outcome hurts nobody."""
        held, undone = [], []
        backend = Backend(capabilities(), lambda batch, index, item: held.append((batch, index)))

        def flow():
            try:
                yield HALF
            except BaseException:
                undone.append((yield Call(answering)))
                raise

        async def main():
            bridge = AsyncBridge(asyncio.get_running_loop(), Gatherer(backend))
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

    def test_an_outcome_after_the_loop_has_closed_hurts_nobody(self, capabilities):
        """A broker thread may settle at any time."""
        held = []
        backend = Backend(capabilities(), lambda batch, index, item: held.append((batch, index)))

        async def main():
            bridge = AsyncBridge(asyncio.get_running_loop(), Gatherer(backend))
            task = asyncio.create_task(run_async(flow_of(HALF), bridge))
            while not held:  # noqa: ASYNC110 - the backend is no coroutine
                await asyncio.sleep(0)
            task.cancel()

        asyncio.run(main())
        batch, index = held[0]
        batch.settle(index, Outcome(Status.UNKNOWN))

    def test_a_cancelled_wait_leaves_the_future_alone(self, gatherer):
        """A control call's Future is marked running: cancelling the waiter does not cancel it."""
        future: Future[str] = Future()
        future.set_running_or_notify_cancel()

        async def main():
            bridge = AsyncBridge(asyncio.get_running_loop(), gatherer)

            def waiting():
                return (yield future)

            task = asyncio.create_task(run_async(waiting(), bridge))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        future.set_result("late")
        assert "late" == future.result()
