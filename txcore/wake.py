"""An event for one waiting thread; an interrupted thread cannot damage it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any


class Wake:
    """An event for one waiting thread, whose `wait` also clears it. Thread safe.

    An exception of a signal's handler, such as a task's time limit, may end a caller between any two steps of Python.
    `threading.Event` and `threading.Condition` acquire their lock in such a step: an interrupted caller keeps it for
    ever, and then all other threads wait for it. Here a lock is held while the event is not set, and each method
    changes it by one call in C.
    """

    def __init__(self) -> None:
        self._unset: Any = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Let the waiting thread continue, or the next one that waits; does nothing if it is set already."""
        if self._unset.locked():
            with suppress(RuntimeError):  # another thread has set it since
                self._unset.release()

    def clear(self) -> None:
        """Forget an earlier `set`."""
        self._unset.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait for `set`, for at most *timeout_s*, and clear it; return whether it was set."""
        is_set: bool = self._unset.acquire(timeout=timeout_s)
        return is_set
