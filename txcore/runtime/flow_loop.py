"""The driver for many flows in one thread: `send_many`, the checker, and, under a simulated clock, the simulator.

All flows that are ready run in turn; the halves and resolutions they yield leave as one batch each; outcomes come
back through one queue with one wake-up per burst. Calls of user code go to a pool when the loop has one.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, cast

import msgspec

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError
from txcore.port import Backend, Batch
from txcore.port import Claim as ClaimPort
from txcore.records import HalfRecord, Outcome, Resolution
from txcore.runtime.batching import Group, Outbox, Waiter, hand_over
from txcore.runtime.call_pool import CallPool
from txcore.runtime.commands import Answered, Call, Called, Calls, Each, Flow, Spawn, Timed
from txcore.wake import Wake

WAIT_MAX_S: Final = 0.5
ANSWERS: Final = object()
"""The command of a flow that waits for the answers to an `Each`."""
STEPS_MAX: Final = 1000
"""Largest number of flows per turn; the requests of the first ones are under way while the others run."""


class Task(msgspec.Struct, eq=False):
    """One flow on the loop."""

    loop: Loop
    flow: Flow[Any]
    on_done: Callable[[Task], None] | None = None
    result: Any = None
    error: BaseException | None = None

    def settle(self, outcome: Outcome) -> None:
        """Receive an outcome from the backend, on any thread."""
        self.loop.resume(self, outcome, None)


class _TimedWaiter(msgspec.Struct, eq=False):
    """Resumes a task once: with the outcome, or after its deadline."""

    task: Task
    command: Timed
    lock: Any = msgspec.field(default_factory=threading.Lock)

    def settle(self, outcome: Outcome) -> None:
        """Receive an outcome from the backend, on any thread."""
        if self.lock.acquire(blocking=False):
            self.task.settle(outcome)

    def expire(self) -> None:
        """Give up waiting."""
        self.settle(self.command.expired())


class _Together(msgspec.Struct, eq=False):
    """The items of an `Each` as a batch for the backend, and a source of flows: one for items answered together."""

    loop: Loop
    task: Task
    items: Sequence[Any]
    go_on: Callable[[Answered], Flow[None] | None]
    left: int
    running: int = 0
    answered: deque[tuple[Sequence[int], Outcome]] = msgspec.field(default_factory=deque)
    is_noted: bool = False

    def settle(self, index: int, outcome: Outcome) -> None:
        """See `port.Batch.settle`: `send` either finds it or is called again."""
        self.settle_all((index,), outcome)

    def settle_all(self, indices: Sequence[int], outcome: Outcome) -> None:
        """See `port.Batch.settle_all`."""
        self.answered.append((indices, outcome))
        if not self.is_noted:
            self.is_noted = True
            self.loop.resume(Task(self.loop, cast("Flow[Any]", self)), None, None)

    def send(self, _: Any) -> Any:
        """Start a flow for the answered items; the loop calls it as a flow's `send`."""
        self.is_noted = False
        take = self.answered.popleft
        answered = [take() for _ in range(len(self.answered))]
        if answered:
            self.left -= sum([len(indices) for indices, _ in answered])
            self._spawn(answered)
        return ANSWERS

    def _spawn(self, answered: Answered) -> None:
        flow = self.go_on(answered)
        if flow is not None:
            self.running += 1
            self.loop.spawn(flow, self._has_ended)
        else:
            self._resume_at_end()

    def _has_ended(self, task: Task) -> None:
        self.running -= 1
        if task.error is not None:
            raise task.error
        self._resume_at_end()

    def _resume_at_end(self) -> None:
        if not self.left and not self.running:
            self.loop.resume(self.task, None, None)


@dataclass(eq=False)
class Loop:
    """Runs flows; one thread at a time calls `turn`, any thread may `resume`."""

    backend: Backend
    clock: Clock
    _: KW_ONLY
    claim: ClaimPort | None = None
    pool: CallPool | None = None
    task_count: int = field(default=0, init=False)
    _ready: deque[tuple[Task, Any, BaseException | None]] = field(default_factory=deque, init=False)
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list, init=False)
    _sequence: Iterator[int] = field(default_factory=itertools.count, init=False)
    _halves: Outbox[HalfRecord, Waiter] = field(default_factory=lambda: Outbox(Group), init=False)
    _resolutions: Outbox[Resolution, Waiter] = field(default_factory=lambda: Outbox(Group), init=False)
    _has_borrowed: bool = field(default=False, init=False)
    _is_waiting: bool = field(default=False, init=False)
    _wake: Wake = field(default_factory=Wake, init=False)

    def __post_init__(self) -> None:
        self._polls = self.pool is None or self.backend.capabilities.polled  # else not only the backend wakes this loop

    def spawn(self, flow: Flow[Any], on_done: Callable[[Task], None] | None = None) -> Task:
        """Add a flow; it starts at the next turn. From the loop's own thread only."""
        task = Task(self, flow, on_done)
        self.task_count += 1
        self._ready.append((task, None, None))
        return task

    def resume(self, task: Task, value: Any, error: BaseException | None) -> None:
        """Make *task* ready with a value or an error; thread safe."""
        self._ready.append((task, value, error))
        if self._is_waiting:
            self._wake.set()

    def turn(self) -> None:
        """Run the ready flows once, up to `STEPS_MAX` of them, then hand over the gathered items."""
        self._fire_timers()
        take, step = self._ready.popleft, self.step
        for _ in range(min(len(self._ready), STEPS_MAX)):
            step(*take())
        self._hand_over()

    def wait(self) -> None:
        """Wait until a task is ready, or for the next timer; at most `WAIT_MAX_S`.

        Where only the backend can make a task ready, this thread does the backend's work if it lends it: no thread is
        woken then.
        """
        if self._ready:
            if self._polls:
                self._has_borrowed = self.backend.poll(0.0, comes_again=True)
            return
        timeout_s = WAIT_MAX_S
        if self._timers:
            timeout_s = min(max(self._timers[0][0] - self.clock.elapsed_s(), 0.0), WAIT_MAX_S)
        if self._polls and self.backend.poll(timeout_s, self._ready.__len__, comes_again=True):
            self._has_borrowed = True
            return
        self._is_waiting = True
        if not self._ready:  # read again, as a thread that made a task ready meanwhile saw no waiting loop
            self._wake.wait(timeout_s)
        self._is_waiting = False
        self._wake.clear()

    def run_all(self, refill: Callable[[], None] = lambda: None) -> None:
        """Turn until every flow has ended; *refill* may spawn more before each turn."""
        try:
            refill()
            while self.task_count:
                self.turn()
                refill()
                if self.task_count:
                    self.wait()
        finally:
            if self._has_borrowed:  # in `wait`, from the backend, whose own threads then do the work again
                self._has_borrowed = False
                self.backend.poll(0.0)

    def step(self, task: Task, value: Any, error: BaseException | None) -> None:
        """Advance one flow to its next yield and dispatch that; continue at once where the result is there already."""
        while True:
            try:
                command = task.flow.send(value) if error is None else task.flow.throw(error)
            except StopIteration as stop:
                self._finish(task, stop.value, None)
                return
            except Exception as raised:  # noqa: BLE001 - handed to whoever spawned it; the loop serves other flows
                self._finish(task, None, raised)
                return
            answer = self.dispatch(task, command)
            if answer is None:
                return
            value, error = answer

    def dispatch(self, task: Task, command: Any) -> tuple[Any, BaseException | None] | None:
        """Start the command that a flow yielded; return its value or error where the flow need not wait."""
        kind = type(command)
        if kind is HalfRecord:
            self._halves.put(command, task)
        elif kind is Resolution:
            self._resolutions.put(command, task)
        elif kind is Call:
            return self.call(task, command)
        elif kind is Calls:
            return self.calls(task, command)
        elif kind is Each:
            items = command.items
            hand_over(_Together(self, task, items, command.go_on, len(items)), self._take(items[0]))
        elif command is ANSWERS:
            pass  # `settle` resumes it
        elif isinstance(command, Timed):
            waiter = _TimedWaiter(task, command)
            self._halves.put(command.half, waiter)
            self.later(command.deadline_s, waiter.expire)
        elif isinstance(command, Spawn):
            self.spawn(command.flow)
            return None, None  # at once, so that the items of all spawned flows leave together
        elif isinstance(command, Future):
            command.add_done_callback(lambda future: self._future_done(task, future))
        else:
            self.later(command, lambda: self._ready.append((task, None, None)))
        return None

    def call(self, task: Task, call: Call) -> tuple[Any, BaseException | None] | None:
        """Run user code: in the pool, or here without one; then return its value or its error."""
        if self.pool is not None:
            self._call_in_pool(task, call, self.pool)
            return None
        try:
            value = call.function(*call.args)
        except Exception as error:  # noqa: BLE001 - the flow decides what an error means
            return None, error
        if inspect.iscoroutine(value):
            value.close()
            return None, TypeError(f"{call.function!r} is asynchronous; use AsyncTransactionProducer")
        return value, None

    def calls(self, task: Task, calls: Calls) -> tuple[Called, None] | None:  # noqa: ARG002
        """Run user code for many, in turn, and return its values."""
        function, elapsed_s, called = calls.function, self.clock.elapsed_s, Called()
        values, ended_s, until_s = called.values, called.ended_s, elapsed_s() + calls.turn_s
        for arguments in calls.arguments:
            try:
                value = function(*arguments)
            except Exception as error:  # noqa: BLE001 - the flow decides what an error means
                value, called.errors[len(values)] = None, error
            values.append(value)
            now_s = elapsed_s()
            ended_s.append(now_s)
            if now_s >= until_s:
                break
        return called, None

    def _call_in_pool(self, task: Task, call: Call, pool: CallPool) -> None:
        job = pool.submit(call, self.clock.elapsed_s)
        deadline_s = call.deadline_s
        is_answered = threading.Lock()

        def answer(future: Future[Any]) -> None:
            if is_answered.acquire(blocking=False):
                self._future_done(task, future)

        def give_up(allowed_s: float) -> None:
            started_s = job.started_s
            if started_s is None:
                # While the calls before it make progress it keeps waiting, else a long queue would time out in vain.
                left_s = 0.0 if pool.abandoned_count else allowed_s
            else:
                left_s = started_s + allowed_s - self.clock.elapsed_s()
            if left_s > 0 and not job.future.done():
                self.later(left_s, lambda: give_up(allowed_s))
            elif is_answered.acquire(blocking=False):
                pool.abandon(job)
                self.resume(task, None, BackendTimeoutError(f"no answer within {allowed_s:g} s"))

        if deadline_s is not None:
            self.later(deadline_s, lambda: give_up(deadline_s))
        job.future.add_done_callback(answer)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call *action* on the loop's thread after *delay_s*."""
        heapq.heappush(self._timers, (self.clock.elapsed_s() + delay_s, next(self._sequence), action))

    def _future_done(self, task: Task, future: Future[Any]) -> None:
        error = future.exception()
        self.resume(task, None if error else future.result(), error)

    def _fire_timers(self) -> None:
        now_s = self.clock.elapsed_s()
        while self._timers and self._timers[0][0] <= now_s:
            heapq.heappop(self._timers)[2]()

    def _hand_over(self) -> None:
        count_max = self.backend.capabilities.batch_count_max
        self._halves.hand_over(self.backend.append_halves, count_max)
        self._resolutions.hand_over(self._release, count_max)

    def _take(self, item: HalfRecord | Resolution) -> Callable[[Any], None]:
        return self.backend.append_halves if type(item) is HalfRecord else self._release

    def _release(self, batch: Batch[Resolution]) -> None:
        self.backend.release(batch, self.claim)

    def _finish(self, task: Task, result: Any, error: BaseException | None) -> None:
        self.task_count -= 1
        task.result, task.error = result, error
        if task.on_done is not None:
            task.on_done(task)
        elif error is not None:
            raise error
