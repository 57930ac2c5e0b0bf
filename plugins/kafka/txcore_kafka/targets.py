"""The checks of a half against its target topics: they exist, and they accept messages of this size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final, cast

from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined] # it lists no names of its own

from txcore.backends.target_cache import Found, TargetCache
from txcore.clock import Clock
from txcore.columns import HalfColumns
from txcore.errors import MessageRejectedError, TxcoreError
from txcore.records import HalfRecord, TargetMessage
from txcore_kafka.codec import check_headers, record_size
from txcore_kafka.control import Control
from txcore_kafka.options import BATCH_BYTES, TOPIC_BYTES_DEFAULT, check_target_name
from txcore_kafka.presence import FRESH_S, Presence, no_topic
from txcore_kafka.threads import Worker

OVERHEAD_MAX: Final = 600
"""Most bytes of a message without headers, besides its body and key; see `record_size`."""


class Targets:
    """The most bytes of a message for each target topic, asked for on *worker*. Thread safe."""

    def __init__(self, control: Control, presence: Presence, worker: Worker, clock: Clock) -> None:
        self._control = control
        self._presence = presence
        self._worker = worker
        self._clock = clock
        self.small: set[str] = set()  #: topics that accept less than a full batch: their messages are sent one by one
        self._bytes_max: TargetCache[str, int] = TargetCache(clock, self._begin, refused_s=FRESH_S)

    def accept(self, halves: HalfColumns, size_max: int, now_s: float) -> bool:
        """Return whether all of *halves* certainly can be published, and have *size_max* bytes at most."""
        size, known = max(map(len, halves.bodies)), self._bytes_max.known
        if size > size_max or halves.has_headers:
            return False
        return all(size + OVERHEAD_MAX <= (known(topic, now_s) or 0) for topic in halves.topics)

    def examine(self, half: HalfRecord, limits: dict[str, int], now_s: float) -> Sequence[str]:
        """Return the topics to ask for before the half's messages can be judged; if empty, all can be published.

        Args:
            limits: The limits that were found for the same *now_s* before, 0 for a topic to ask for; empty at first.

        Raises:
            MessageRejectedError: one of the messages cannot be published.
        """
        size = len(half.body) + OVERHEAD_MAX  # more than any of its messages, which are in it
        for message in half.messages:
            limit = limits.get(message.topic)
            if limit is None:
                limit = limits[message.topic] = self._bytes_max.known(message.topic, now_s) or 0
            if size > limit or message.headers:
                return self._examine_each(half.messages, now_s)
        return ()

    def _examine_each(self, messages: Sequence[TargetMessage], now_s: float) -> list[str]:
        unknown: list[str] = []
        for message in messages:
            topic = message.topic
            bytes_max = self._bytes_max.known(topic, now_s)
            if bytes_max is None:
                check_target_name(topic)
                unknown.append(topic)
                continue
            if message.headers:
                check_headers(message)
                _check_size(message, bytes_max)
            elif len(message.body) + len(message.key or b"") + OVERHEAD_MAX > bytes_max:
                _check_large(message, bytes_max)
        return unknown

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Return those of *topics* that the broker must be asked for."""
        now_s = self._clock.elapsed_s()
        return [topic for topic in dict.fromkeys(topics) if self._bytes_max.known(topic, now_s) is None]

    def ask(self, topics: Iterable[str], found: Found) -> None:
        """Call *found* once, here or on the worker's thread: with None if *topics* exist, or with the first error.

        The error is a MessageRejectedError for a missing topic, a ConfigError for one to which this user may not write,
        another one if the broker gave no answer.
        """
        self._bytes_max.ask(topics, found)

    def forget(self, topic: str) -> None:
        """Ask for *topic* again before the next half and the next release: the broker refused a message to it."""
        self._bytes_max.forget(topic)
        self._presence.forget(topic)

    def _begin(self, topics: Sequence[str]) -> None:
        self._worker.submit(lambda: self._found(topics)).add_done_callback(lambda found: self._end(topics, found))

    def _found(self, topics: Sequence[str]) -> dict[str, int | TxcoreError]:
        """Return the most bytes of a message for those of *topics* that exist, or why none may be sent; blocks."""
        seen = self._control.look(topics, AclOperation.WRITE)
        settings = self._control.settings(list(seen.counts)) if seen.counts else {}
        texts = {topic: settings.get(topic, {}).get("max.message.bytes", "") for topic in seen.counts}
        bytes_max = {topic: int(text) if text else TOPIC_BYTES_DEFAULT for topic, text in texts.items()}
        return {**bytes_max, **seen.refusals}

    def _end(self, topics: Sequence[str], found: Future[dict[str, int | TxcoreError]]) -> None:
        error = cast("TxcoreError | None", found.exception())
        for topic in topics:
            answer = found.result().get(topic) if error is None else error
            if isinstance(answer, TxcoreError):
                self._bytes_max.failed(topic, answer)
            elif answer is not None:
                self._presence.note(topic)
                (self.small.add if answer < BATCH_BYTES else self.small.discard)(topic)
                self._bytes_max.answered(topic, answer)
            else:
                self._presence.forget(topic)
                self._bytes_max.failed(topic, no_topic(topic))


def _check_large(message: TargetMessage, bytes_max: int) -> None:
    """Check the size; the broker itself checks a plain message that is mostly overhead."""
    if message.key or len(message.body) > bytes_max // 2:
        _check_size(message, bytes_max)


def _check_size(message: TargetMessage, bytes_max: int) -> None:
    size = record_size(message.key, message.body, message.headers)
    if size > bytes_max:
        text = f"a message of {size} bytes for {message.topic!r}, which takes {bytes_max} (`max.message.bytes`)"
        raise MessageRejectedError(text, topic=message.topic, reason="size")
