"""Payload, key and headers arrive byte for byte, from the producer and from the checker."""

from __future__ import annotations

import random
import zlib

import pytest

from txcore import EndState, Message, wire
from txcore_conformance.harness import Delivered
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers, Kit

ROUNDS = 15
EVERY_BYTE = bytes(range(256))
BODIES = {
    "empty": b"",
    "one zero byte": b"\x00",
    "every byte": EVERY_BYTE,
    "not utf-8": b"\xff\xfe\xc3\x28",
    "looks like msgpack": b"\x93\xa3txh\x01\xc4\x00",
    "compressed": zlib.compress(EVERY_BYTE * 50),
}
KEYS = {"no key": None, "text": b"42", "binary": EVERY_BYTE[:64]}
HEADERS: dict[str, dict[str, str | bytes]] = {
    "none": {},
    "text": {"trace": "a-1", "empty": ""},
    "not ascii": {"name": "Grüße 你好 🙂"},
    "bytes": {"raw": EVERY_BYTE[:32], "nothing": b""},
    "mixed": {"a": "1", "b": b"\x00\x01", "content-type": "application/x; q=1"},
}


def _plain(delivered: Delivered) -> tuple[bytes | None, bytes, dict[str, bytes]]:
    """Return the parts that a consumer sees: the key (also from a header), the body, the user's headers."""
    headers = {name: value.encode() if isinstance(value, str) else value for name, value in delivered.headers.items()}
    key = headers.pop(wire.HEADER_KEY, None) if delivered.key is None else delivered.key
    return key, delivered.body, {name: value for name, value in headers.items() if not name.startswith("txcore-")}


def _expected(message: Message) -> tuple[bytes | None, bytes, dict[str, bytes]]:
    headers = {
        name: value.encode() if isinstance(value, str) else value for name, value in (message.headers or {}).items()
    }
    return message.key, message.body, headers


def _sent(kit: Kit, topic: str, message: Message) -> None:
    """Send one message by the producer and one by the checker, and compare both."""
    transaction = kit.producer().begin()
    transaction.publish(message)
    transaction.prepare()
    assert EndState.ACCEPTED is transaction.commit().state
    kit.orphan(message)
    kit.sweep(kit.checker(Answers(COMMIT)))
    assert [_expected(message)] * 2 == [_plain(delivered) for delivered in kit.delivered(topic)]


@pytest.mark.parametrize("name", BODIES)
def test_bodies_arrive_unchanged(kit: Kit, topic: str, name: str) -> None:
    """A message's body arrives with the same bytes."""
    _sent(kit, topic, Message(topic, BODIES[name]))


@pytest.mark.parametrize("name", KEYS)
def test_keys_arrive_unchanged(kit: Kit, topic: str, name: str) -> None:
    """A message's key arrives as the record's key, or in the header `txcore-key` where records have no key."""
    _sent(kit, topic, Message(topic, b"body", KEYS[name]))


def test_an_empty_key_is_a_key(kit: Kit, topic: str) -> None:
    """The key b"" arrives as b"", not as None."""
    _sent(kit, topic, Message(topic, b"body", b""))


@pytest.mark.parametrize("name", HEADERS)
def test_headers_arrive_unchanged(kit: Kit, topic: str, name: str) -> None:
    """Headers of text and bytes, empty and not ASCII, arrive as the bytes that were sent."""
    _sent(kit, topic, Message(topic, b"body", None, HEADERS[name]))


def test_many_headers_arrive(kit: Kit, topic: str) -> None:
    """A message with a hundred headers arrives with all of them."""
    _sent(kit, topic, Message(topic, b"body", None, {f"header-{number:03d}": str(number) for number in range(100)}))


def test_a_large_body_arrives(kit: Kit, topic: str) -> None:
    """An incompressible body of half the backend's limit arrives."""
    size = min(kit.promises.body_size_max // 2, 4_000_000)
    _sent(kit, topic, Message(topic, random.Random(7).randbytes(size)))


def test_fifteen_rounds_of_checks_leave_the_bytes_unchanged(kit: Kit, topic: str) -> None:
    """A binary, compressed body is delivered unchanged after 15 checks."""
    message = Message(topic, zlib.compress(EVERY_BYTE * 100), EVERY_BYTE, {"raw": b"\x00\xff", "text": "ü"})
    kit.orphan(message)
    listener: Answers = Answers(lambda: UNKNOWN if len(listener.asked) <= ROUNDS else COMMIT)
    kit.sweep(kit.checker(listener, check_max=ROUNDS + 5))
    kit.history.at_rest = True
    assert [(message,)] * (ROUNDS + 1) == [half.messages for half in listener.asked]
    assert [_expected(message)] == [_plain(delivered) for delivered in kit.delivered(topic)]


def test_fifteen_discards_and_resumes_leave_the_bytes_unchanged(kit: Kit, topic: str) -> None:
    """Fifteen generations of one half carry the same bytes."""
    message = Message(topic, EVERY_BYTE, b"\x00", {"raw": b"\xff"})
    identity = kit.orphan(message).transaction_id
    checker = kit.checker(Answers(UNKNOWN), check_max=1)
    for _ in range(ROUNDS):
        kit.sweep(checker)
        kit.operator().resume(identity)
    checker.stop()
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.history.at_rest = True
    assert ROUNDS == kit.journey(identity).generation
    assert [_expected(message)] == [_plain(delivered) for delivered in kit.delivered(topic)]
