"""Starts the demo's processes, restarts the killed ones, and waits until no transaction is in doubt."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from txcore import Operator, TxcoreError
from txcore.clock import SystemClock
from txcore.port import Backend
from txcore_conformance.demo import processes
from txcore_conformance.demo.plan import CHECKER_STEPS, CONSUMER_STEPS, SPARE_KILLS, WORKER_STEPS, Death, deal, shares
from txcore_conformance.demo.processes import Job
from txcore_conformance.demo.settings import Settings
from txcore_conformance.demo.shop import Shop

TURN_S: Final = 0.2
LOOK_EVERY_S: Final = 0.5
END_TIMEOUT_S: Final = 15.0
TIME_MAX_S: Final = 300.0
UNPLANNED_MAX: Final = 3
CONSUMER_REACH: Final = 0.2
"""Share of all messages within which a consumer dies; a later death might never be reached."""


class DemoError(TxcoreError):
    """The demo itself failed; nothing was proven."""


@dataclass(slots=True)
class Progress:
    """The progress of the demo while it runs; `verdict` reads the final numbers back.

    Attributes:
        again: Number of repeated tries of orders after an error.
        dead_attempts: The attempts (see `txcore-by`) of processes that died before their work was done.
        uncertain: Number of releases of each transaction with an uncertain outcome.
        failures: The errors of processes that died unplanned.
    """

    ordered: int = 0
    applied: int = 0
    declined: set[int] = field(default_factory=set)
    killed: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    again: int = 0
    pending: int = 0
    dead_attempts: set[str] = field(default_factory=set)
    uncertain: Counter[bytes] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """The number of killed processes."""
        return self.killed.total()

    @property
    def delivered(self) -> int:
        """The number of messages that the consumer received, duplicates included."""
        return self.applied + self.duplicates


@dataclass(slots=True)
class _Place:
    """One role, and the process that has it now."""

    role: str
    worker: int
    deaths_left: int
    cards: Iterator[str]
    process: BaseProcess | None = None
    line: Connection[Any, Any] | None = None
    dies_at: str = ""
    attempts: set[str] = field(default_factory=set)
    unplanned: int = 0
    has_failed: bool = False
    is_done: bool = False
    is_stopping: bool = False


class Supervisor:
    """Runs the processes of one demo. A context manager: leaving it ends every process it has started."""

    def __init__(self, settings: Settings, shop: Shop, backend: Backend, show: Callable[[Progress], None]) -> None:
        self._settings = settings
        self._shop = shop
        self._operator = Operator(backend, settings.group, by="demo")
        self._show = show
        self._clock = SystemClock()
        self._chance = random.Random(settings.seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([processes.__name__])
        kills = settings.kills_min + SPARE_KILLS
        cards = deal(WORKER_STEPS, self._chance)
        counts = shares(kills, settings.workers)
        self._workers = [_Place("worker", index, count, cards) for index, count in enumerate(counts)]
        self._checker = _Place("checker", 0, len(CHECKER_STEPS), iter(CHECKER_STEPS))
        self._consumer = _Place("consumer", 0, len(CONSUMER_STEPS), iter(CONSUMER_STEPS))
        self.progress = Progress()
        self.orders_s = 0.0  #: seconds until the last order was taken

    @property
    def _places(self) -> list[_Place]:
        return [*self._workers, self._checker, self._consumer]

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            if place.process is not None and place.process.is_alive():
                place.process.kill()
                place.process.join(END_TIMEOUT_S)

    def run(self) -> Progress:
        """Take all orders, wait until everything is at rest, and end the processes.

        Raises:
            DemoError: a process failed by itself again and again, or the run did not finish in time.
        """
        began_s = self._clock.elapsed_s()
        deadline_s = began_s + TIME_MAX_S
        for place in self._places:
            self._start(place)
        look_s = 0.0
        while True:
            self._turn()
            now_s = self._clock.elapsed_s()
            if not self.orders_s and all(place.is_done for place in self._workers):
                self.orders_s = now_s - began_s
            if now_s >= look_s:
                look_s = now_s + LOOK_EVERY_S
                if self._is_at_rest():
                    break
                self._show(self.progress)
            if now_s > deadline_s:
                raise DemoError(f"the run did not finish within {TIME_MAX_S:g} s: {self.progress}")
        self._end()
        self._show(self.progress)
        return self.progress

    def _is_at_rest(self) -> bool:
        """Return whether all orders are taken, every transaction is decided, and all messages were consumed."""
        progress = self.progress
        progress.ordered, progress.applied = self._shop.counts()
        if not all(place.is_done for place in self._workers):
            return False
        progress.pending = len(self._operator.pending())
        return progress.pending == 0 and progress.applied >= progress.ordered

    def _end(self) -> None:
        """Ask checker and consumer to stop, and wait for it."""
        deadline_s = self._clock.elapsed_s() + END_TIMEOUT_S
        for place in (self._checker, self._consumer):
            place.is_stopping = True
            self._ask_to_stop(place)
        while not (self._checker.is_done and self._consumer.is_done):
            self._turn()
            if self._clock.elapsed_s() > deadline_s:
                raise DemoError(f"checker or consumer did not stop within {END_TIMEOUT_S:g} s")

    def _turn(self) -> None:
        """Receive the reports of the processes, for a moment, and restart the dead ones."""
        lines = {place.line: place for place in self._places if place.line is not None}
        for ready in wait(list(lines), TURN_S):
            self._hear(lines[ready])  # type: ignore[index] # wait() returns the awaited lines

    def _hear(self, place: _Place) -> None:
        assert place.line is not None
        try:
            kind, value = place.line.recv()
        except (EOFError, OSError):
            self._bury(place)
            return
        progress = self.progress
        if kind == "dies":
            place.dies_at = value
        elif kind == "declined":
            progress.declined.add(value)
        elif kind == "duplicates":
            progress.duplicates += value
        elif kind == "again":
            progress.again += 1
        elif kind == "attempt":
            place.attempts.add(value)
        elif kind == "uncertain":
            progress.uncertain[value] += 1
        elif kind == "done":
            place.is_done = True
        elif kind == "failed":
            place.has_failed = True
            self._note_failure(place, value)

    def _bury(self, place: _Place) -> None:
        """Note the end of a process, and start its successor unless its work is done."""
        assert place.process is not None
        assert place.line is not None
        place.process.join()
        place.line.close()
        place.line = None
        if place.process.exitcode == -signal.SIGKILL and place.dies_at:
            self.progress.killed[place.dies_at] += 1
        elif not place.is_done and not place.has_failed:
            self._note_failure(place, f"exit code {place.process.exitcode}")
        place.has_failed = False
        if not place.is_done:
            self.progress.dead_attempts |= place.attempts
            self._start(place)

    def _note_failure(self, place: _Place, text: str) -> None:
        self.progress.failures.append(f"{place.role}: {' '.join(text.split())}")
        place.unplanned += 1
        if place.unplanned > UNPLANNED_MAX:
            raise DemoError(f"a process failed by itself again and again, first the {self.progress.failures[0]}")

    def _start(self, place: _Place) -> None:
        line, theirs = multiprocessing.Pipe()
        death = self._next_death(place)
        skip = frozenset(number for number in self.progress.declined if place.role == "worker")
        job = Job(place.role, self._settings, place.worker, death, skip)
        place.dies_at, place.attempts = "", set()
        place.line = line
        place.process = self._context.Process(target=processes.run, args=(job, theirs), daemon=True)
        place.process.start()
        theirs.close()
        if place.is_stopping:
            self._ask_to_stop(place)

    def _next_death(self, place: _Place) -> Death | None:
        """Return the next planned death; deaths are spread evenly over the remaining work."""
        if place.deaths_left == 0 or place.is_stopping:
            return None
        reach = CONSUMER_REACH if place.role == "consumer" else 1 / place.deaths_left
        death = Death(next(place.cards), self._chance.random() * reach)
        place.deaths_left -= 1
        return death

    def _ask_to_stop(self, place: _Place) -> None:
        if place.line is None:
            return
        try:
            place.line.send("stop")
        except OSError:
            return  # The process has just died; its successor gets the request.
