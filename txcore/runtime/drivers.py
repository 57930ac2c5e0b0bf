"""Drivers of flows for callers: blocking threads and asyncio tasks. `flow_loop` has the third one, for many flows.

A driver knows no protocol: it executes the commands that a flow yields and sends the results back to it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from txcore.errors import BackendTimeoutError
from txcore.port import Backend, Batch
from txcore.records import HalfRecord, Outcome, Resolution, Status
from txcore.runtime.batching import Outbox, hand_over
from txcore.runtime.commands import Call, Flow, Spawn, Timed
from txcore.runtime.wakeup import Seat, Turnstile

POLL_S: Final = 0.02
"""Seconds for which a lone caller polls the backend before it waits as other callers do."""
TURN_S: Final = 0.2
"""Longest delay, in seconds, of a caller whose turn was forgotten."""
LOST_S: Final = 30.0
"""Seconds after a backend's own time for an outcome (`release_time_max_s`) in which a blocked caller gives it up."""
POLLING_COUNT: Final = 64
POLLING_COUNT_MIN: Final = 16
"""Numbers of waiting tasks at which the event loop's thread starts, and stops, polling the backend."""
POLLING_PAUSE_S: Final = 0.001
COLLECTING_S: Final = 0.005
"""Seconds after which the collected releases of tasks are handed over with the next one, within one turn."""
R = TypeVar("R")
_Answer: TypeAlias = "asyncio.Future[Outcome]"


class BlockingBridge(msgspec.Struct, eq=False):
    """Passes items of blocked callers to the backend and wakes each caller with its outcome. Thread safe."""

    backend: Backend
    turnstile: Turnstile = msgspec.field(default_factory=Turnstile)


class _Caller(msgspec.Struct, eq=False):
    """One blocked caller on its way through a flow."""

    bridge: BlockingBridge
    seat: Seat | None = None

    def hand_over(self, take: Callable[[Batch[Any]], None], item: Any, timed: Timed | None = None) -> Outcome:
        """Hand *item* over, let another caller run, and wait for the outcome."""
        backend, turnstile = self.bridge.backend, self.bridge.turnstile
        before, seat = self.seat, turnstile.sit((item,))
        self.seat = seat
        try:
            hand_over(seat, take)
        finally:
            if before is not None:
                before.leave()
        if timed is not None:
            seat.turn.acquire(timeout=timed.deadline_s)
            return seat.outcome or timed.expired()
        if turnstile.is_alone():
            # It delays no other caller, so it fetches its own outcome: it wakes no thread, and no thread wakes it.
            backend.poll(POLL_S, seat.is_settled)
        else:
            backend.poll(0.0)  # the caller that borrowed the backend's work may have left
        if seat.turn.acquire(timeout=TURN_S) and seat.outcome is not None:
            return seat.outcome
        return _late(seat, backend.capabilities.release_time_max_s + LOST_S)

    def leave(self) -> None:
        """Let another caller run; this one may take long."""
        if self.seat is not None:
            self.seat.leave()
            self.seat = None


def _late(seat: Seat, left_s: float) -> Outcome:
    """Wait on for an outcome that has not come within `TURN_S`, or whose turn has not."""
    while seat.outcome is None and left_s > 0:
        seat.turn.acquire(timeout=TURN_S)
        left_s -= TURN_S
    if seat.outcome is None:
        error = BackendTimeoutError("the backend reported no outcome in its time; the message may be stored")
        return Outcome(Status.UNKNOWN, error)
    if not seat.is_let_through:
        seat.turnstile.reopen()
    return seat.outcome


def run_blocking(flow: Flow[R], bridge: BlockingBridge) -> R:
    """Run *flow* in the calling thread until it returns or raises."""
    step: Callable[[Any], Any] = flow.send
    value: Any = None
    caller = _Caller(bridge)
    try:
        while True:
            command = step(value)
            step = flow.send
            try:
                value = _carry_out(command, caller)
            except BaseException as raised:  # noqa: BLE001 - the flow decides what an error means
                step, value = flow.throw, raised
    except StopIteration as stop:  # raised by the flow: a command's own is caught
        result: R = stop.value
        return result
    finally:
        caller.leave()


def _carry_out(command: Any, caller: _Caller) -> Any:
    if isinstance(command, Call):
        caller.leave()
        value = command.function(*command.args)
        if value is not None and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"{command.function!r} is asynchronous; use AsyncTransactionProducer")
        return value
    backend = caller.bridge.backend
    if isinstance(command, HalfRecord):
        return caller.hand_over(backend.append_halves, command)
    if isinstance(command, Resolution):
        return caller.hand_over(backend.release, command)
    if isinstance(command, Timed):
        return caller.hand_over(backend.append_halves, command.half, command)
    caller.leave()
    if isinstance(command, Future):
        return command.result()
    if isinstance(command, Spawn):
        return run_blocking(command.flow, caller.bridge)
    time.sleep(command)
    return None


class AsyncBridge:
    """Passes the items of one event loop's tasks to the backend, in one batch per turn of the loop.

    It brings the outcomes back with one wake-up per burst.

    While many tasks wait, the loop's own thread polls the backend between their steps, if the backend lends its work:
    two threads that take turns with Python's lock would cost more than the tasks themselves.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, backend: Backend) -> None:
        self.loop = loop
        self._backend = backend
        self._halves: Outbox[HalfRecord, _Answer] = Outbox(partial(_Awaited, self.take))
        self._resolutions: Outbox[Resolution, _Answer] = Outbox(partial(_Awaited, self.take))
        self._is_collecting = False
        self._collecting_since_s = 0.0
        self._settled: deque[tuple[Sequence[_Answer], Outcome]] = deque()
        self._is_woken = False
        self._waiting_count = 0
        self._is_polling = False

    def append(self, half: HalfRecord) -> _Answer:
        """Append *half* together with others; the future resolves with its outcome."""
        answer = self._collect()
        self._halves.put(half, answer)
        return answer

    def release(self, resolution: Resolution) -> _Answer:
        """Release *resolution* in the same way, and earlier in a turn in which tasks keep the loop busy for long.

        A producer lets others run by the clock, which its flow has just read, and the next task may block for long.
        """
        answer = self._collect()
        self._resolutions.put(resolution, answer)
        now_s = self.loop.time()
        if now_s - self._collecting_since_s > COLLECTING_S:
            self._collecting_since_s = now_s
            self._release()
        return answer

    def take(self, answers: Sequence[_Answer], outcome: Outcome) -> None:
        """Note an outcome, from any thread: `_deliver` either finds it or is called again."""
        self._settled.append((answers, outcome))
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # The event loop is closed: no task waits any more.
            self._settled.clear()

    def _collect(self) -> _Answer:
        if not self._is_collecting:
            self._is_collecting = True
            self._collecting_since_s = self.loop.time()
            self.loop.call_soon(self._hand_over)
        self._waiting_count += 1
        return self.loop.create_future()

    def _hand_over(self) -> None:
        self._is_collecting = False
        self._halves.hand_over(self._backend.append_halves, self._backend.capabilities.batch_count_max)
        self._release()
        if self._is_polling:
            return
        if self._waiting_count >= POLLING_COUNT:
            self._is_polling = True
            self.loop.call_soon(self._poll)
        else:
            self._backend.poll(0.0)  # the caller that borrowed the backend's work may have left

    def _release(self) -> None:
        self._resolutions.hand_over(self._backend.release, self._backend.capabilities.batch_count_max)

    def _poll(self) -> None:
        """Fetch outcomes on this thread, and again while many tasks wait."""
        comes_again = self._waiting_count >= POLLING_COUNT_MIN
        self._is_woken = True  # outcomes until `_deliver` need no wake-up
        is_lent = self._backend.poll(0.0, comes_again=comes_again)
        count = len(self._settled)
        self._deliver()
        if not comes_again or not is_lent:
            self._is_polling = False
        elif count:
            self.loop.call_soon(self._poll)
        else:
            self.loop.call_later(POLLING_PAUSE_S, self._poll)

    def _deliver(self) -> None:
        self._is_woken = False
        settled = self._settled
        while settled:
            answers, outcome = settled.popleft()
            self._waiting_count -= len(answers)
            for answer in answers:
                if not answer.done():
                    answer.set_result(outcome)


class _Awaited(msgspec.Struct, eq=False):
    """A batch whose items are awaited; implements `port.Batch`."""

    take: Callable[[Sequence[_Answer], Outcome], None]
    items: Sequence[Any]
    answers: Sequence[_Answer]

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`."""
        self.take((self.answers[index],), outcome)

    def settle_all(self, indices: Sequence[int], outcome: Outcome) -> None:
        """See `port.Batch.settle_all`."""
        answers = self.answers
        self.take([answers[index] for index in indices], outcome)


async def run_async(flow: Flow[R], bridge: AsyncBridge) -> R:
    """Run *flow* in the current task until it returns or raises; its calls may be asynchronous."""
    step: Callable[[Any], Any] = flow.send
    value: Any = None
    try:
        while True:
            command = step(value)
            step = flow.send
            try:
                value = await _carry_out_async(command, bridge)
            except BaseException as raised:  # noqa: BLE001 - the flow decides, cancellation included
                step, value = flow.throw, raised
    except StopIteration as stop:
        result: R = stop.value
        return result


async def _carry_out_async(command: Any, bridge: AsyncBridge) -> Any:
    if isinstance(command, HalfRecord):
        return await bridge.append(command)
    if isinstance(command, Resolution):
        return await bridge.release(command)
    if isinstance(command, Timed):
        try:
            return await asyncio.wait_for(bridge.append(command.half), command.deadline_s)
        except TimeoutError:
            return command.expired()
    if isinstance(command, Call):
        value = command.function(*command.args)
        return await value if inspect.isawaitable(value) else value
    if isinstance(command, Future):
        return await asyncio.wrap_future(command)
    if isinstance(command, Spawn):
        return await run_async(command.flow, bridge)
    await asyncio.sleep(command)
    return None
