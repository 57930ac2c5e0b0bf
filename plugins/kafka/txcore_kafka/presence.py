"""Whether target topics exist, as releases need to know it: the broker's "no" is a refusal, but only the second one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaException

from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError
from txcore_kafka.threads import Worker

FRESH_S: Final = 0.5
"""Age, in seconds, of a "no" that is not asked for again: many releases to one topic share it."""
AGAIN_S: Final = 0.5
"""Pause, in seconds, between two questions for a topic that the broker lacks; a thawed node learns of it meanwhile."""
ABSENT_FOR_S: Final = 5.0
"""Greatest age, in seconds, of a "no" that refuses a release: the broker may have been asked for others since."""
TOPIC_COUNT_MAX: Final = 10_000
"""Number of topics remembered; a service that publishes to more of them asks again and again."""


class Presence:
    """What the broker said of topics. Thread safe.

    The pause between two questions has a thread of its own, so that nothing else waits for it; and one pause serves all
    topics that wait for one, because a service whose topics were deleted may miss many at once.
    """

    def __init__(self, has_topic: Callable[[str], bool], clock: Clock) -> None:
        self._has_topic = has_topic
        self._clock = clock
        self._worker = Worker("txcore-kafka-presence")
        self._lock = threading.Lock()
        self._present: set[str] = set()
        self._absent: dict[str, float] = {}
        self._sought: dict[str, None] = {}
        self._round: Future[None] | None = None  #: that has not begun yet

    def doubtful(self, topics: Iterable[str]) -> list[str]:
        """Return those of *topics* that nothing is known of, so that a release must `seek` them first.

        A topic that a half's check or a release has found is not asked for again, until the broker refuses something.
        """
        present = self._present
        return [topic for topic in topics if topic not in present]

    def seek(self, topics: Iterable[str]) -> Future[None]:
        """Find out which of *topics* exist, for `refusal`, together with all others that wait.

        A node that was frozen has not heard of a new topic when it thaws, so a "no" counts the second time. Without an
        answer nothing is known: the release is tried, and its own outcome says what happened.
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
        """Note what the broker says of *topics* until it says nothing; returns those that it does not have."""
        for topic in topics:
            self._absent.pop(topic, None)  # What was so a while ago is no answer.
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
            if len(self._present) >= TOPIC_COUNT_MAX:
                self._present.clear()
            self._present.add(topic)
            self._absent.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Ask for *topic* before the next release: the broker refused something, or did not have it."""
        self._present.discard(topic)

    def refusal(self, topic: str) -> MessageRejectedError | None:
        """Return why nothing can be published to *topic*, if the broker had no such topic a moment ago."""
        absent_s = self._absent.get(topic)
        is_gone = absent_s is not None and self._clock.elapsed_s() - absent_s < ABSENT_FOR_S
        return no_topic(topic) if is_gone else None

    def stop(self, timeout_s: float) -> None:
        """End the thread; topics that still wait fail with ClosedError."""
        self._worker.stop(timeout_s)


def no_topic(topic: str) -> MessageRejectedError:
    """Return the refusal of a message to a topic that is not there."""
    text = f"topic {topic!r} does not exist on the broker, and txcore makes no target topics"
    return MessageRejectedError(text, topic=topic, reason="topic")
