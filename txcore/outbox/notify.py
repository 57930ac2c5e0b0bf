"""The bell of a relay: LISTEN on PostgreSQL, rung by a producer's COMMIT. Other databases have none.

Source: PostgreSQL manual, "NOTIFY"; psycopg documentation, "Asynchronous notifications".
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from txcore.sqlfence.border import POSTGRESQL
from txcore.sqlfence.connections import family_of
from txcore.sqlfence.messages import channel_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from txcore.sqlfence.schema import Tables

SLICE_S: Final = 0.2
"""Interval, in seconds, at which a waiting relay looks whether it must stop."""


class Bell:
    """A connection of its own that listens for one group. One thread at a time."""

    def __init__(self, engine: Engine, tables: Tables, group: str) -> None:
        #: Whether producers can ring: not in other databases, nor with a driver without notifications.
        self.can_ring = family_of(engine.dialect.name) == POSTGRESQL and engine.dialect.driver == "psycopg"
        self._engine = engine
        self._channel = channel_of(tables, group)
        self._driver: Any = None

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until a producer rings, *seconds* have passed, *is_over*, or the connection breaks."""
        left_s = seconds
        try:
            if self._driver is None:
                self._listen()
                return  # A ring before the listening began is found by looking at the table once more.
            while left_s > 0 and not is_over():
                if any(True for _ in self._driver.notifies(timeout=min(left_s, SLICE_S), stop_after=1)):
                    return
                left_s -= SLICE_S
        except Exception:  # noqa: BLE001 - the next wait makes a new bell; polling continues without it
            self.close()

    def close(self) -> None:
        """Stop listening; idempotent."""
        driver, self._driver = self._driver, None
        with suppress(Exception):
            if driver is not None:
                driver.close()

    def _listen(self) -> None:
        connection = self._engine.raw_connection()
        self._driver = connection.driver_connection
        connection.detach()
        self._driver.autocommit = True
        self._driver.execute(f"LISTEN {self._channel}")
