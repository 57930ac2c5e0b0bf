"""Checks whether a subject belongs to a stream that keeps acknowledged messages; answers are remembered for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import MessageRejectedError, TxcoreError
from txcore.records import TargetMessage
from txcore_nats.codec import STREAM_NOT_FOUND, ApiError, check_message, check_subject, translate
from txcore_nats.connection import Api, LoopThread
from txcore_nats.options import NAME_PREFIX, SHARED_PREFIX, Options
from txcore_nats.publishing import Publisher

REMEMBER_S: Final = 30.0
STREAMS_MAX: Final = 1_000
SUBJECTS_MAX: Final = 50_000
RESERVED_SUBJECTS: Final = (f"{NAME_PREFIX}.", f"{SHARED_PREFIX}.", "$", "_INBOX.")
NANOSECONDS: Final = 1_000_000_000

Found = Callable[[TxcoreError | None], None]


@dataclass(slots=True)
class TargetStream:
    """The checked properties of a stream that holds targets."""

    name: str
    subjects: tuple[tuple[str, ...], ...]
    size_max: int
    until_s: float


class TargetChecks:
    """The known streams of targets. On the loop's thread."""

    def __init__(self, loop: LoopThread, api: Api, publisher: Publisher, options: Options, clock: Clock) -> None:
        self._loop = loop
        self._api = api
        self._publisher = publisher
        self._options = options
        self._clock = clock
        self._streams: dict[str, TargetStream] = {}
        self._subjects: dict[str, TargetStream] = {}
        self._asking: dict[str, list[Found]] = {}

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

    def ask(self, subject: str, found: Found) -> None:
        """Ask for the subject's stream; call *found* with None when it is known, or with the error."""
        waiting = self._asking.get(subject)
        if waiting is not None:
            waiting.append(found)
            return
        self._asking[subject] = [found]
        self._loop.spawn(self._ask(subject))

    def forget(self, subject: str) -> None:
        """Forget the subject's stream after a refusal, so that it is asked for again."""
        stream = self._subjects.pop(subject, None)
        if stream is not None:
            self._streams.pop(stream.name, None)
            stream.until_s = 0.0

    def _known(self, subject: str) -> TargetStream | None:
        now_s = self._clock.elapsed_s()
        stream = self._subjects.get(subject)
        if stream is not None and stream.until_s > now_s:
            return stream
        tokens = subject.split(".")
        for stream in self._streams.values():
            if stream.until_s > now_s and any(covers(pattern, tokens) for pattern in stream.subjects):
                if len(self._subjects) >= SUBJECTS_MAX:
                    self._subjects.clear()
                self._subjects[subject] = stream
                return stream
        return None

    def _size_max(self, stream: TargetStream | None) -> int:
        size_max = self._publisher.payload_max or 1 << 62
        return size_max if stream is None or stream.size_max <= 0 else min(size_max, stream.size_max)

    async def _ask(self, subject: str) -> None:
        error: TxcoreError | None = None
        try:
            await self._find(subject)
        except Exception as raised:  # noqa: BLE001 - reported to the waiting callers
            error = translate(raised, f"looking for the stream of {subject!r}")
        for found in self._asking.pop(subject):
            found(error)

    async def _find(self, subject: str) -> None:
        try:
            name = await self._name(subject)
            config = (await self._api.call(f"STREAM.INFO.{name}"))["config"]
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            raise _rejected(subject, "is in no stream any more", "topic") from error
        self._require_keeping(subject, config)
        if self._options.is_atomic and name != self._options.stream:
            text = f"is in stream {name!r}; with release=atomic all targets are in stream {self._options.stream!r}"
            raise _rejected(subject, text, "topic")
        if len(self._streams) >= STREAMS_MAX:
            self._streams.clear()
        patterns = tuple(tuple(pattern.split(".")) for pattern in config.get("subjects") or ())
        until_s = self._clock.elapsed_s() + REMEMBER_S
        self._streams[name] = TargetStream(name, patterns, config.get("max_msg_size", -1), until_s)

    async def _name(self, subject: str) -> str:
        answer = await self._api.call("STREAM.NAMES", {"subject": subject})
        names = answer.get("streams") or ()
        if not names:
            raise _rejected(subject, "is in no stream; make one that has it among its subjects", "topic")
        return str(names[0])

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


def covers(pattern: tuple[str, ...], tokens: list[str]) -> bool:
    """Return whether a subject, as its tokens, matches a stream's subject with its wildcards."""
    if pattern[-1] == ">":
        if len(tokens) < len(pattern):
            return False
        pattern = pattern[:-1]
    elif len(tokens) != len(pattern):
        return False
    return all(each in {"*", token} for each, token in zip(pattern, tokens, strict=False))


def _rejected(subject: str, problem: str, reason: str) -> MessageRejectedError:
    return MessageRejectedError(f"topic {subject!r} {problem}", topic=subject, reason=reason)
