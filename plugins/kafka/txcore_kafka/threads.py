"""A thread that carries out blocking requests one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from txcore.errors import ClosedError
from txcore.port import running
from txcore_kafka.codec import translated

T = TypeVar("T")


class Worker:
    """One daemon thread, started with the first request. Each request must bound its own time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_stopping = False

    def submit(self, request: Callable[[], T], future: Future[T] | None = None) -> Future[T]:
        """Run *request* on the thread; its errors are translated into ours."""
        future = future or running()
        self._requests.put((request, future))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
        return future

    def stop(self, timeout_s: float) -> None:
        """End the thread after its current request; waiting requests fail with ClosedError."""
        self.is_stopping = True
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            call, future = request
            if self.is_stopping:
                future.set_exception(ClosedError("this backend is closed"))
                continue
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiter is notified and the thread continues
                future.set_exception(translated(error))
            else:
                future.set_result(result)
