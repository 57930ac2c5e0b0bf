"""Logs without new records: their readers give up their consumers, and one question asks for the ends of all logs.

An open consumer costs a connection, three threads and two requests a second. A checker reads two logs of every
partition, so in a group without new records this would be its only work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from txcore.clock import Clock
from txcore_kafka.threads import Worker

ASK_MIN_S: Final = 0.1
ASK_MAX_S: Final = 2.0
"""Longest time, in seconds, between two questions; it grows while no reader stops resting. A resting reader sees new
records with at most this delay."""
ASK_GROWTH: Final = 1.1
UNKNOWN: Final = -1

Place = tuple[str, int]
"""A topic and a partition."""


class Rest:
    """The rest of one reader.

    Attributes:
        end: The offset after the log's last record, as reported after the rest began; None before the report, UNKNOWN
            if the broker did not report it.
    """

    __slots__ = ("end", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.end: int | None = None


class Resting:
    """The rests of one backend. Thread safe; it never waits."""

    def __init__(self, ends: Callable[[set[Place]], Mapping[Place, int]], clock: Clock) -> None:
        """Use *ends* for questions, on a thread of its own; *ends* may block and raise."""
        self._ends = ends
        self._worker = Worker("txcore-kafka-ends")
        self._clock = clock
        self._rests: set[Rest] = set()
        self._is_asking = False
        self._asks_at_s = 0.0
        self._pause_s = ASK_MIN_S
        self._lock = threading.Lock()

    def begin(self, place: Place) -> Rest:
        """Return a rest; from now on each question that a reader asks with `look` sets its `end`."""
        rest = Rest(place)
        with self._lock:
            self._rests.add(rest)
        return rest

    def end(self, rest: Rest) -> None:
        """Forget a rest."""
        with self._lock:
            self._rests.discard(rest)
            self._pause_s = ASK_MIN_S

    def look(self) -> None:
        """Ask for the ends of all resting logs, if it is time."""
        now_s = self._clock.elapsed_s()
        with self._lock:
            if self._is_asking or now_s < self._asks_at_s:
                return
            self._is_asking = True
            self._asks_at_s = now_s + self._pause_s
            self._pause_s = min(self._pause_s * ASK_GROWTH, ASK_MAX_S)
            rests = tuple(self._rests)
        asked = self._worker.submit(lambda: self._ends({rest.place for rest in rests}))
        asked.add_done_callback(lambda answer: self._answered(rests, answer))

    def close(self, timeout_s: float) -> None:
        """Stop asking; block for at most *timeout_s*, for the question under way."""
        self._worker.stop(timeout_s)

    def _answered(self, rests: tuple[Rest, ...], answer: Future[Mapping[Place, int]]) -> None:
        """Set the ends; a reader whose end the broker did not report then looks for itself."""
        ends = {} if answer.exception() else answer.result()
        for rest in rests:
            rest.end = ends.get(rest.place, UNKNOWN)
        with self._lock:
            self._is_asking = False
