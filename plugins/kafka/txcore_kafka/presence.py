"""Checks for releases whether target topics exist: the broker's "no" refuses a release, but only the second one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaException

from txcore.backends.target_hint import how_to_make
from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError
from txcore_kafka.threads import Worker

FRESH_S: Final = 0.5
"""Greatest age, in seconds, of an answer that is used again: many halves or releases of one topic share it."""
AGAIN_S: Final = 0.5
"""Pause, in seconds, between two questions for a missing topic; a thawed node learns of a new topic meanwhile."""
ABSENT_FOR_S: Final = 5.0
"""Greatest age, in seconds, of a "no" that refuses a release: the questions for other topics also take time."""
TOPIC_COUNT_MAX: Final = 10_000
"""Largest number of topics remembered; a service that publishes to more of them must ask for them again."""


class Presence:
    """The broker's answers about topics. Thread safe.

    A release must `seek` those of its topics first that are not in `present`. A topic that the check of a half or of a
    release has found is not asked for again, until the broker refuses a message to it.

    The pause between two questions has a thread of its own, so that no other work waits for it. One pause serves all
    topics that wait, because a service whose topics were deleted may miss many at once.
    """

    def __init__(self, has_topic: Callable[[str], bool], clock: Clock) -> None:
        self._has_topic = has_topic
        self._clock = clock
        self._worker = Worker("txcore-kafka-presence")
        self._lock = threading.Lock()
        self.present: set[str] = set()  #: the topics that were found
        self._absent: dict[str, float] = {}
        self._sought: dict[str, None] = {}
        self._round: Future[None] | None = None  #: the questions that have not begun yet

    def seek(self, topics: Iterable[str]) -> Future[None]:
        """Find out which of *topics* exist, for `refusal`, together with all others that wait.

        A node that was frozen does not know a new topic when it thaws, so only the second "no" counts. If the broker
        does not answer, the release is tried, and its own outcome shows the result.
        """
        with self._lock:
            self._sought.update(dict.fromkeys(topics))
            if self._round is None:
                self._round = self._worker.submit(self._seek)
            return self._round

    def _seek(self) -> None:
        with self._lock:
            sought, self._sought, self._round = list(self._sought), {}, None
        now_s = self._clock.elapsed_s()
        absent = self._ask([topic for topic in sought if now_s - self._absent.get(topic, -FRESH_S) >= FRESH_S])
        if absent:
            threading.Event().wait(AGAIN_S)
            for topic in self._ask(absent):
                if len(self._absent) >= TOPIC_COUNT_MAX:
                    self._absent.clear()
                self._absent[topic] = self._clock.elapsed_s()

    def _ask(self, topics: Sequence[str]) -> Sequence[str]:
        """Remember the answers for *topics*, up to the first question without an answer; return the missing topics."""
        for topic in topics:
            self._absent.pop(topic, None)  # An old answer does not count any more.
        absent = []
        for topic in topics:
            try:
                is_there = self._has_topic(topic)
            except (KafkaException, TxcoreError):
                break
            if is_there:
                self.note(topic)
            else:
                absent.append(topic)
        return absent

    def note(self, topic: str) -> None:
        """Remember that the broker has *topic*."""
        with self._lock:
            if len(self.present) >= TOPIC_COUNT_MAX:
                self.present.clear()
            self.present.add(topic)
            self._absent.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Ask for *topic* again before the next release: the broker refused a message to it, or did not have it."""
        self.present.discard(topic)

    def refusal(self, topic: str) -> MessageRejectedError | None:
        """Return why nothing can be published to *topic*, if the broker had no such topic a moment ago."""
        absent_s = self._absent.get(topic)
        is_gone = absent_s is not None and self._clock.elapsed_s() - absent_s < ABSENT_FOR_S
        return no_topic(topic) if is_gone else None

    def stop(self, timeout_s: float) -> None:
        """End the thread; topics that still wait fail with ClosedError."""
        self._worker.stop(timeout_s)


def no_topic(topic: str) -> MessageRejectedError:
    """Return the refusal of a message to a missing topic."""
    text = f"topic {topic!r} does not exist on the broker; {how_to_make(topic)}"
    return MessageRejectedError(text, topic=topic, reason="topic")
