"""Checks whether a subject belongs to a stream that keeps acknowledged messages; answers are remembered for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from txcore.backends.target_cache import Found, TargetCache
from txcore.backends.target_hint import how_to_make
from txcore.clock import Clock
from txcore.errors import MessageRejectedError
from txcore.records import TargetMessage
from txcore_nats.codec import STREAM_NOT_FOUND, ApiError, check_message, check_subject, translate
from txcore_nats.connection import Api, LoopThread
from txcore_nats.options import INBOX_PREFIX, NAME_PREFIX, SHARED_PREFIX, Options
from txcore_nats.publishing import Publisher

STREAMS_MAX: Final = 1_000
RESERVED_SUBJECTS: Final = (f"{NAME_PREFIX}.", f"{SHARED_PREFIX}.", "$", INBOX_PREFIX)
NANOSECONDS: Final = 1_000_000_000


@dataclass(slots=True)
class TargetStream:
    """The checked properties of a stream that holds targets."""

    name: str
    subjects: tuple[tuple[str, ...], ...]
    size_max: int


class TargetChecks:
    """The known streams of targets. On the loop's thread."""

    def __init__(self, loop: LoopThread, api: Api, publisher: Publisher, options: Options, clock: Clock) -> None:
        self._loop = loop
        self._api = api
        self._publisher = publisher
        self._options = options
        self._clock = clock
        self._cache: TargetCache[str, TargetStream] = TargetCache(clock, self._begin)
        self._examples: dict[str, str] = {}  # stream -> a subject in it, for which it was found

    def check(self, message: TargetMessage) -> bool:
        """Return True if the message's stream is known and accepts it; False if the server must be asked.

        Raises:
            MessageRejectedError: the message could not be published.
        """
        stream = self._known(message.topic)
        if stream is None:
            check_subject(message.topic, RESERVED_SUBJECTS)
        check_message(message, self._size_max(stream))
        return stream is not None

    def ask(self, subjects: Iterable[str], found: Found) -> None:
        """Call *found* once, when the streams of *subjects* are known, or with the first error."""
        self._cache.ask(subjects, found)

    def forget(self, subject: str) -> None:
        """Forget the subject's stream after a refusal, so that it is asked for again."""
        stream = self._cache.last(subject)
        if stream is not None:
            self._examples.pop(stream.name, None)
        self._cache.forget(subject)

    def _known(self, subject: str) -> TargetStream | None:
        now_s = self._clock.elapsed_s()
        stream = self._cache.known(subject, now_s)
        if stream is not None:
            return stream
        tokens = subject.split(".")
        for example in self._examples.values():
            stream = self._cache.known(example, now_s)
            if stream is not None and any(covers(pattern, tokens) for pattern in stream.subjects):
                self._cache.share(subject, example)
                return stream
        return None

    def _size_max(self, stream: TargetStream | None) -> int:
        size_max = self._publisher.payload_max or 1 << 62
        return size_max if stream is None or stream.size_max <= 0 else min(size_max, stream.size_max)

    def _begin(self, subjects: Sequence[str]) -> None:
        for subject in subjects:
            self._loop.spawn(self._ask(subject))

    async def _ask(self, subject: str) -> None:
        try:
            stream = await self._find(subject)
        except Exception as error:  # noqa: BLE001 - reported to the waiting callers
            self._cache.failed(subject, translate(error, f"looking for the stream of {subject!r}"))
            return
        if len(self._examples) >= STREAMS_MAX:
            self._examples.clear()
        self._examples[stream.name] = subject
        self._cache.answered(subject, stream)

    async def _find(self, subject: str) -> TargetStream:
        config = await self._config(subject)
        self._require_keeping(subject, config)
        return TargetStream(config["name"], _patterns(config), config.get("max_msg_size", -1))

    async def _config(self, subject: str) -> dict[str, Any]:
        """Return the settings of the stream that has *subject*: one that the URL names, or one that JetStream finds."""
        names = self._options.target_streams or await self._names(subject)
        for name in names:
            try:
                config: dict[str, Any] = (await self._api.call(f"STREAM.INFO.{name}"))["config"]
            except ApiError as error:
                if error.err_code != STREAM_NOT_FOUND:
                    raise
                continue
            if not self._options.target_streams or is_covered(subject, config):
                return config
        if self._options.target_streams:
            text = f"is not in stream {' or '.join(map(repr, names))}, where the option stream has all targets"
            raise _rejected(subject, text, "topic")
        text = f"is in no stream; make one that has it among its subjects, or {how_to_make(subject)}"
        raise _rejected(subject, text, "topic")

    async def _names(self, subject: str) -> Sequence[str]:
        answer = await self._api.call("STREAM.NAMES", {"subject": subject})
        return [str(name) for name in answer.get("streams") or ()]

    def _require_keeping(self, subject: str, config: dict[str, Any]) -> None:
        """Refuse streams that do not acknowledge stored messages, or forget ids sooner than promised."""
        name = config["name"]
        for key in ("no_ack", "sealed"):
            if config.get(key):
                raise _rejected(subject, f"is in stream {name!r}, which has {key}", "topic")
        if config.get("persist_mode") == "async":
            raise _rejected(subject, f"is in stream {name!r}, which acknowledges before it stores", "topic")
        window_s = config.get("duplicate_window", 0) / NANOSECONDS
        if window_s < self._options.duplicate_window_s and not self._options.is_atomic:
            text = (
                f"is in stream {name!r}, which remembers ids for {window_s:g} s; this backend promises "
                f"duplicate_window_s={self._options.duplicate_window_s:g}: raise the one or lower the other"
            )
            raise _rejected(subject, text, "topic")


def is_covered(subject: str, config: Mapping[str, Any]) -> bool:
    """Return whether the stream with these settings has *subject*."""
    tokens = subject.split(".")
    return any(covers(pattern, tokens) for pattern in _patterns(config))


def covers(pattern: tuple[str, ...], tokens: list[str]) -> bool:
    """Return whether a subject, as its tokens, matches a stream's subject with its wildcards."""
    if pattern[-1] == ">":
        if len(tokens) < len(pattern):
            return False
        pattern = pattern[:-1]
    elif len(tokens) != len(pattern):
        return False
    return all(each in {"*", token} for each, token in zip(pattern, tokens, strict=False))


def _patterns(config: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(pattern.split(".")) for pattern in config.get("subjects") or ())


def _rejected(subject: str, problem: str, reason: str) -> MessageRejectedError:
    return MessageRejectedError(f"topic {subject!r} {problem}", topic=subject, reason=reason)
