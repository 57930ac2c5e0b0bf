"""The messages in the kit's topics: what a test expects, and what is said when it is not there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from txcore.memory import MemoryBroker
from txcore.message import HeaderValue, Message
from txcore.wire import HEADER_ID

SHOWN_MAX: Final = 20
"""Most messages, and most bytes of a body in tens, that a text shows."""


class _Any:
    """The value that a test does not care about; None is one that JSON has."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any()


class Expected(msgspec.Struct, frozen=True):
    """The message that a test expects; None, and `ANY` for the value, leave a part open."""

    body: bytes | None
    value: Any
    key: bytes | None
    headers: Mapping[str, HeaderValue]

    def matches(self, message: Message) -> bool:
        """Return whether *message* is one of these; further headers do not matter."""
        found = message.headers or {}
        return (
            (self.body is None or self.body == message.body)
            and (self.value is ANY or self.value == _value_of(message))
            and (self.key is None or self.key == message.key)
            and all(name in found and _bytes(found[name]) == _bytes(self.headers[name]) for name in self.headers)
        )

    def __str__(self) -> str:
        """Return the expectation in words."""
        parts = [f"the body {self.body!r}"] if self.body is not None else []
        parts += [f"the value {self.value!r}"] if self.value is not ANY else []
        parts += [f"the key {self.key!r}"] if self.key is not None else []
        parts += [f"the headers {dict(self.headers)!r}"] if self.headers else []
        return " with " + " and ".join(parts) if parts else ""


def expected(body: bytes | str | None, value: Any, key: bytes | str | None, headers: Any) -> Expected:
    """Return the expectation of a test; texts become UTF-8."""
    return Expected(None if body is None else _bytes(body), value, None if key is None else _bytes(key), headers or {})


def messages_in(broker: MemoryBroker, topic: str) -> list[Message]:
    """Return every message in a topic, in order, as a consumer sees it: repeated ones and txcore's headers, too."""
    with broker.lock:
        targets = list(broker.topics.get(topic, ()))
    return [Message(topic, each.body, each.key, each.headers) for each in targets]


def distinct(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without repetitions, as an inbox does: copies have the same id."""
    return list({(message.headers or {}).get(HEADER_ID, id(message)): message for message in messages}.values())


def explanation(broker: MemoryBroker, topic: str, left: Sequence[str]) -> str:
    """Return what is in the topics, and *left*, the lines about what is not published yet."""
    there = distinct(messages_in(broker, topic))
    lines = [f"in {topic!r}:"] if there else []
    lines += [f"  {number}. {_shown(message)}" for number, message in enumerate(there[:SHOWN_MAX], 1)]
    lines += [f"  and {len(there) - SHOWN_MAX} more"] if len(there) > SHOWN_MAX else []
    counts = {name: len(distinct(messages_in(broker, name))) for name in sorted(broker.topics) if name != topic}
    others = ", ".join(f"{name!r} ({count})" for name, count in counts.items() if count)
    lines += [f"in other topics: {others}"] if others else []
    lines += ["not published:", *(f"  {line}" for line in left)] if left else ["no transaction is undecided or parked"]
    return "\n".join(lines)


def _value_of(message: Message) -> Any:
    try:
        return json.loads(message.body)
    except ValueError:
        return ANY


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _shown(message: Message) -> str:
    body = repr(message.body if len(message.body) <= 10 * SHOWN_MAX else message.body[: 10 * SHOWN_MAX] + b"...")
    headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith("txcore-")}
    key = "" if message.key is None else f"key {message.key!r}, "
    return f"{key}body {body}" + (f", headers {headers!r}" if headers else "")
