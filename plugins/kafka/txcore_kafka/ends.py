"""Where half logs end, asked for behind each mark: what stood before the mark stands before that end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from txcore_kafka.resting import Place
from txcore_kafka.threads import Worker

_log: Final = logging.getLogger("txcore.kafka")


class Ends:
    """Asks on a thread of its own, in one question for all that were marked during the last one. Thread safe."""

    def __init__(self, ask: Callable[[set[Place]], Mapping[Place, int]]) -> None:
        """Ask with *ask*; it may block for a bounded time, and raise."""
        self.told: dict[Place, int] = {}
        self._ask = ask
        self._worker = Worker("txcore-kafka-marks")
        self._lock = threading.Lock()
        self._waiting: list[tuple[Place, Callable[[], None]]] = []
        self._is_asking = False

    def look(self, place: Place, then: Callable[[], None]) -> None:
        """Ask where the log at *place* ends, and call *then* once that is told, or cannot be; never blocks."""
        with self._lock:
            self._waiting.append((place, then))
            if self._is_asking:
                return
            self._is_asking = True
        if self._worker.is_stopping:
            self._end()
        else:
            self._worker.submit(self._run).add_done_callback(lambda _: self._end())

    def close(self, timeout_s: float) -> None:
        """Ask no more; blocks for at most *timeout_s*, for the question under way."""
        self._worker.stop(timeout_s)

    def _run(self) -> None:
        while waiting := self._taken():
            try:
                self.told |= self._ask({place for place, _ in waiting})
            except Exception as error:  # noqa: BLE001 - the mark stands all the same; readers see later what is new
                _log.info("kafka.ends_unknown", extra={"reason": repr(error)})
            for _, then in waiting:
                then()

    def _taken(self) -> list[tuple[Place, Callable[[], None]]]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._is_asking = bool(waiting)
        return waiting

    def _end(self) -> None:
        """Keep nobody waiting, should the thread have been stopped before it asked."""
        if not self._worker.is_stopping:
            return
        for _, then in self._taken():
            then()
