"""The checks of a half against its target topics: they exist, and they accept messages of this size."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock
from txcore.errors import MessageRejectedError
from txcore.records import TargetMessage
from txcore_kafka.codec import check_headers, record_size
from txcore_kafka.control import Control
from txcore_kafka.options import BATCH_BYTES, TOPIC_BYTES_DEFAULT, TOPIC_NAME, is_own_topic
from txcore_kafka.presence import FRESH_S, TOPIC_COUNT_MAX, Presence, no_topic
from txcore_kafka.threads import Worker

KNOWN_FOR_S: Final = 60.0
REFRESH_AFTER_S: Final = 45.0
OVERHEAD_MAX: Final = 600
"""Most bytes of a message without headers, besides its body and key; see `record_size`."""


@dataclass(slots=True)
class _Target:
    bytes_max: int
    seen_s: float
    is_asked: bool = False


class Targets:
    """A cache in front of the broker's metadata. Thread safe."""

    def __init__(self, control: Control, presence: Presence, worker: Worker, clock: Clock) -> None:
        self._control = control
        self._presence = presence
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Target] = {}
        self._missing: dict[str, float] = {}

    def examine(self, messages: Sequence[TargetMessage], now_s: float) -> list[str]:
        """Return the topics to ask the broker for before *messages* can be judged; if empty, all can be published.

        Raises:
            MessageRejectedError: one of the messages cannot be published.
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
        """Return those of *topics* that the broker must be asked for."""
        now_s = self._clock.elapsed_s()
        found = []
        for topic in dict.fromkeys(topics):
            target = self._known.get(topic)
            if target is None or now_s - target.seen_s > KNOWN_FOR_S:
                found.append(topic)
        return found

    def is_small(self, topic: str) -> bool:
        """Return whether the topic accepts less than a full batch, so that its messages are sent one by one."""
        target = self._known.get(topic)
        return target is not None and target.bytes_max < BATCH_BYTES

    def look_up(self, topics: Sequence[str]) -> None:
        """Ask the broker for those of *topics* without an answer within `FRESH_S`; blocks, on a worker's thread.

        Raises:
            MessageRejectedError: one of the topics does not exist.
            BackendUnavailableError, BackendTimeoutError, ConfigError: the broker gave no answer, or refused this user.
        """
        now_s = self._clock.elapsed_s()
        asked = [topic for topic in dict.fromkeys(topics) if not self._is_fresh(topic, now_s)]
        if asked:
            counts = self._control.counts(asked)
            self._remember(asked, counts, self._control.settings(list(counts)) if counts else {})
        for topic in topics:
            if topic in self._missing:
                raise no_topic(topic)

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
                    self._presence.note(topic)
                    text = settings.get(topic, {}).get("max.message.bytes", "")
                    self._known[topic] = _Target(int(text) if text else TOPIC_BYTES_DEFAULT, now_s)
                else:
                    self._presence.forget(topic)
                    self._missing[topic] = now_s

    def forget(self, topic: str) -> None:
        """Ask for *topic* again before the next half and the next release: the broker refused a message to it."""
        self._known.pop(topic, None)
        self._presence.forget(topic)


def _check_name(topic: str) -> None:
    if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        text = f"{topic!r} is no topic of Kafka: letters, digits, '.', '_' and '-', at most 249 of them"
        raise MessageRejectedError(text, topic=topic, reason="topic")
    if is_own_topic(topic):
        raise MessageRejectedError(f"{topic!r} is not for messages", topic=topic, reason="topic")


def _may_exceed(message: TargetMessage, bytes_max: int) -> bool:
    """Return whether the size must be checked; the broker checks a tiny plain message, which is mostly overhead."""
    size = len(message.body) + len(message.key or b"")
    if size + OVERHEAD_MAX <= bytes_max and not message.headers:
        return False
    return bool(message.headers or message.key) or size > bytes_max // 2


def _check_size(message: TargetMessage, bytes_max: int) -> None:
    size = record_size(message.key, message.body, message.headers)
    if size > bytes_max:
        text = f"a message of {size} bytes for {message.topic!r}, which takes {bytes_max} (`max.message.bytes`)"
        raise MessageRejectedError(text, topic=message.topic, reason="size")
