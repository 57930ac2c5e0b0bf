"""Questions to the broker about a group or topics, before an item is sent or after the client refused its topic."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

from txcore.clock import Clock
from txcore.errors import BackendUnavailableError, BusyError, MessageRejectedError, TxcoreError
from txcore.records import Outcome, Status
from txcore_kafka.control import Control
from txcore_kafka.options import Options
from txcore_kafka.presence import Presence
from txcore_kafka.producing import Producing
from txcore_kafka.targets import Targets
from txcore_kafka.threads import Worker

QUESTIONS: Final = "questions"


class LookUps:
    """Asks on other threads than the one that polls, which then handles each answer. Thread safe."""

    def __init__(
        self,
        options: Options,
        producing: Producing,
        control: Control,
        targets: Targets,
        presence: Presence,
        worker: Worker,
        clock: Clock,
    ) -> None:
        self._options = options
        self._producing = producing
        self._control = control
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._deferred_count = 0
        self.targets = targets
        self.presence = presence

    def defer(
        self,
        group: str,
        topics: Sequence[str],
        go: Callable[[], None],
        not_found: Callable[[TxcoreError], None],
        *,
        count: int,
        sought: Sequence[str] = (),
    ) -> None:
        """Ask for *group* and *topics*, then call *go* on the thread that polls; or *not_found* if one is missing.

        The caller keeps the deadline. Topics in *sought* may be missing: `go` finds the answer in `presence.refusal`.

        Args:
            count: Number of the items that wait for the answer.
        """
        with self._lock:
            is_full = self._deferred_count >= self._options.queue_max
            self._deferred_count += 0 if is_full else count
        if is_full:
            not_found(BusyError(f"{self._options.queue_max} items wait for news of their topics already"))
            return

        def finish(error: TxcoreError | None) -> None:
            with self._lock:
                self._deferred_count -= count
            if error is None:
                go()
            else:
                not_found(error)

        def answered(error: TxcoreError | None) -> None:
            self._producing.call(functools.partial(finish, error))

        def found(error: TxcoreError | None) -> None:
            if sought and error is None:
                self.presence.seek(sought).add_done_callback(lambda answer: answered(_error_of(answer)))
            else:
                answered(error)

        def counted(answer: Future[int]) -> None:
            error = _error_of(answer)
            if error is None:
                self.targets.ask(topics, found)
            else:
                answered(error)

        self._worker.submit(lambda: self._control.partition_count(group)).add_done_callback(counted)

    def ask(self, topic: str, take: Callable[[Outcome], None]) -> None:
        """Ask whether *topic* exists: *take* gets REFUSED if not, else UNKNOWN, on the thread that polls."""
        self.targets.forget(topic)
        question = Question(take)
        self._producing.watch(QUESTIONS, [question], self._clock.elapsed_s() + self._options.control_timeout_s)

        def answered(answer: Future[None]) -> None:
            error = _error_of(answer) or self.presence.refusal(topic)
            if isinstance(error, MessageRejectedError):
                outcome = Outcome(Status.REFUSED, error)
            else:
                text = f"the client does not know topic {topic!r} yet, and the broker does not say that it is gone"
                outcome = Outcome(Status.UNKNOWN, error or BackendUnavailableError(text))
            self._producing.call(functools.partial(question.settle, outcome))

        self.presence.seek([topic]).add_done_callback(answered)


class Question:
    """A question about a topic under way; answered once, on the thread that polls."""

    __slots__ = ("_take", "is_done")

    def __init__(self, take: Callable[[Outcome], None]) -> None:
        self.is_done = False
        self._take = take

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        if not self.is_done:
            self.is_done = True
            self._take(outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`."""
        self.settle(Outcome(Status.UNKNOWN, error))


def _error_of(answer: Future[Any]) -> TxcoreError | None:
    return cast("TxcoreError | None", answer.exception())
