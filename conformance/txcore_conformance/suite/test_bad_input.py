"""Invalid messages are refused by name before the local transaction runs; nothing is dropped or stripped."""

from __future__ import annotations

from typing import Any

import pytest

from txcore import (
    CheckPolicy,
    ConfigError,
    EndState,
    HalfRefusedError,
    Message,
    MessageRejectedError,
    TransactionStateError,
)
from txcore_conformance.kit import COMMIT, Answers, Kit


def _changed(name: str, value: Any) -> Message:
    """Return a message with a field of a wrong type, set after it was made: the constructor refuses most of them."""
    message = Message("t", b"")
    setattr(message, name, value)
    return message


BAD: dict[str, tuple[Any, str]] = {
    "empty topic": (Message("", b""), "topic"),
    "topic is not text": (_changed("topic", b"t"), "topic"),
    "body is text": (_changed("body", "text"), "body"),
    "body is None": (_changed("body", None), "body"),
    "key is text": (_changed("key", "key"), "key"),
    "header is a number": (Message("t", b"", None, {"a": 1}), 'headers["a"]'),  # type: ignore[dict-item]
    "header without a name": (Message("t", b"", None, {"": "a"}), 'headers[""]'),
    "too many headers": (Message("t", b"", None, {str(number): "" for number in range(300)}), "headers"),
    "reserved header": (Message("t", b"", None, {"txcore-id": "mine"}), 'headers["txcore-id"]'),
    "reserved header, other case": (Message("t", b"", None, {"TXCORE-By": "mine"}), 'headers["TXCORE-By"]'),
    "header of NATS": (Message("t", b"", None, {"Nats-Msg-Id": "1"}), 'headers["Nats-Msg-Id"]'),
    "delay": (Message("t", b"", None, {"x-delay": "5000"}), 'headers["x-delay"]'),
    "delay, other case": (Message("t", b"", None, {"X-Delay": "5000"}), 'headers["X-Delay"]'),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_is_refused_by_name_in_every_style(kit: Kit, name: str) -> None:
    """Each style refuses a bad message with an error that names the rule; no listener runs and no half is written."""
    message, reason = BAD[name]
    listener = Answers(local=COMMIT)
    producer = kit.producer(listener)
    transaction = producer.begin()
    with pytest.raises(MessageRejectedError) as raised:
        transaction.publish(message)
    assert reason == raised.value.reason
    with pytest.raises(MessageRejectedError):
        producer.send_message_in_transaction(message)
    (result,) = producer.send_many([(message, None)])
    assert isinstance(result.error, MessageRejectedError)
    assert [] == listener.executed
    assert [] == kit.operator().pending()


def test_messages_too_large_together_are_refused_before_anything_runs(kit: Kit, topic: str) -> None:
    """`prepare` refuses messages whose sizes together pass the backend's limit; the transaction is then unusable."""
    part = kit.promises.body_size_max // 3
    transaction = kit.producer().begin()
    for _ in range(4):
        transaction.publish(Message(topic, b"x" * part))
    with pytest.raises(MessageRejectedError) as raised:
        transaction.prepare()
    assert ("size", topic) == (raised.value.reason, raised.value.topic)
    with pytest.raises(TransactionStateError):
        transaction.commit()
    assert [] == kit.operator().pending()


def test_an_unknown_target_is_refused_before_the_local_transaction(
    kit: Kit, topic: str, engine: Any, fence: Any
) -> None:
    """With an unknown target no listener runs, the database rolls back, and the good target gets no message."""
    missing = kit.harness.missing_topic()
    if missing is None:
        pytest.skip("any topic will do on this backend")
    listener = Answers(local=COMMIT)
    with pytest.raises((MessageRejectedError, HalfRefusedError), match=missing):
        kit.producer(listener).send_message_in_transaction(Message(missing, b""))
    assert [] == listener.executed

    def block() -> None:
        with kit.producer(fence=fence).transaction(engine) as transaction:
            transaction.connection.exec_driver_sql("INSERT INTO orders VALUES ('a')")
            transaction.publish(Message(topic, b"body"))
            transaction.publish(Message(missing, b"body"))

    with pytest.raises((MessageRejectedError, HalfRefusedError)):
        block()
    with engine.connect() as connection:
        assert 0 == connection.exec_driver_sql("SELECT count(*) FROM orders").scalar()
    assert [] == kit.bodies(topic)
    assert [] == kit.operator().pending()


def test_send_many_refuses_the_bad_ones_and_sends_the_others(kit: Kit, topic: str) -> None:
    """`send_many` sends the good messages; a refused message has its error in its own result."""
    messages = [Message(topic, b"1"), Message(topic, b"2", None, {"x-delay": "1"}), Message(topic, b"3")]
    results = kit.producer(Answers(local=COMMIT)).send_many([(message, None) for message in messages])
    assert [EndState.ACCEPTED, None, EndState.ACCEPTED] == [r.end.state if r.end else None for r in results]
    assert isinstance(results[1].error, MessageRejectedError)
    assert [b"1", b"3"] == sorted(kit.bodies(topic))


def test_calls_in_the_wrong_order_are_refused(kit: Kit, topic: str) -> None:
    """Publishing after `prepare`, preparing twice or nothing, and ending before `prepare` fail without effect."""
    transaction = kit.producer().begin()
    with pytest.raises(TransactionStateError):
        transaction.prepare()
    transaction.publish(Message(topic, b"body"))
    for call in (transaction.commit, transaction.rollback, transaction.handle):
        with pytest.raises(TransactionStateError):
            call()
    transaction.prepare()
    with pytest.raises(TransactionStateError):
        transaction.prepare()
    with pytest.raises(TransactionStateError):
        transaction.publish(Message(topic, b"late"))
    assert EndState.ACCEPTED is transaction.commit().state
    assert [b"body"] == kit.bodies(topic)


def test_an_immunity_shorter_than_a_delivery_is_refused(kit: Kit, topic: str) -> None:
    """An immunity shorter than a delivery is a ConfigError, for a producer and for a single message."""
    too_short = CheckPolicy(immunity_s=kit.promises.release_time_max_s)
    with pytest.raises(ConfigError) as raised:
        kit.producer(policy=too_short)
    assert "immunity_s" == raised.value.key
    with pytest.raises(ConfigError):
        kit.producer().begin().publish(Message(topic, b"", check_policy=too_short))


def test_missing_parts_of_a_producer_are_named(kit: Kit, topic: str) -> None:
    """The error of a style without its listener or fence names the missing part."""
    producer = kit.producer()
    with pytest.raises(TransactionStateError, match="listener"):
        producer.send_message_in_transaction(Message(topic, b""))
    with pytest.raises(TransactionStateError, match="listener"):
        producer.send_many([])
    with pytest.raises(TransactionStateError, match="fence"), producer.transaction(None):
        pass
    with pytest.raises(ConfigError):
        kit.checker()
