"""The operator of a chaos run with order keys: it ends the parked halves that hold their keys up.

A process of the crew stores halves that stay UNKNOWN, until checkers park them. Some time later this operator resumes
every second one, whose listener then answers COMMIT, and rolls the others back.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import Final

from txcore.errors import TxcoreError
from txcore.history.journey import Journey
from txcore.operator.operator import Operator
from txcore.records import OpKind
from txcore_conformance.live import Crew

ROLE: Final = "heads"
"""The role of the process that stores these halves."""
HELD_S: Final = 10.0
"""Time, in seconds, for which a parked half is seen to hold its key up before it is ended."""
LOOK_S: Final = 5.0
"""Time, in seconds, between two readings of the parked log."""


class Heads:
    """Ends a crew's parked halves with order keys. One thread at a time.

    Args:
        count_min: Least number of these halves; with 0 it does nothing.

    Attributes:
        counts: Number of halves that were resumed, and that were rolled back.
    """

    def __init__(self, crew: Crew, count_min: int) -> None:
        self.counts: Counter[str] = Counter()
        self._crew = crew
        self._count_min = count_min
        self._operator = Operator(crew.backend, crew.group)
        self._seen_s: dict[bytes, float] = {}
        self._numbers: dict[bytes, int] = {}
        self._look_at_s = 0.0

    def look(self) -> None:
        """Read the parked log, not too often, and end the halves that have been held long enough."""
        if not self._count_min or time.monotonic() < self._look_at_s:
            return
        try:
            with closing(self._operator.look()) as survey:
                entries = survey.open_entries()
            for journey in self._operator.still_parked(entries):
                if journey.half is not None and journey.half.order_key:
                    self._take(journey)
        except TxcoreError:  # the broker is down or frozen: the next look does the same
            pass
        self._look_at_s = time.monotonic() + LOOK_S

    def shortfall(self) -> list[str]:
        """Return the problem if too few halves were ended."""
        count = self.counts.total()
        return [] if count >= self._count_min else [f"{count} parked halves were ended; not {self._count_min}"]

    def _take(self, journey: Journey) -> None:
        identity = bytes(journey.transaction_id)
        number = self._numbers.setdefault(identity, len(self._numbers))
        if time.monotonic() - self._seen_s.setdefault(identity, time.monotonic()) < HELD_S:
            return
        kind = "resumed" if number % 2 else "rolled back"
        if kind == "resumed":
            self._crew.orders.commit(identity)
            self._operator.resume_journey(journey, "the service knows its answer now")
        else:
            self._crew.rolled_back.add(identity)
            self._operator.ask(journey, OpKind.ROLLBACK, "it was never paid")
        del self._seen_s[identity]  # parked again, as after a lost answer, it is ended in the same way later
        self.counts[kind] += 1
