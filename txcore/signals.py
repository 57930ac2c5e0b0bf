"""Signals to this process, received in a thread.

Python runs a signal's handler in the main thread, between two steps of what that thread does just then. A handler that
sets a `threading.Event` waits for ever if the main thread holds that event's own lock at this moment. And no handler
runs while the main thread has just begun to wait. So the handlers here do nothing: Python's own C code writes each
signal's number to a socket (`signal.set_wakeup_fd`), and a thread reads it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Final

END: Final = frozenset({signal.SIGTERM, signal.SIGINT})
"""The signals that ask a process to end."""
READ_BYTES: Final = 64


@contextlib.contextmanager
def received(numbers: Collection[signal.Signals], take: Callable[[signal.Signals], None]) -> Iterator[None]:
    """During the block, call *take* in a thread with each signal of *numbers* to this process. Main thread only.

    After the block the handlers before it are in effect again, and *take* is not called any more.

    Raises:
        ValueError: not the main thread.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def read() -> None:
        while written := reader.recv(READ_BYTES):
            for number in written:
                if number in numbers:
                    take(signal.Signals(number))

    with reader, writer:
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, _nothing) for number in numbers}
        thread = threading.Thread(target=read, name="txcore-signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            writer.shutdown(socket.SHUT_WR)
            thread.join()


@contextlib.contextmanager
def end_requested() -> Iterator[threading.Event]:
    """Provide an event that SIGTERM or SIGINT sets during the block. Main thread only.

    Raises:
        ValueError: not the main thread.
    """
    requested = threading.Event()
    with received(END, lambda _: requested.set()):
        yield requested


def _nothing(number: int, frame: FrameType | None) -> None:
    """Suppress the signal's default effect; the thread of `received` gets the signal."""
