"""Where logs end, asked for all at once: what was stored before the question stands before that end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError
from txcore_kafka.codec import translated
from txcore_kafka.resting import Place
from txcore_kafka.threads import Worker, new_future

_log: Final = logging.getLogger("txcore.kafka")


class Ends:
    """Asks on a thread of its own, in one question for all logs that were named during the last one. Thread safe."""

    def __init__(self, ask: Callable[[set[Place]], Mapping[Place, int]]) -> None:
        """Ask with *ask*; it may block for a bounded time, and raise."""
        self.told: dict[Place, int] = {}
        self._ask = ask
        self._worker = Worker("txcore-kafka-marks")
        self._lock = threading.Lock()
        self._waiting: list[tuple[Place, Future[int]]] = []
        self._is_asking = False

    def ask(self, place: Place) -> Future[int]:
        """Ask where the log at *place* ends; never blocks.

        Raises (through the Future):
            BackendTimeoutError, BackendUnavailableError: the broker did not tell.
        """
        answer: Future[int] = new_future()
        with self._lock:
            self._waiting.append((place, answer))
            if self._is_asking:
                return answer
            self._is_asking = True
        if self._worker.is_stopping:
            self._end()
        else:
            self._worker.submit(self._run).add_done_callback(lambda _: self._end())
        return answer

    def look(self, place: Place, then: Callable[[], None]) -> None:
        """Ask where the log at *place* ends, and call *then* once that is told, or cannot be; never blocks."""
        self.ask(place).add_done_callback(lambda _: then())

    def close(self, timeout_s: float) -> None:
        """Ask no more; blocks for at most *timeout_s*, for the question under way."""
        self._worker.stop(timeout_s)

    def _run(self) -> None:
        while waiting := self._taken():
            try:
                told = self._ask({place for place, _ in waiting})
            except Exception as error:  # noqa: BLE001 - every caller is told; the next question is asked all the same
                _log.info("kafka.ends_unknown", extra={"reason": repr(error)})
                for _, answer in waiting:
                    answer.set_exception(_failure(error))
                continue
            self.told |= told
            for place, answer in waiting:
                if place in told:
                    answer.set_result(told[place])
                else:
                    answer.set_exception(BackendTimeoutError(f"the broker does not tell where {place[0]!r} ends"))

    def _taken(self) -> list[tuple[Place, Future[int]]]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._is_asking = bool(waiting)
        return waiting

    def _end(self) -> None:
        """Answer every caller, should the thread have been stopped before it asked."""
        if not self._worker.is_stopping:
            return
        for _, answer in self._taken():
            answer.set_exception(BackendUnavailableError("this backend was closed before the log's end was known"))


def _failure(error: Exception) -> Exception:
    if isinstance(error, ClosedError):
        return BackendUnavailableError("this backend was closed before the log's end was known")
    return translated(error, "asking for a log's end")
