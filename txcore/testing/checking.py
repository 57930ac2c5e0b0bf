"""The checker of a test: it runs in the test's thread, when the test asks, and moves the clock where it would wait.

A listener or fence is called in that thread as well, so a database in memory needs no second connection.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError  # an Exception, as a checker's thread gets it
from typing import Any, Final

from txcore.checker.checker import Checker
from txcore.checker.decide import Pending
from txcore.checker.limits import Limits
from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, TransactionStateError
from txcore.fence import AnyFence
from txcore.listener import CheckListener
from txcore.message import CheckPolicy
from txcore.port import Backend, Claim
from txcore.runtime.commands import Call
from txcore.runtime.flow_loop import Loop, Task
from txcore.testing.broker import KIT_MEMBER
from txcore.testing.clock import ManualClock

SWEEP_TIMEOUT_S: Final = 30.0
"""Time, in seconds of the test's clock, within which a sweep ends; it takes less unless the broker fails."""
Waiting = set[asyncio.Future[Any]]


class SkippingLoop(Loop):
    """A loop of flows that moves the clock to its next timer instead of sleeping.

    Attributes:
        may_await: Asynchronous listeners and fences may be called, because the caller awaits `awaited`.
        awaited: The calls of user code that have not ended.
    """

    def __init__(self, backend: Backend, clock: ManualClock, claim: Claim) -> None:
        super().__init__(backend, clock, claim=claim)
        self._manual_clock = clock
        self.may_await = False
        self.awaited: Waiting = set()

    def wait(self) -> None:
        """Move the clock to the next timer if no flow is ready."""
        if not self._ready and self._timers:
            self._manual_clock.advance_to(self._timers[0][0])

    @property
    def waits_for_user_code(self) -> bool:
        """Whether no flow is ready before a call of user code has ended."""
        return bool(self.awaited) and not self._ready

    def call(self, task: Task, call: Call) -> tuple[Any, BaseException | None] | None:
        """Run user code here; a coroutine runs in the event loop of the test."""
        try:
            value = call.function(*call.args)
        except Exception as error:  # noqa: BLE001 - the flow decides what an error means
            return None, error
        if not inspect.isawaitable(value):
            return value, None
        if not self.may_await:
            if inspect.iscoroutine(value):
                value.close()
            return None, TypeError(f"{call.function!r} is asynchronous: use `await kit.drain_async()`")
        future = asyncio.ensure_future(value)
        self.awaited.add(future)

        def answered(done: asyncio.Future[Any]) -> None:
            self.awaited.discard(done)
            error = CancelledError("the call was cancelled") if done.cancelled() else done.exception()
            self.resume(task, None if error else done.result(), error)

        future.add_done_callback(answered)
        return None


class KitChecker(Checker):
    """A `Checker` on the test's clock, made by `Kit.checker`."""

    def __init__(
        self,
        backend: Backend,
        group: str,
        clock: ManualClock,
        *,
        fence: AnyFence | None,
        listener: CheckListener | Sequence[CheckListener] | None,
        policy: CheckPolicy | None,
        limits: Limits | None,
        plugins: Sequence[object],
    ) -> None:
        self._manual_clock = clock
        super().__init__(
            backend,
            group,
            listener=listener,
            fence=fence,
            policy=policy,
            member=KIT_MEMBER,
            limits=limits,
            plugins=plugins,
            clock=clock,
        )

    def start(self) -> None:
        """Refuse to run in a thread, where a clock that the test moves means nothing.

        Raises:
            TransactionStateError: always.
        """
        raise TransactionStateError("a kit's checker has no thread: call its run_once(), or drain() of the kit")

    def _loop(self, clock: Clock, claim: Claim) -> Loop:  # noqa: ARG002
        return SkippingLoop(self._backend, self._manual_clock, claim)

    def sweep(self, *, may_await: bool) -> Iterator[Waiting]:
        """Judge every half that is due now; yields the calls of user code that it waits for.

        Raises:
            BackendTimeoutError: the broker does not answer.
        """
        self._join()
        membership = self._membership
        assert membership is not None
        loop = membership.loop
        assert isinstance(loop, SkippingLoop)
        loop.may_await = may_await
        deadline_s = self._manual_clock.now_s + SWEEP_TIMEOUT_S
        for _ in self._sweep(membership):
            if self._manual_clock.now_s > deadline_s:
                raise BackendTimeoutError(f"group {self._group!r} was not swept: is the broker down, or silent?")
            if loop.waits_for_user_code:
                yield loop.awaited
            else:
                loop.wait()

    def pending(self) -> list[tuple[Pending, float]]:
        """Return the undecided halves, each with the seconds until it is due."""
        owners = self._membership.owners.values() if self._membership is not None else ()
        tenures = [owner.tenure for owner in owners]
        return [
            (each, (max(each.due_ms, each.immune_until_ms) - tenure.now_ms()) / 1000)
            for tenure in tenures
            for each in tenure.state.pending.values()
            if not each.is_closed
        ]

    def blocked(self) -> list[str]:
        """Return why partitions are not judged at all."""
        owners = self._membership.owners.values() if self._membership is not None else ()
        return [owner.tenure.blocked for owner in owners if owner.tenure.blocked]
