"""Logs on which nothing happens: their readers give up their consumers, and one question asks for the ends of all.

A consumer is a connection, three threads and two requests a second for as long as it is open, and a checker reads two
logs of every partition: on a quiet group that would be all that it does.
"""

from __future__ import annotations

import functools
import logging
import threading
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined] # it lists no names of its own

from txcore.clock import Clock
from txcore_kafka.control import Control
from txcore_kafka.options import Options
from txcore_kafka.threads import Worker

_log = logging.getLogger("txcore.kafka")

ASK_MIN_S: Final = 0.1
ASK_MAX_S: Final = 2.0
"""Between two questions, the longer the longer nothing happens; so much later a resting reader sees what is new."""
ASK_GROWTH: Final = 1.1
UNKNOWN: Final = -1


class Rest:
    """One reader's wish to rest.

    Attributes:
        end: Behind the log's last record, as told after the rest was asked for; None before, UNKNOWN if the broker
            did not tell.
    """

    __slots__ = ("end", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.end: int | None = None


class Resting:
    """The rests of one backend. Thread safe; it never waits."""

    def __init__(self, options: Options, control: Control, worker: Worker, clock: Clock) -> None:
        self._timeout_s = options.request_timeout_s
        self._control = control
        self._worker = worker
        self._clock = clock
        self._rests: set[Rest] = set()
        self._asked_until_s: float | None = None  #: while a question is under way: when its answer is overdue
        self._asks_at_s = 0.0
        self._pause_s = ASK_MIN_S
        self._lock = threading.Lock()

    def begin(self, topic: str, partition: int) -> Rest:
        """Return a rest, whose `end` is told from now on whenever somebody calls `look`."""
        rest = Rest(topic, partition)
        with self._lock:
            self._rests.add(rest)
        return rest

    def end(self, rest: Rest) -> None:
        """Forget a rest."""
        with self._lock:
            self._rests.discard(rest)
            self._pause_s = ASK_MIN_S

    def look(self) -> None:
        """Ask for the ends of all, if it is time."""
        now_s = self._clock.elapsed_s()
        with self._lock:
            if self._asked_until_s is not None and now_s > self._asked_until_s:
                self._give_up()
            if self._asked_until_s is not None or now_s < self._asks_at_s:
                return
            self._asked_until_s = now_s + 2 * self._timeout_s
            self._asks_at_s = now_s + self._pause_s
            self._pause_s = min(self._pause_s * ASK_GROWTH, ASK_MAX_S)
        self._worker.submit(self._ask).add_done_callback(self._asked)

    def _ask(self) -> None:
        """Send one question, on the worker's thread; the answers come on the driver's."""
        with self._lock:
            rests = list(self._rests)
        places: dict[tuple[str, int], list[Rest]] = {}
        for rest in rests:
            places.setdefault((rest.topic, rest.partition), []).append(rest)
        if not places:
            self._asked_until_s = None
            return
        newest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        answers = self._control.admin.list_offsets(
            {TopicPartition(*place): newest for place in places},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout_s,
        )
        left = [len(answers)]
        for place, answer in answers.items():
            answer.add_done_callback(functools.partial(self._told, places[place.topic, place.partition], left))

    def _told(self, rests: list[Rest], left: list[int], answer: Future[Any]) -> None:
        error = answer.exception()
        if error is not None:
            _log.debug("kafka.no_end", extra={"reason": str(error)})
        for rest in rests:
            rest.end = UNKNOWN if error is not None else answer.result().offset
        with self._lock:
            left[0] -= 1
            if not left[0]:
                self._asked_until_s = None

    def _asked(self, asked: Future[None]) -> None:
        if asked.exception() is not None:  # The backend was closed, or the driver took no question.
            with self._lock:
                self._give_up()

    def _give_up(self) -> None:
        """Let every reader look for itself."""
        for rest in self._rests:
            rest.end = UNKNOWN
        self._asked_until_s = None
