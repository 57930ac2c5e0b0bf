"""Messages that a backend has accepted are sent when the process ends normally, without a call by the program.

A backend may accept a release before its op is with the broker. A process that ended at that moment would leave the
transaction to the checker, which publishes its messages a second time. So a backend registers here when it starts, and
is closed at the end of the process: after the last statement, `sys.exit`, or an uncaught exception. Python
does this when all non-daemon threads have ended. It does not do it for `os._exit` or a signal that kills the process;
SIGTERM kills it unless the program handles the signal.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, Protocol

from txcore.clock import SystemClock

FLUSH_TIME_MAX_S: Final = 5.0
"""Longest delay, in seconds, of the end of a process by all its backends together."""


class Closable(Protocol):
    """An object to close at the end of the process: a backend."""

    def close(self, timeout_s: float = ...) -> Future[None]:
        """Send what is queued, settle everything, stop threads; idempotent, bounded by *timeout_s*."""


_open: Final[dict[int, tuple[int, Closable]]] = {}  # by the object's id: the process that opened it, and the object
_finalized: Final[set[int]] = set()  # processes of `multiprocessing` with a finalizer of txcore


def close_at_exit(backend: Closable) -> None:
    """Close *backend* when this process ends normally, and keep it until then or until `closed` is called.

    A backend calls this when it starts, so it is also closed when the program keeps no reference to it. A forked child
    leaves the backends of its parent alone.
    """
    _open[id(backend)] = (os.getpid(), backend)
    _finalize_in_child()


def closed(backend: Closable) -> None:
    """Forget *backend*, whose closing has ended; nothing happens if it was never registered."""
    _open.pop(id(backend), None)


def run_beside(call: Callable[[], object], name: str) -> None:
    """Run *call* on a daemon thread; on the calling thread while Python ends, as it then starts no thread (3.12)."""
    try:
        threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError:
        call()


def close_all(timeout_s: float = FLUSH_TIME_MAX_S) -> None:
    """Close every backend that this process has opened, or wait for its closing; returns within *timeout_s*, about.

    Raises the first error of a closing that could not be begun, after the others.
    """
    clock = SystemClock()
    until_s = clock.elapsed_s() + timeout_s
    mine = [backend for pid, backend in list(_open.values()) if pid == os.getpid()]
    closings: list[Future[None]] = []
    errors: list[Exception] = []
    for index, backend in enumerate(mine):
        # Where no thread can be started each closing blocks, so one that hangs must leave time for the others.
        left_s = max(0.0, until_s - clock.elapsed_s())
        try:
            closings.append(backend.close(left_s / (len(mine) - index)))
        except Exception as error:  # noqa: BLE001 - after any error the other backends must still send
            errors.append(error)
    wait(closings, max(0.0, until_s - clock.elapsed_s()))
    if errors:
        raise errors[0]


def _finalize_in_child() -> None:
    """Have `multiprocessing` close what its child has opened: a child that it forks runs no handler of `atexit`."""
    if "multiprocessing.process" not in sys.modules or os.getpid() in _finalized:
        return
    from multiprocessing import process, util  # noqa: PLC0415 - loaded already in such a child

    if process.parent_process() is not None:
        _finalized.add(os.getpid())
        util.Finalize(None, close_all, exitpriority=-1)


atexit.register(close_all)
