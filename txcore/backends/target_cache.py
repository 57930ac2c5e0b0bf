"""A backend's memory of its target topics: answers of the broker, each asked for once for all callers that wait.

A half is stored only when its targets are known, so a backend asks its broker for targets that it does not know. The
broker's question, and the reading of its answer, are the plugin's; the time for which an answer counts, the callers
that wait, and the bound of the memory are here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError

KNOWN_S: Final = 60.0
"""Time, in seconds, for which a target that was found counts as known."""
REFRESH_S: Final = 45.0
"""Age of an answer, in seconds, from which its next use asks again in advance, so that no caller has to wait."""
TARGET_COUNT_MAX: Final = 50_000
"""Largest number of targets remembered; a further one takes the place of the oldest."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Found = Callable[[TxcoreError | None], None]
"""A function that takes None when all targets of a caller were found, else the first error."""


@dataclass(slots=True)
class _Answer(Generic[V]):
    value: V | None
    refusal: MessageRejectedError | None
    until_s: float
    refresh_s: float = math.inf


@dataclass(slots=True)
class _Caller:
    found: Found | None
    left: int = 0


@dataclass(slots=True)
class _Question:
    callers: list[_Caller] = field(default_factory=list)
    is_outdated: bool = False


class TargetCache(Generic[K, V]):
    """The answers for targets, with a value other than None for each target that was found. Thread safe.

    *begin* starts the broker's questions for targets and does not wait for the answers. Each question ends with one
    call of `answered` or `failed`, on any thread, even within *begin*. A refusal counts for *refused_s*.
    """

    def __init__(self, clock: Clock, begin: Callable[[Sequence[K]], None], *, refused_s: float = 0.0) -> None:
        self._clock = clock
        self._begin = begin
        self._refused_s = refused_s
        self._lock = threading.Lock()
        self._answers: dict[K, _Answer[V]] = {}
        self._questions: dict[K, _Question] = {}

    def known(self, target: K, now_s: float) -> V | None:
        """Return the value of a target that was found within `KNOWN_S`, else None; *now_s* is the clock's time."""
        answer = self._answers.get(target)
        if answer is None or now_s >= answer.until_s:
            return None
        if now_s >= answer.refresh_s:
            self._refresh(target, answer)
        return answer.value

    def last(self, target: K) -> V | None:
        """Return the last known value of a target, however old; None if there is none."""
        answer = self._answers.get(target)
        return None if answer is None else answer.value

    def ask(self, targets: Iterable[K], found: Found) -> None:
        """Call *found* exactly once: with None when all *targets* were found, or with the first error.

        The call comes at once if no answer is missing. It never comes if the broker never answers, so the caller keeps
        a deadline.
        """
        now_s = self._clock.elapsed_s()
        caller = _Caller(found)
        refusal: MessageRejectedError | None = None
        unknown: list[K] = []
        asked: list[K] = []
        with self._lock:
            for target in dict.fromkeys(targets):
                answer = self._answers.get(target)
                if answer is None or now_s >= answer.until_s:
                    unknown.append(target)
                else:
                    refusal = refusal or answer.refusal
            if refusal is None:
                caller.left = len(unknown)
                for target in unknown:
                    if target not in self._questions:
                        self._questions[target] = _Question()
                        asked.append(target)
                    self._questions[target].callers.append(caller)
        if refusal is not None or not unknown:
            found(refusal)
        elif asked:
            self._begin(asked)

    def answered(self, target: K, value: V) -> None:
        """End the question for *target*, which was found."""
        now_s = self._clock.elapsed_s()
        self._end(target, _Answer(value, None, now_s + KNOWN_S, now_s + REFRESH_S), None)

    def failed(self, target: K, error: TxcoreError) -> None:
        """End the question for *target*: with a MessageRejectedError that the broker refuses it, else without answer.

        Only a refusal ends what was known of the target before.
        """
        answer: _Answer[V] | None = None
        if isinstance(error, MessageRejectedError):
            answer = _Answer(None, error, self._clock.elapsed_s() + self._refused_s)
        self._end(target, answer, error)

    def share(self, target: K, other: K) -> None:
        """Let the answer for *other*, if there is one, count for *target* too, until one of both is forgotten."""
        with self._lock:
            answer = self._answers.get(other)
            if answer is not None:
                self._remember(target, answer)

    def forget(self, target: K) -> None:
        """Drop the answer for *target*, and for all targets that share it, after the broker refused a message to it.

        The answer of a question that is under way reaches its callers, but is not remembered.
        """
        with self._lock:
            answer = self._answers.pop(target, None)
            if answer is not None:
                answer.until_s = -math.inf
            if target in self._questions:
                self._questions[target].is_outdated = True

    def _refresh(self, target: K, answer: _Answer[V]) -> None:
        with self._lock:
            if answer.refresh_s == math.inf or target in self._questions:
                return
            answer.refresh_s = math.inf
            self._questions[target] = _Question()
        self._begin([target])

    def _end(self, target: K, answer: _Answer[V] | None, error: TxcoreError | None) -> None:
        ended: list[Found] = []
        with self._lock:
            question = self._questions.pop(target, None)
            if question is None:
                return
            if answer is not None and not question.is_outdated:
                self._remember(target, answer)
            for caller in question.callers:
                caller.left -= 1
                if caller.found is not None and (error is not None or not caller.left):
                    ended.append(caller.found)
                    caller.found = None
        for found in ended:
            found(error)

    def _remember(self, target: K, answer: _Answer[V]) -> None:
        self._answers.pop(target, None)
        if len(self._answers) >= TARGET_COUNT_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[target] = answer
