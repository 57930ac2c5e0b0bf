"""Drivers of flows for callers: blocking threads and asyncio tasks. `loop` has the third one, for many flows.

A driver knows no protocol: it carries out what a flow yields and sends the result back in.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from txcore.commands import Call, Flow, Spawn, Timed
from txcore.gather import GATHER_S, Gatherer, Lane
from txcore.records import HalfRecord, Outcome, Resolution

POLL_S: Final = 0.02
"""So long a lone caller works for the backend before it waits as others do."""
POLLING_COUNT: Final = 64
POLLING_COUNT_MIN: Final = 16
"""Tasks that wait at once from which on the event loop's thread polls the backend, and until which it goes on."""
POLLING_PAUSE_S: Final = 0.001
R = TypeVar("R")


class _Slot:
    """Where one blocked caller waits; a bare lock wakes faster than an Event."""

    __slots__ = ("_lock", "outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._lock.release()

    def is_settled(self) -> bool:
        return not self._lock.locked()

    def wait(self, gatherer: Gatherer, lane: Lane[Any], timed: Timed | None = None) -> Outcome:
        if timed is None and gatherer.is_alone():
            # Nobody else is held up, so this caller fetches its own outcome: no thread is woken, and none wakes it.
            gatherer.backend.poll(POLL_S, self.is_settled)
        if not self._lock.acquire(timeout=GATHER_S):
            lane.flush(force=True)
            if timed is None:
                self._lock.acquire()
            elif not self._lock.acquire(timeout=timed.deadline_s):
                return timed.expired()
        lane.flush()
        return self.outcome


def run_blocking(flow: Flow[R], gatherer: Gatherer) -> R:
    """Run *flow* in the calling thread until it returns or raises."""
    send, value, error = flow.send, None, None
    while True:
        try:
            command = send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            result: R = stop.value
            return result
        value = error = None
        try:
            value = _carry_out(command, gatherer)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what an error means
            error = raised


def _carry_out(command: Any, gatherer: Gatherer) -> Any:
    if isinstance(command, HalfRecord):
        slot = _Slot()
        gatherer.halves.put(command, slot)
        return slot.wait(gatherer, gatherer.halves)
    if isinstance(command, Timed):
        slot = _Slot()
        gatherer.halves.put(command.half, slot)
        return slot.wait(gatherer, gatherer.halves, command)
    if isinstance(command, Resolution):
        slot = _Slot()
        gatherer.releases.put(command, slot)
        return slot.wait(gatherer, gatherer.releases)
    if isinstance(command, Call):
        value = command.function(*command.args)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"{command.function!r} is asynchronous; use AsyncTransactionProducer")
        return value
    if isinstance(command, Future):
        return command.result()
    if isinstance(command, Spawn):
        return run_blocking(command.flow, gatherer)
    time.sleep(command)
    return None


class AsyncBridge:
    """Brings outcomes from the broker into one event loop, with one wake-up per burst.

    While many tasks wait, the loop's own thread polls the backend between their steps, if that lends its work: two
    threads that take turns with Python's lock would cost more than all that the tasks do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, gatherer: Gatherer) -> None:
        self.loop = loop
        self.gatherer = gatherer
        self._settled: deque[tuple[asyncio.Future[Outcome], Outcome]] = deque()
        self._is_woken = False
        self._lock = threading.Lock()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._waiting_count = 0
        self._is_polling = False

    def put(self, lane: Lane[Any], item: Any) -> asyncio.Future[Outcome]:
        """Queue an item; the future resolves with its outcome."""
        waiter = _AsyncWaiter(self, self.loop.create_future())
        self._waiting_count += 1
        lane.put(item, waiter)
        if self._waiting_count >= POLLING_COUNT and not self._is_polling:
            self._is_polling = True
            self.loop.call_soon(self._poll)
        if self._flush_timer is None:
            self._flush_timer = self.loop.call_later(GATHER_S, self._flush)
        return waiter.future

    def take(self, future: asyncio.Future[Outcome], outcome: Outcome) -> None:
        """Note an outcome, from any thread."""
        with self._lock:
            self._settled.append((future, outcome))
            if self._is_woken:
                return
            self._is_woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # The event loop is closed: nobody waits any more.
            self._settled.clear()

    def _poll(self) -> None:
        """Fetch outcomes on this thread, and come again as long as many tasks wait."""
        comes_again = self._waiting_count >= POLLING_COUNT_MIN
        self._is_woken = True  # whatever is taken until `_deliver` needs no wake-up
        is_lent = self.gatherer.backend.poll(0.0, comes_again=comes_again)
        count = len(self._settled)
        self._deliver()
        if not comes_again or not is_lent:
            self._is_polling = False
        elif count:
            self.loop.call_soon(self._poll)
        else:
            self.loop.call_later(POLLING_PAUSE_S, self._poll)

    def _deliver(self) -> None:
        with self._lock:
            settled, self._settled = self._settled, deque()
            self._is_woken = False
        self._waiting_count -= len(settled)
        for future, outcome in settled:
            if not future.done():
                future.set_result(outcome)
        self.gatherer.halves.flush()
        self.gatherer.releases.flush()

    def _flush(self) -> None:
        self._flush_timer = None
        self.gatherer.halves.flush(force=True)
        self.gatherer.releases.flush(force=True)


class _AsyncWaiter:
    __slots__ = ("_bridge", "future")

    def __init__(self, bridge: AsyncBridge, future: asyncio.Future[Outcome]) -> None:
        self._bridge = bridge
        self.future = future

    def settle(self, outcome: Outcome) -> None:
        self._bridge.take(self.future, outcome)


async def run_async(flow: Flow[R], bridge: AsyncBridge) -> R:
    """Run *flow* in the current task until it returns or raises; what it calls may be asynchronous."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            command = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            result: R = stop.value
            return result
        value = error = None
        try:
            value = await _carry_out_async(command, bridge)
        except BaseException as raised:  # noqa: BLE001 - the flow decides, cancellation included
            error = raised


async def _carry_out_async(command: Any, bridge: AsyncBridge) -> Any:
    if isinstance(command, HalfRecord):
        return await bridge.put(bridge.gatherer.halves, command)
    if isinstance(command, Timed):
        try:
            return await asyncio.wait_for(bridge.put(bridge.gatherer.halves, command.half), command.deadline_s)
        except TimeoutError:
            return command.expired()
    if isinstance(command, Resolution):
        return await bridge.put(bridge.gatherer.releases, command)
    if isinstance(command, Call):
        value = command.function(*command.args)
        return await value if inspect.isawaitable(value) else value
    if isinstance(command, Future):
        return await asyncio.wrap_future(command)
    if isinstance(command, Spawn):
        return await run_async(command.flow, bridge)
    await asyncio.sleep(command)
    return None
