"""Closed-loop load: threads or tasks that each begin the next transaction when the last one has ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one row.

    Attributes:
        latencies_s: One per call; a call is one transaction, or one batch where the row sends batches.
        transactions_per_call: 1, or the size of a batch.
        elapsed_s: From the common start to the end of the last call.
    """

    latencies_s: list[float]
    transactions_per_call: int
    elapsed_s: float

    @property
    def per_s(self) -> float:
        """Transactions per second."""
        return len(self.latencies_s) * self.transactions_per_call / self.elapsed_s

    def percentile_ms(self, percent: int) -> float:
        """Return the nearest-rank percentile of the calls' latencies."""
        ordered = sorted(self.latencies_s)
        rank = max(1, -(-len(ordered) * percent // 100))
        return ordered[rank - 1] * 1000


def run_threads(call: Callable[[], None], thread_count: int, seconds: float, transactions_per_call: int = 1) -> Sample:
    """Call *call* in *thread_count* threads for *seconds*; each thread makes at least one call.

    Raises:
        Exception: the first error of any call.
    """
    latencies_s: list[list[float]] = [[] for _ in range(thread_count)]
    errors: list[BaseException] = []
    barrier = threading.Barrier(thread_count + 1)
    ends_s = [0.0] * thread_count
    deadline_s = 0.0

    def work(index: int) -> None:
        own_s = latencies_s[index]
        barrier.wait()
        try:
            end_s = 0.0
            while end_s < deadline_s:
                begin_s = time.perf_counter()
                call()
                end_s = time.perf_counter()
                own_s.append(end_s - begin_s)
            ends_s[index] = end_s
        except BaseException as error:  # noqa: BLE001 - raised by the caller, below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(thread_count)]
    for thread in threads:
        thread.start()
    begin_s = time.perf_counter()
    deadline_s = begin_s + seconds
    barrier.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return Sample([value for own in latencies_s for value in own], transactions_per_call, max(ends_s) - begin_s)


async def run_tasks(call: Callable[[], Awaitable[None]], task_count: int, seconds: float) -> Sample:
    """Await *call* in *task_count* tasks for *seconds*; each task makes at least one call."""
    latencies_s: list[float] = []
    begin_s = time.perf_counter()
    deadline_s = begin_s + seconds

    async def work() -> None:
        end_s = 0.0
        while end_s < deadline_s:
            called_s = time.perf_counter()
            await call()
            end_s = time.perf_counter()
            latencies_s.append(end_s - called_s)

    await asyncio.gather(*(work() for _ in range(task_count)))
    return Sample(latencies_s, 1, time.perf_counter() - begin_s)
