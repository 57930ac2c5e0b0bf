"""Closed-loop load: threads or tasks that each begin the next transaction when the last one has ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from benchmarks.machine import as_advised
from benchmarks.processes import driver_cpu_s
from benchmarks.sampling import Profile


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one row.

    Attributes:
        latencies_s: Latency of each call; a call is one transaction, or one batch where the row sends batches.
        transactions_per_call: 1, or the size of a batch.
        elapsed_s: Time from the common start to the end of the last call.
        own_cpu_s: Processor time of this process in that time.
        driver_cpu_s: The part of it that is used by threads of a driver in C.
        broker_cpu_s: Processor time of the broker's processes in that time; 0 for a broker without processes.
        database_cpu_s: The same of the database's processes.
        steps_s: Durations of the steps of a transaction by their names, where the row measures them.
    """

    latencies_s: list[float]
    transactions_per_call: int
    elapsed_s: float
    own_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    database_cpu_s: float = 0.0
    driver_cpu_s: float = 0.0
    steps_s: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of transactions."""
        return len(self.latencies_s) * self.transactions_per_call

    @property
    def per_s(self) -> float:
        """Number of transactions per second."""
        return self.count / self.elapsed_s

    def percentile_ms(self, percent: int) -> float:
        """Return the nearest-rank percentile of the calls' latencies."""
        return percentile_ms(self.latencies_s, percent)


def percentile_ms(values_s: list[float], percent: int) -> float:
    """Return the nearest-rank percentile in milliseconds."""
    ordered = sorted(values_s)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[rank - 1] * 1000


@dataclass(slots=True)
class Drive:
    """Duration of each load, and the measurements during the load.

    Attributes:
        seconds: Time in which calls begin.
        broker_cpu_s: Returns the processor time of the broker's processes up to now.
        database_cpu_s: Returns that of the database's processes.
        profile: Sampler of this process, if a profile was requested.
        is_as_advised: Whether all drives of this process run as in `machine.as_advised`.
    """

    is_as_advised: ClassVar[bool] = False

    seconds: float
    broker_cpu_s: Callable[[], float] = lambda: 0.0
    profile: Profile | None = None
    database_cpu_s: Callable[[], float] = lambda: 0.0
    _elapsed_s: float = 0.0
    _own_cpu_s: float = 0.0
    _broker_cpu_s: float = 0.0
    _database_cpu_s: float = 0.0
    _driver_cpu_s: float = 0.0

    def threads(
        self,
        call: Callable[[], None],
        thread_count: int,
        transactions_per_call: int = 1,
        *,
        finish: Callable[[], None] = lambda: None,
    ) -> Sample:
        """Call *call* in *thread_count* threads, each at least once; the time includes *finish*.

        Raises:
            Exception: the first error of any call.
        """
        latencies_s: list[list[float]] = [[] for _ in range(thread_count)]
        errors: list[BaseException] = []
        barrier = threading.Barrier(thread_count + 1)
        deadline_s = 0.0

        def work(own_s: list[float]) -> None:
            barrier.wait()
            try:
                end_s = 0.0
                while end_s < deadline_s:
                    begin_s = time.perf_counter()
                    call()
                    end_s = time.perf_counter()
                    own_s.append(end_s - begin_s)
            except BaseException as error:  # noqa: BLE001 - raised by the caller, below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(own_s,), daemon=True) for own_s in latencies_s]
        for thread in threads:
            thread.start()
        with self._measured():
            deadline_s = time.perf_counter() + self.seconds
            barrier.wait()
            for thread in threads:
                thread.join()
            finish()
        if errors:
            raise errors[0]
        return self._sample([value for own_s in latencies_s for value in own_s], transactions_per_call)

    async def tasks(self, call: Callable[[], Awaitable[None]], task_count: int) -> Sample:
        """Await *call* in *task_count* tasks, each at least once."""
        latencies_s: list[float] = []

        async def work() -> None:
            end_s = 0.0
            while end_s < deadline_s:
                called_s = time.perf_counter()
                await call()
                end_s = time.perf_counter()
                latencies_s.append(end_s - called_s)

        with self._measured():
            deadline_s = time.perf_counter() + self.seconds
            await asyncio.gather(*(work() for _ in range(task_count)))
        return self._sample(latencies_s, 1)

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        broker_s, database_s, driver_s = self.broker_cpu_s(), self.database_cpu_s(), driver_cpu_s()
        with self.profile or contextlib.nullcontext(), as_advised() if self.is_as_advised else contextlib.nullcontext():
            begin_s, own_s = time.perf_counter(), time.process_time()
            yield
            self._elapsed_s, self._own_cpu_s = time.perf_counter() - begin_s, time.process_time() - own_s
        self._driver_cpu_s = max(driver_cpu_s() - driver_s, 0.0)  # a thread that has ended counts no more
        self._broker_cpu_s, self._database_cpu_s = self.broker_cpu_s() - broker_s, self.database_cpu_s() - database_s

    def _sample(self, latencies_s: list[float], transactions_per_call: int) -> Sample:
        used_s = (self._own_cpu_s, self._broker_cpu_s, self._database_cpu_s, self._driver_cpu_s)
        return Sample(latencies_s, transactions_per_call, self._elapsed_s, *used_s)
