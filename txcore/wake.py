"""Waiting for other threads, in ways that an interrupted thread cannot damage.

An exception of a signal's handler, such as a task's time limit, may end a caller between any two steps of Python.
`threading.Event` and `threading.Condition` acquire their lock in such a step: an interrupted caller keeps it for ever,
and then all other threads wait for it. Here each lock is acquired and released by a call in C.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from operator import attrgetter
from typing import Any


class Wake:
    """An event for one waiting thread, whose `wait` also clears it. Thread safe."""

    def __init__(self) -> None:
        self._unset: Any = threading.Lock()  #: held while the event is not set
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


class Answer(Future[Any]):
    """A Future whose result can be set, whatever became of the threads that waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self._condition: Any = _FutureCondition()


class _FutureCondition:
    """The lock of a Future, with those methods of a condition that a Future calls while it holds the lock."""

    # Found by `with` on the class, as it requires, and resolved to the lock's own: no step of Python in between.
    __enter__ = property(attrgetter("_enter"))
    __exit__ = property(attrgetter("_exit"))

    def __init__(self) -> None:
        lock: Any = threading.RLock()
        self.acquire, self.release = lock.acquire, lock.release
        self._enter, self._exit = lock.__enter__, lock.__exit__
        self._turns: deque[Any] = deque()  #: one lock for each waiting thread, which it cannot acquire yet

    def wait(self, timeout_s: float | None) -> None:
        """Wait for `notify_all`, without the lock."""
        turn: Any = threading.Lock()
        turn.acquire()
        self._turns.append(turn)
        try:
            self.release()
            turn.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        finally:
            self.acquire()
            with suppress(ValueError):  # `notify_all` has removed it
                self._turns.remove(turn)

    def notify_all(self) -> None:
        """Let all waiting threads continue."""
        while self._turns:
            self._turns.popleft().release()
