"""A broker's limits: full and small targets, a full half log, retention; other transactions are not affected."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any, cast

import pytest

from txcore import HalfRefusedError, Message, MessageRejectedError, Transaction
from txcore.ids import TransactionId
from txcore.port import Backend
from txcore.records import LogKind, OpKind, ParkCode, Status
from txcore_conformance import live_limits, raw
from txcore_conformance.kit import COMMIT, PARTITION_COUNT, UNKNOWN, Answers, Kit

LIMIT_BYTES = 4_096
FULL_AT = 1
LOG_BYTES = 1_000_000
BODY_BYTES = 100_000


class _Forgetful:
    """A backend that reports that its half log keeps halves for only *retention_s*."""

    def __init__(self, backend: Backend, retention_s: float) -> None:
        self._backend = backend
        self.capabilities = replace(backend.capabilities, half_retention_s=retention_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def _unique(name: str) -> str:
    return f"{name}-{secrets.token_hex(5)}"


def _parked(kit: Kit, transaction_id: TransactionId) -> list[str]:
    return [parked.code for parked in kit.journey(transaction_id).parked]


def test_two_targets_on_one_topic_arrive_unchanged(kit: Kit, topic: str) -> None:
    """Two messages of one transaction arrive with their body, key and headers at the broker's plain client."""
    messages = [
        Message(topic, b"first \x00\xff", key=b"key-1", headers={"name": "value", "empty": ""}),
        Message(topic, b"second", key=None, headers={"umlaut": "ä", "raw": b"\x00\x01"}),
    ]
    producer = kit.producer()

    def prepared() -> Transaction | None:
        transaction = producer.begin()
        for message in messages:
            transaction.publish(message)
        try:
            transaction.prepare()
        except HalfRefusedError as error:  # a broker under load answers late, and certainly stored nothing
            print(f"not yet: {error}")
            return None
        return transaction

    transaction = kit.until(prepared, "a half that is acknowledged")
    assert transaction is not None
    transaction.commit()
    kit.history.committed(transaction.transaction_id)
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.history.at_rest = True
    found = {each.body: each for each in kit.delivered(topic)}
    assert {message.body for message in messages} == found.keys()
    for message in messages:
        headers = {name: value for name, value in found[message.body].headers.items() if not name.startswith("txcore-")}
        assert {name: _raw(value) for name, value in (message.headers or {}).items()} == {
            name: _raw(value) for name, value in headers.items()
        }


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def test_what_a_full_target_refuses_is_parked_as_undeliverable(kit: Kit, topic: str) -> None:
    """A transaction with a full target is retried, then parked; it delays no other transaction."""
    full = live_limits.limited_topic(kit.harness, _unique("full"), message_count_max=FULL_AT)
    if full is None:
        pytest.skip("no topic of this backend is ever full")
    kit.history.topics.add(full)
    identities = [kit.orphan(Message(full, b"%d" % number)).transaction_id for number in range(FULL_AT + 1)]
    kit.orphan(Message(topic, b"neighbour"))
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.history.at_rest = True
    assert [b"neighbour"] == kit.bodies(topic)
    assert FULL_AT == len(kit.bodies(full))
    assert [[ParkCode.UNDELIVERABLE.value]] == [codes for each in identities if (codes := _parked(kit, each))]


def test_a_message_that_its_topic_takes_not_is_refused_early_or_parked(kit: Kit, topic: str) -> None:
    """A message over its topic's limit is refused before the local transaction, or parked as undeliverable."""
    small = live_limits.limited_topic(kit.harness, _unique("small"), message_size_max=LIMIT_BYTES)
    if small is None:
        pytest.skip("no topic of this backend has a limit of its own")
    kit.history.topics.add(small)
    kit.orphan(Message(small, b"small"))
    kit.orphan(Message(topic, b"neighbour"))
    identity = None
    try:
        identity = kit.orphan(Message(small, bytes(2 * LIMIT_BYTES))).transaction_id
    except (HalfRefusedError, MessageRejectedError) as error:
        print(f"refused early: {error}")
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.history.at_rest = True
    assert ([b"small"], [b"neighbour"]) == (kit.bodies(small), kit.bodies(topic))
    if identity is not None:
        assert [ParkCode.UNDELIVERABLE.value] == _parked(kit, identity)


@pytest.mark.requires("rejects_when_full")
def test_a_full_half_log_refuses_halves_and_accepts_ops(kit: Kit) -> None:
    """A full half log refuses new halves, keeps the pending ones, and lets producers end them."""
    small = Kit(kit.harness)
    small.url = live_limits.small_log_url(kit.harness, LOG_BYTES)
    if not small.url:
        pytest.skip("this harness has no half log that is soon full")
    try:
        _fill(small)
        assert [] == small.judge()
    finally:
        small.close()


def _fill(kit: Kit) -> None:
    topic = kit.topic()
    body = bytes(BODY_BYTES)
    halves = [raw.half(kit, topic, body=body, partition=number % PARTITION_COUNT) for number in range(40)]
    statuses = [raw.append(kit, half)[0].status for half in halves]
    print(f"{statuses.count(Status.DURABLE)} halves until it is full")
    assert Status.REFUSED in statuses
    assert {Status.DURABLE, Status.REFUSED} == set(statuses)
    kept = [half for half, status in zip(halves, statuses, strict=True) if status is Status.DURABLE]
    ends = raw.release(kit, *(raw.commit(half) for half in kept))
    assert {Status.DURABLE} == {end.status for end in ends}
    kit.history.at_rest = True
    assert len(kept) == len(kit.bodies(topic))


def test_a_half_that_retention_would_soon_delete_is_carried_forward(kit: Kit, topic: str) -> None:
    """A checker copies a half that retention would soon delete, and the next checker decides from the copy."""
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    first = Answers(UNKNOWN)
    forgetful = cast("Backend", _Forgetful(kit.backend, 2.0))
    checker = kit.checker(first, check_max=100, interval_s=3_600.0, backend=forgetful)
    kit.sweep(checker, lambda: bool(first.asked) and len(kit.journey(identity).halves) > 1)
    checker.stop()
    partition = kit.journey(identity).partition
    records = raw.halves(kit, 2, partition=partition)
    kit.harness.trim(kit.group, LogKind.HALF, partition, records[1].position)
    kit.sweep(kit.checker(Answers(COMMIT), check_max=100))
    kit.history.at_rest = True
    assert (OpKind.COMMIT, [b"body"]) == (kit.journey(identity).final, kit.bodies(topic))
    assert 1 == len(first.asked)
