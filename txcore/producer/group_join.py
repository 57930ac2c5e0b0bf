"""Joining a group without waiting for it: a producer in mode auto may start, and sell, while its broker is down."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from txcore.errors import BackendTimeoutError, BackendUnavailableError, TxcoreError

UNREACHED = (BackendTimeoutError, BackendUnavailableError, TimeoutError)
"""The exceptions of a broker that did not answer; any other one is a mistake that must be raised."""


class Joining:
    """Asks for the group's number of partitions, again after each failure. Thread safe: asking twice does no harm."""

    def __init__(self, ask: Callable[[], Future[int]]) -> None:
        self._ask = ask
        self._asked: Future[int] | None = None

    def begin(self) -> Future[int]:
        """Ask for the number now; `poll` takes this answer, too, if the caller does not wait for it.

        Raises (through the Future):
            ConfigError: the group has other settings.
        """
        self._asked = self._ask()
        return self._asked

    def poll(self) -> int:
        """Return the number if it is known by now, else 0; never waits."""
        asked = self._asked
        if asked is None or (asked.done() and asked.exception() is not None):
            try:
                asked = self._asked = self._ask()
            except TxcoreError:
                self._asked = None
                return 0
        return asked.result() if asked.done() and asked.exception() is None else 0
