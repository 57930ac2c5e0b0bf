"""What is known of target topics: whether they exist, and how large a message they take."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException

from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError
from txcore.records import TargetMessage
from txcore_kafka.codec import check_headers, record_size
from txcore_kafka.control import Control
from txcore_kafka.options import BATCH_BYTES, TOPIC_BYTES_DEFAULT, TOPIC_NAME, is_own_topic
from txcore_kafka.threads import Worker

KNOWN_FOR_S: Final = 60.0
REFRESH_AFTER_S: Final = 45.0
FRESH_S: Final = 0.5
"""Many halves that wait for news of one topic share one answer, also a bad one."""
AGAIN_S: Final = 0.5
"""Pause, in seconds, between two questions for a topic that the broker lacks; a thawed node learns of it meanwhile."""
ABSENT_FOR_S: Final = 5.0
"""Greatest age, in seconds, of a "no" that refuses a release: the broker may have been asked for others since."""
OVERHEAD_MAX: Final = 600
"""Bytes of a message without headers beside its body and key, at most; see `record_size`."""
TOPIC_COUNT_MAX: Final = 10_000
"""Topics remembered; a service that publishes to more of them asks again and again."""


@dataclass(slots=True)
class _Target:
    bytes_max: int
    seen_s: float
    is_asked: bool = False


class Targets:
    """A cache in front of the broker's metadata. Thread safe."""

    def __init__(self, control: Control, worker: Worker, clock: Clock) -> None:
        self._control = control
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Target] = {}
        self._missing: dict[str, float] = {}
        self._found: set[str] = set()  # by releases: they exist, and nothing else is known of them
        self._absent: dict[str, float] = {}  # the same, and they do not

    def examine(self, messages: Sequence[TargetMessage], now_s: float) -> list[str]:
        """Return the topics that must be asked for before *messages* can be judged; empty: all can be published.

        Raises:
            MessageRejectedError: one of them cannot, whatever the broker says.
        """
        unknown: list[str] = []
        for message in messages:
            target = self._known.get(message.topic)
            if target is None or now_s - target.seen_s > KNOWN_FOR_S:
                _check_name(message.topic)
                unknown.append(message.topic)
                continue
            if now_s - target.seen_s > REFRESH_AFTER_S and not target.is_asked:
                target.is_asked = True
                self._worker.submit(functools.partial(self.look_up, [message.topic]))
            if message.headers:
                check_headers(message)
            if _may_exceed(message, target.bytes_max):
                _check_size(message, target.bytes_max)
        return unknown

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Return those of *topics* that must be asked for."""
        now_s = self._clock.elapsed_s()
        found = []
        for topic in dict.fromkeys(topics):
            target = self._known.get(topic)
            if target is None or now_s - target.seen_s > KNOWN_FOR_S:
                found.append(topic)
        return found

    def is_small(self, topic: str) -> bool:
        """Return whether the topic takes less than a full batch, so that its messages travel one by one."""
        target = self._known.get(topic)
        return target is not None and target.bytes_max < BATCH_BYTES

    def look_up(self, topics: Sequence[str]) -> None:
        """Ask the broker about those of *topics* that were not asked for a moment ago; blocks, on a worker's thread.

        Raises:
            MessageRejectedError: one of them does not exist.
            BackendUnavailableError, BackendTimeoutError, ConfigError: no answer, or none for this user.
        """
        now_s = self._clock.elapsed_s()
        asked = [topic for topic in dict.fromkeys(topics) if not self._is_fresh(topic, now_s)]
        if asked:
            counts = self._control.counts(asked)
            self._remember(asked, counts, self._control.settings(list(counts)) if counts else {})
        for topic in topics:
            if topic in self._missing:
                raise _no_topic(topic)

    def doubtful(self, topics: Iterable[str]) -> list[str]:
        """Return those of *topics* that nothing is known of, so that a release must ask for them with `seek` first.

        What a half's check or a release has found once is not asked for again, until the broker refuses something.
        """
        known, found = self._known, self._found
        return [topic for topic in topics if topic not in known and topic not in found]

    def seek(self, topics: Sequence[str], has_topic: Callable[[str], bool]) -> None:
        """Find out with *has_topic* which of *topics* exist, for `refusal`; blocks, on a worker's thread.

        A node that was frozen has not heard of a new topic when it thaws, so a "no" counts the second time. Without an
        answer nothing is known: the release is tried, and its own outcome says what happened.
        """
        now_s = self._clock.elapsed_s()
        asked = [topic for topic in dict.fromkeys(topics) if now_s - self._absent.get(topic, -FRESH_S) >= FRESH_S]
        absent = self._ask(asked, has_topic)
        if absent:
            threading.Event().wait(AGAIN_S)
            for topic in self._ask(absent, has_topic):
                if len(self._absent) >= TOPIC_COUNT_MAX:
                    self._absent.clear()
                self._absent[topic] = self._clock.elapsed_s()

    def _ask(self, topics: Sequence[str], has_topic: Callable[[str], bool]) -> Sequence[str]:
        """Note what the broker says of *topics* until it says nothing; returns those that it does not have."""
        for topic in topics:
            self._absent.pop(topic, None)  # What was so a while ago is no answer.
        absent = []
        for topic in topics:
            try:
                is_there = has_topic(topic)
            except (KafkaException, TxcoreError):
                break
            if not is_there:
                absent.append(topic)
                continue
            with self._lock:
                if len(self._found) >= TOPIC_COUNT_MAX:
                    self._found.clear()
                self._found.add(topic)
        return absent

    def refusal(self, topic: str) -> MessageRejectedError | None:
        """Return why nothing can be published to *topic*, if the broker had no such topic a moment ago."""
        absent_s = self._absent.get(topic)
        is_gone = absent_s is not None and self._clock.elapsed_s() - absent_s < ABSENT_FOR_S
        return _no_topic(topic) if is_gone else None

    def _is_fresh(self, topic: str, now_s: float) -> bool:
        target = self._known.get(topic)
        seen_s = self._missing.get(topic) if target is None else target.seen_s
        return seen_s is not None and now_s - seen_s < FRESH_S

    def _remember(
        self, asked: Sequence[str], counts: Mapping[str, int], settings: Mapping[str, Mapping[str, str]]
    ) -> None:
        now_s = self._clock.elapsed_s()
        with self._lock:
            for memory in (self._known, self._missing):
                if len(memory) + len(asked) > TOPIC_COUNT_MAX:
                    memory.clear()
            for topic in asked:
                self._known.pop(topic, None)
                self._missing.pop(topic, None)
                if topic in counts:
                    self._absent.pop(topic, None)
                    text = settings.get(topic, {}).get("max.message.bytes", "")
                    self._known[topic] = _Target(int(text) if text else TOPIC_BYTES_DEFAULT, now_s)
                else:
                    self._missing[topic] = now_s

    def forget(self, topic: str) -> None:
        """Ask again before the next half and the next release: the broker refused something."""
        self._known.pop(topic, None)
        self._found.discard(topic)


def _no_topic(topic: str) -> MessageRejectedError:
    text = f"topic {topic!r} does not exist on the broker, and txcore makes no target topics"
    return MessageRejectedError(text, topic=topic, reason="topic")


def _check_name(topic: str) -> None:
    if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        text = f"{topic!r} is no topic of Kafka: letters, digits, '.', '_' and '-', at most 249 of them"
        raise MessageRejectedError(text, topic=topic, reason="topic")
    if is_own_topic(topic):
        raise MessageRejectedError(f"{topic!r} is not for messages", topic=topic, reason="topic")


def _may_exceed(message: TargetMessage, bytes_max: int) -> bool:
    """Return whether the size must be looked at; a tiny plain message is left to the broker, as it is all overhead."""
    size = len(message.body) + len(message.key or b"")
    if size + OVERHEAD_MAX <= bytes_max and not message.headers:
        return False
    return bool(message.headers or message.key) or size > bytes_max // 2


def _check_size(message: TargetMessage, bytes_max: int) -> None:
    size = record_size(message.key, message.body, message.headers)
    if size > bytes_max:
        text = f"a message of {size} bytes for {message.topic!r}, which takes {bytes_max} (`max.message.bytes`)"
        raise MessageRejectedError(text, topic=message.topic, reason="size")
