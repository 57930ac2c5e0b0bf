"""The circuit of a callback or a database: while the source is down, one question at a time probes it.

Without it every waiting half would ask a dead callback or database by itself. The refusal of a question says when to
ask again; nothing is counted (R10).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness
from txcore.errors import CheckPostponedError, sentence_of
from txcore.runtime.circuit_breaker import CircuitBreaker

LOG: Final = logging.getLogger("txcore.sidecar")
CALLBACK: Final = "callback"
DATABASE: Final = "database"


@dataclass(slots=True)
class Question:
    """One question; `failure` says how it failed, and counts towards opening the circuit."""

    failure: str = ""
    retry_after_s: float = 0.0


class SourceCircuit:
    """A circuit breaker whose callers wait for the end of a running probe, and which logs its switches. Thread safe.

    Args:
        name: The source's name, for people: its kind, `CALLBACK` or `DATABASE`, and its name in the configuration.
        failures_max: Failures in a row that open it.
        first_s: The first pause, in seconds.
        longest_s: The longest pause, in seconds.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        randomness: Randomness,
        *,
        group: str = "",
        failures_max: int = 3,
        first_s: float = 0.5,
        longest_s: float = 30.0,
    ) -> None:
        self.name = name
        self.reason = ""  #: why it is open; "" while it is closed
        self._group = group
        self._clock = clock
        self._first_s = first_s
        self._breaker = CircuitBreaker(
            clock, failures_max=failures_max, pause_first_s=first_s, pause_max_s=longest_s, randomness=randomness
        )
        self._changed = threading.Condition()

    @contextmanager
    def question(self, wait_s: float) -> Iterator[Question]:
        """Let one question through; during another one's probe, wait up to *wait_s* for its end.

        Raises:
            CheckPostponedError: the circuit is open; `retry_after_s` says for how long.
        """
        self._enter(wait_s)
        question = Question()
        try:
            yield question
        except BaseException as error:
            question.failure = question.failure or sentence_of(error)
            raise
        finally:
            self._leave(question)

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next question may pass; 0 while the circuit is closed."""
        with self._changed:
            return 0.0 if self._breaker.is_probing else self._breaker.retry_after_s

    def note(self, failure: str) -> None:
        """Note a question that did not pass the circuit: why it *failed*, or "" for its answer.

        An answer closes the circuit, a failure counts towards opening it, and does not end a probe under way.
        """
        with self._changed:
            if failure and self._breaker.is_open:
                self.reason = failure
            else:
                self._settle(Question(failure))

    def _enter(self, wait_s: float) -> None:
        deadline_s = self._clock.elapsed_s() + wait_s
        with self._changed:
            while not self._breaker.may_try():
                if not self._breaker.is_probing:
                    raise self._postponed(self._breaker.retry_after_s)
                now_s = self._clock.elapsed_s()
                if now_s >= deadline_s:
                    raise self._postponed(self._first_s)
                self._changed.wait(deadline_s - now_s)

    def _postponed(self, retry_after_s: float) -> CheckPostponedError:
        return CheckPostponedError(
            f"{self.name} is down ({self.reason}); asked again in {retry_after_s:.1f} s", retry_after_s=retry_after_s
        )

    def _leave(self, question: Question) -> None:
        with self._changed:
            self._settle(question)

    def _settle(self, question: Question) -> None:
        was_probing = self._breaker.is_probing
        if not question.failure:
            if self._breaker.succeeded():
                self._report("up")
            self.reason = ""
        elif self._breaker.failed(question.retry_after_s):
            self._report("down", reason=question.failure)
            self.reason = question.failure
        elif was_probing:
            self.reason = question.failure
        self._changed.notify_all()

    def _report(self, change: str, **reason: str) -> None:
        event = f"{self.name.partition(' ')[0]}.{change}"
        LOG.warning(event, extra={"txcore": {"group": self._group, "source": self.name, **reason}})
