"""A backend's own thread that runs requests of other threads beside its driver's loop."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

Request = Callable[[], None]


class RequestThread(ABC):
    """A daemon thread that owns a driver's loop; other threads enter through `call` only.

    The first call makes thread and loop. Requests run in the order in which they were handed over. An error of one is
    logged and affects no other.

    Args:
        name: Name of the thread.
        log: Logger of errors; *event* names them.
    """

    def __init__(self, name: str, log: logging.Logger, event: str) -> None:
        self._name = name
        self._log = log
        self._event = event
        self._inbox: deque[Request] = deque()
        self._is_woken = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """The number of requests that wait to run."""
        return len(self._inbox)

    def call(self, request: Request) -> None:
        """Run *request* soon on the thread; callable from any thread. One wake-up serves all waiting requests."""
        if self._thread is None:
            self._start()
        self._inbox.append(request)
        if not self._is_woken:
            try:
                self._is_woken = True
                self._wake(self._run_waiting)
            except BaseException:  # an exception of a signal's handler: the next request must wake the thread
                self._is_woken = False
                raise

    @abstractmethod
    def _make_loop(self) -> None:
        """Make the loop; the thread does not exist yet."""

    @abstractmethod
    def _run(self) -> None:
        """Run the loop until the thread is to end; on the thread."""

    @abstractmethod
    def _wake(self, run: Request) -> None:
        """Let the loop call *run* soon; callable from any thread."""

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._make_loop()
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _run_waiting(self) -> None:
        # Cleared first: a request that is appended after this is found here, or its caller wakes the thread again.
        self._is_woken = False
        while self._inbox:
            self._run_one(self._inbox.popleft())

    def _run_one(self, request: Request) -> None:
        try:
            request()
        except Exception:  # noqa: BLE001 - a failing request must not affect the others
            self._log.exception(self._event, extra={"txcore": {"loop": self._name}})
