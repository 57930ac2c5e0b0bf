"""What a server's start is doing, for a person at a terminal: `say` in the code that downloads, `heard` around it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_listeners = threading.local()


def say(text: str) -> None:
    """Report a step that may take long; does nothing in a thread without a listener."""
    listener: Callable[[str], None] | None = getattr(_listeners, "current", None)
    if listener is not None:
        listener(text)


@contextlib.contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Call *listener* with each step that this thread reports inside the block."""
    _listeners.current = listener
    try:
        yield
    finally:
        _listeners.current = None
