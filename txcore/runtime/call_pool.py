"""A pool for user code that may block for ever: daemon threads, and calls that can be abandoned.

The standard library's executor waits for its threads at interpreter exit, so one stuck listener would keep the
process alive, and a stuck thread of it is lost for good. Here the loop abandons a call past its deadline: its
thread no longer counts and another takes its place, up to `abandoned_max` stuck ones.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final

from txcore.errors import BackendTimeoutError, BusyError
from txcore.port import running
from txcore.runtime.commands import Call

_names: Final = itertools.count(1)


class Job:
    """One call in the pool; `started_s` is None while it waits for a thread."""

    __slots__ = ("call", "elapsed_s", "future", "is_abandoned", "started_s", "submitted_s")

    def __init__(self, call: Call, elapsed_s: Callable[[], float]) -> None:
        self.call = call
        self.elapsed_s = elapsed_s
        self.future: Future[Any] = running()
        self.submitted_s = elapsed_s()
        self.started_s: float | None = None
        self.is_abandoned = False

    def is_overdue(self) -> bool:
        """Whether the job has waited for a thread longer than the call may last."""
        deadline_s = self.call.deadline_s
        return deadline_s is not None and self.elapsed_s() - self.submitted_s >= deadline_s


class CallPool:
    """Runs calls in up to `threads_max` daemon threads. Thread safe.

    Args:
        event_loop: The caller's running event loop, for calls that turn out to be coroutines; None refuses those.
    """

    def __init__(
        self, threads_max: int = 8, abandoned_max: int = 32, event_loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._event_loop = event_loop
        self._threads_max = threads_max
        self._abandoned_max = abandoned_max
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._abandoned = 0
        self._is_closed = False

    def submit(self, call: Call, elapsed_s: Callable[[], float] = lambda: 0.0) -> Job:
        """Run *call* in a thread; its Future holds the result, or BusyError when too many calls are stuck.

        *elapsed_s* returns the time of the start.
        """
        job = Job(call, elapsed_s)
        with self._lock:
            if self._is_closed or self._abandoned >= self._abandoned_max:
                job.future.set_exception(BusyError(f"{self._abandoned} calls of user code are stuck; no more are made"))
                return job
            self._unfinished += 1
            if self._threads < min(self._unfinished, self._threads_max):
                self._start_thread()
        self._queue.put(job)
        return job

    def abandon(self, job: Job) -> None:
        """Stop waiting for *job*; if it is running, its thread is replaced. Its Future may still be set later."""
        with self._lock:
            if job.future.done() or job.is_abandoned:
                return
            job.is_abandoned = True
            self._unfinished -= 1
            if job.started_s is not None:
                self._abandoned += 1
                self._threads -= 1
                if self._unfinished and not self._is_closed:
                    self._start_thread()

    @property
    def abandoned_count(self) -> int:
        """The number of abandoned calls that are still running."""
        return self._abandoned

    def close(self) -> None:
        """Let idle threads end; stuck ones are daemons and do not keep the process alive."""
        with self._lock:
            self._is_closed = True
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"txcore-call-{next(_names)}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                if job.is_abandoned:
                    continue
                # Calls are stuck, and the loop may be about to abandon this one too: it must not get a thread first.
                is_given_up = self._abandoned > 0 and job.is_overdue()
                if is_given_up:
                    job.is_abandoned = True
                    self._unfinished -= 1
                else:
                    job.started_s = job.elapsed_s()
            if is_given_up:
                job.future.set_exception(BackendTimeoutError("no thread was free within the call's deadline"))
                continue
            value, error = self._carry_out(job.call)
            with self._lock:
                was_abandoned = job.is_abandoned
                if was_abandoned:
                    self._abandoned -= 1
                else:
                    self._unfinished -= 1
            if error is not None:
                job.future.set_exception(error)
            else:
                job.future.set_result(value)
            if was_abandoned:
                return  # Another thread took this one's place.

    def _carry_out(self, call: Call) -> tuple[Any, BaseException | None]:
        try:
            value = call.function(*call.args)
            if inspect.isawaitable(value):
                value = self._await(call, value)
        except BaseException as error:  # noqa: BLE001 - handed to the waiting flow, which decides
            return None, error
        return value, None

    def _await(self, call: Call, awaitable: Awaitable[Any]) -> Any:
        """Await on the caller's event loop; it is cancelled there when the call is abandoned."""
        if self._event_loop is None:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise TypeError(f"{call.function!r} is asynchronous; give the checker its event_loop")
        future = asyncio.run_coroutine_threadsafe(_coroutine_of(awaitable), self._event_loop)
        try:
            return future.result(call.deadline_s)
        except TimeoutError:
            future.cancel()
            raise


def _coroutine_of(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """Return *awaitable* itself if an event loop can run it, else a coroutine that awaits it."""
    if isinstance(awaitable, Coroutine):
        return awaitable

    async def wait() -> Any:
        return await awaitable

    return wait()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the calling coroutine; None outside of one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
