"""Counts the parked halves of a whole group by reason, from its parked logs, whichever checker owns a partition.

A process that begins reads these logs from their beginning, so its first count is as right as any later one.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Final

from txcore.clock import Clock
from txcore.history.journey import Journey
from txcore.history.parked_log import ParkedLog
from txcore.operator.operator import Operator
from txcore.port import Backend
from txcore.records import Parked

LOG: Final = logging.getLogger("txcore.sidecar")
POLL_S: Final = 2.0
"""Time, in seconds, between two readings of the parked logs."""
FIRST_POLL_S: Final = 0.05
"""Time, in seconds, between two readings until each log was read to its end once."""
LOOK_EVERY_S: Final = 15.0
"""Shortest time, in seconds, between two looks at the other logs while something is parked."""
LOOK_SHARE: Final = 20
"""Time between two such looks, as a multiple of the time that the last one took."""
CLOSE_S: Final = 5.0
"""Longest wait, in seconds, for a look under way at the end."""
BY: Final = "parked watch"


class ParkedWatch:
    """Reads in a thread of its own; see the module. `close` it before its backend.

    An open entry counts until the other logs show that it was resumed, or has ended. While nothing is parked, they are
    not read. Else a look from the checkpoints shows what was resumed, and one look at the whole logs shows what had
    ended before that.
    """

    def __init__(self, backend: Backend, group: str, partition_count: int, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._operator = Operator(backend, group, by=BY, clock=clock)
        self._logs = [ParkedLog(backend, group, partition) for partition in range(partition_count)]
        self._parked: dict[bytes, Parked] = {}  #: entries whose halves are parked, as the whole logs show
        self._undecided: dict[bytes, Parked] = {}  #: of halves that were resumed, or not discarded yet
        self._ended: set[bytes] = set()
        self._recent_at_s = self._whole_at_s = 0.0  #: when the next look is due
        self._counts: Mapping[str, int] | None = None
        self._trouble = ""
        self._is_stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"txcore-parked-{group}", daemon=True)

    @property
    def counts(self) -> Mapping[str, int] | None:
        """The number of parked halves for each code that has some; None until the logs were read once."""
        return self._counts

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._thread.start()

    def look_again(self) -> None:
        """Look soon, because an operator has resumed or decided something; returns at once."""
        self._recent_at_s = 0.0
        self._wake.set()

    def close(self) -> None:
        """End the thread, which closes its readers; waits `CLOSE_S` at most for a look under way."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            for log in self._logs:
                log.close()

    def _watch(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - a driver's own error must not end the watch for good
                self._note(str(error) or repr(error))
            else:
                self._note("")
            self._wake.wait(POLL_S if self._counts is not None else FIRST_POLL_S)

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble and not self._is_stopping:
            LOG.warning("parked.unread", extra={"txcore": {"group": self._group, "reason": trouble}})
        self._trouble = trouble

    def _look(self) -> None:
        for log in self._logs:
            log.poll()
        if not all(log.is_read for log in self._logs):
            return
        entries = {identity: entry for log in self._logs for identity, entry in log.entries.items()}
        self._parked = _still(self._parked, entries)
        self._undecided = _still(self._undecided, entries)
        self._ended &= entries.keys()
        if entries and self._clock.elapsed_s() >= self._recent_at_s:
            self._recent_at_s = self._look_at_recent(entries)
        self._count(entries)
        unsure = self._open(entries) - self._parked.keys()
        if unsure and self._clock.elapsed_s() >= self._whole_at_s:
            self._whole_at_s = self._look_at_all(entries, unsure)
            self._count(entries)

    def _look_at_recent(self, entries: Mapping[bytes, Parked]) -> float:
        """Find the entries of halves that are undecided now, or ended lately; returns when to look again."""
        began_s = self._clock.elapsed_s()
        found = self._journeys(entries, from_checkpoint=True)
        self._undecided = {each: entries[each] for each in (one.transaction_id for one in found if one.is_pending)}
        self._ended |= {each.transaction_id for each in found if each.final}
        return self._next_s(began_s)

    def _look_at_all(self, entries: Mapping[bytes, Parked], unsure: Collection[bytes]) -> float:
        """Find out which entries are those of parked halves, and which ended long ago; returns when to look again."""
        began_s = self._clock.elapsed_s()
        for each in self._journeys(unsure, from_checkpoint=False):
            if each.final:
                self._ended.add(each.transaction_id)
            elif each.is_parked:
                self._parked[each.transaction_id] = entries[each.transaction_id]
        return self._next_s(began_s)

    def _next_s(self, began_s: float) -> float:
        now_s = self._clock.elapsed_s()
        return now_s + max(LOOK_EVERY_S, LOOK_SHARE * (now_s - began_s))

    def _journeys(self, identities: Collection[bytes], *, from_checkpoint: bool) -> list[Journey]:
        with closing(self._operator.watch(identities, from_checkpoint=from_checkpoint)) as survey:
            return list(survey.journeys())

    def _open(self, entries: Mapping[bytes, Parked]) -> set[bytes]:
        return entries.keys() - self._undecided.keys() - self._ended

    def _count(self, entries: Mapping[bytes, Parked]) -> None:
        self._counts = Counter(entries[identity].code for identity in self._open(entries))


def _still(known: Mapping[bytes, Parked], entries: Mapping[bytes, Parked]) -> dict[bytes, Parked]:
    """Return the *known* entries that are still the open ones: no CLOSED and no later parking has replaced them."""
    return {identity: entry for identity, entry in known.items() if entries.get(identity) is entry}
