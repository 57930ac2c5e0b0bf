"""The plan of the kills: the named steps of the protocol in random order, so that a process dies at each of them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from txcore_conformance.failpoints import Failpoints

WORKER_STEPS: Final = {
    "before call begin": "before database BEGIN + fence row",
    "after call begin": "after database BEGIN + fence row",
    "before insert": "before the order's INSERT",
    "after insert": "after the order's INSERT",
    "before half": "before the half",
    "during half": "while the half is written",
    "after half": "after the half",
    "before call commit": "before database COMMIT",
    "after call commit": "after database COMMIT",
    "before release COMMIT": "before message + op",
    "during release COMMIT": "while message + op are written",
    "after release COMMIT": "after message + op",
}
CHECKER_STEPS: Final = {
    "after call check": "checker: after the check's answer",
    "during release": "checker: while its end is written",
}
CONSUMER_STEPS: Final = {
    "before inbox commit": "consumer: before its COMMIT",
    "after inbox commit": "consumer: after COMMIT, before ack",
}
STEPS: Final = {**WORKER_STEPS, **CHECKER_STEPS, **CONSUMER_STEPS}
SPARE_KILLS: Final = 4
"""Number of kills planned beyond the requested ones, as a step may come too late to be reached."""


@dataclass(frozen=True, slots=True)
class Death:
    """The death of one process: it kills itself at *step*, after the share *after* of its work (0 to 1)."""

    step: str
    after: float


def deal(steps: dict[str, str], randomness: random.Random) -> Iterator[str]:
    """Yield *steps* for ever, in a new random order each time all of them were used."""
    while True:
        cards = list(steps)
        randomness.shuffle(cards)
        yield from cards


def shares(kills: int, workers: int) -> list[int]:
    """Return the number of planned deaths of each worker."""
    return [kills // workers + (index < kills % workers) for index in range(workers)]


class Executioner(Failpoints):
    """Kills this process at a step by SIGKILL, which no code can catch; txcore itself has no code for it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._step = ""

    def arm(self, step: str) -> None:
        """Kill this process at the next *step*; the beginning of the step's name is enough."""
        self._step = step

    def reach(self, name: str) -> None:
        """Kill this process if *name* is the chosen step."""
        if self._step and name.startswith(self._step):
            self._say(self._step)
            os.kill(os.getpid(), signal.SIGKILL)
