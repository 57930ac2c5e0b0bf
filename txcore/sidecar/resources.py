"""The resources that groups share: a backend per URL, an engine per database, one event loop.

Each is closed with its last user.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from txcore.config import DatabaseSection
from txcore.errors import TxcoreError
from txcore.port import Backend
from txcore.registry import connect
from txcore.sidecar.fences import open_engine

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sqlalchemy import Engine

LOG: Final = logging.getLogger("txcore.sidecar")
T = TypeVar("T")


@dataclass(slots=True)
class _Held(Generic[T]):
    value: T
    users: int = 0


class Shared(Generic[T]):
    """Opens each resource once, by its key, and closes it with its last user. Thread safe."""

    def __init__(self, close: Callable[[T], None]) -> None:
        self._close = close
        self._held: dict[Hashable, _Held[T]] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, opener: Callable[[], T]) -> T:
        """Return the resource of *key*, opened by *opener* if it is not open. Raises the exceptions of *opener*."""
        with self._lock_of(key):
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = _Held(opener())
            held.users += 1
            return held.value

    def give_back(self, key: Hashable) -> None:
        """Release the resource for one user."""
        with self._lock_of(key):
            held = self._held[key]
            held.users -= 1
            if not held.users:
                del self._held[key]
                self._close(held.value)

    def _lock_of(self, key: Hashable) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())


class Resources:
    """See the module.

    Args:
        close_s: Longest time to close one backend.
    """

    def __init__(self, close_s: float = 5.0) -> None:
        self._close_s = close_s
        self._backends: Shared[Backend] = Shared(self._close_backend)
        self._engines: Shared[Engine] = Shared(lambda engine: engine.dispose())
        self._loops: Shared[EventLoop] = Shared(lambda loop: loop.close())

    def take_backend(self, url: str) -> Backend:
        """Return the backend for *url*. Raises: see `txcore.connect`."""
        return self._backends.take(url, lambda: connect(url))

    def give_back_backend(self, url: str) -> None:
        """Release it for one group."""
        self._backends.give_back(url)

    def take_engine(self, url: str, section: DatabaseSection) -> Any:
        """Return the engine for *url*. Raises: see `open_engine`."""
        return self._engines.take((url, section), lambda: open_engine(url, section))

    def give_back_engine(self, url: str, section: DatabaseSection) -> None:
        """Release it for one group."""
        self._engines.give_back((url, section))

    def take_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of asynchronous listeners."""
        return self._loops.take("loop", EventLoop).loop

    def give_back_loop(self) -> None:
        """Release it for one group."""
        self._loops.give_back("loop")

    def _close_backend(self, backend: Backend) -> None:
        try:
            backend.close(self._close_s).result(self._close_s + 1)
        except (TxcoreError, TimeoutError) as error:
            LOG.warning("backend.close_failed", extra={"txcore": {"error": repr(error)}})


class EventLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="txcore-listeners", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the loop; coroutines that still run on it are abandoned with the daemon thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(1.0)

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()
