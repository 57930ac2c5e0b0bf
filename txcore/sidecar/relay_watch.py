"""Asks whether messages wait in the message table of a group that runs no relay here, and no relay sends them."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from txcore.clock import Clock
from txcore.errors import BackendUnavailableError
from txcore.operator import formatting
from txcore.sidecar.fences import open_engine
from txcore.sidecar.plan import GroupPlan

if TYPE_CHECKING:
    from txcore.outbox.sql_table import SqlMessageTable

ASK_EVERY_S: Final = 5.0
"""Time, in seconds, between two questions."""
FIRST_S: Final = 60.0
"""Time, in seconds, that a group's first relay may take to start."""
CLOSE_S: Final = 4.0
"""Longest wait, in seconds, for a question under way at the end."""
BY: Final = "relay watch"


class RelayWatch:
    """Asks in a thread of its own, on a connection of its own. `close` it.

    A database that does not answer is not this watch's to report: it keeps its last answer.

    Raises:
        ConfigError, BackendNotInstalledError: see `fences.open_engine`.
    """

    def __init__(self, plan: GroupPlan, clock: Clock) -> None:
        from txcore.outbox.sql_table import SqlMessageTable  # noqa: PLC0415 - needs SQLAlchemy, which only groups with a fence do

        section = msgspec.structs.replace(plan.database_section, connections_max=1)
        self._engine = open_engine(plan.database_url, section)
        self._table: SqlMessageTable = SqlMessageTable(self._engine, plan.name, BY, table=plan.section.fence_table)
        self._clock = clock
        self._served_at_s = clock.elapsed_s()
        self._trouble: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"txcore-relay-watch-{plan.name}", daemon=True)

    @property
    def trouble(self) -> str | None:
        """Why nothing is sent; "" while a relay is seen or nothing waits; None until the table was read once."""
        return self._trouble

    def start(self) -> None:
        """Begin to ask; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits `CLOSE_S` at most for a question under way."""
        self._stop.set()
        self._thread.join(CLOSE_S)
        self._table.close()
        self._engine.dispose()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(BackendUnavailableError):  # no table, or no database: `database_watch` reports that one
                self._trouble = self._note(self._table.unserved_s())
            self._stop.wait(ASK_EVERY_S)

    def _note(self, unserved_s: float | None) -> str:
        now_s = self._clock.elapsed_s()
        if unserved_s is None:
            self._served_at_s = now_s
        return trouble_of_wait(unserved_s, now_s - self._served_at_s)


def trouble_of_wait(unserved_s: float | None, watched_s: float) -> str:
    """Return in words that messages wait without a relay; "" while there is one.

    Args:
        unserved_s: Time since a relay was seen; infinite if none ever was, None if nothing is wrong.
        watched_s: Time for which this has been so, or since the watch began. A group's first relay may start after its
            first message.
    """
    if unserved_s is None or (math.isinf(unserved_s) and watched_s < FIRST_S):
        return ""
    since = "ever" if math.isinf(unserved_s) else f"for {formatting.age(unserved_s)}"
    return f"messages wait in the message table, and no relay of the group was seen {since}"
