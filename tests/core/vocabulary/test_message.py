"""A message that must never reach a broker is refused by name before anything runs (R14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txcore import wire
from txcore.errors import ConfigError, MessageRejectedError, TransactionStateError
from txcore.message import HEADER_COUNT_MAX, MESSAGE_COUNT_MAX, CheckPolicy, Message, plain_targets, validate_message
from txcore.producer import transaction as transactions
from txcore.producer.policies import transaction_policy
from txcore.records import TargetMessage

REJECTED = {
    "no topic": (Message("", b""), "topic"),
    "a topic that is no text": (Message(7, b""), "topic"),
    "a topic that is half a surrogate pair": (Message("\ud800", b""), "topic"),
    "half a surrogate pair as header": (Message("t", b"", headers={"n": "\ud800"}), 'headers["n"]'),
    "half a surrogate pair as name": (Message("t", b"", headers={"\ud800": "v"}), "headers['\\ud800']"),
    "a number as header": (Message("t", b"", headers={"n": 1}), 'headers["n"]'),
    "a nameless header": (Message("t", b"", headers={"": "v"}), 'headers[""]'),
    "a header named by bytes": (Message("t", b"", headers={b"n": "v"}), "headers[b'n']"),
    "pairs as headers": (Message("t", b"", headers=[("n", "v")]), "headers"),
    "too many headers": (Message("t", b"", headers={str(n): "" for n in range(HEADER_COUNT_MAX + 1)}), "headers"),
    "a header of ours": (Message("t", b"", headers={"TxCore-Id": "x"}), 'headers["TxCore-Id"]'),
    "a header of NATS": (Message("t", b"", headers={"Nats-Msg-Id": "x"}), 'headers["Nats-Msg-Id"]'),
    "a delay in RabbitMQ's form": (Message("t", b"", headers={"X-Delay": "5"}), 'headers["X-Delay"]'),
    "a delay in RocketMQ's form": (
        Message("t", b"", headers={"__STARTDELIVERTIME": "5"}),
        'headers["__STARTDELIVERTIME"]',
    ),
    "a timer of RocketMQ": (Message("t", b"", headers={"TIMER_DELAY_MS": "5"}), 'headers["TIMER_DELAY_MS"]'),
    "a timer in seconds": (Message("t", b"", headers={"TIMER_DELAY_SEC": "5"}), 'headers["TIMER_DELAY_SEC"]'),
    "a time of RocketMQ": (Message("t", b"", headers={"TIMER_DELIVER_MS": "5"}), 'headers["TIMER_DELIVER_MS"]'),
    "RocketMQ's immunity": (
        Message("t", b"", headers={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}),
        'headers["CHECK_IMMUNITY_TIME_IN_SECONDS"]',
    ),
    "a number as policy": (Message("t", b"", check_policy=6.0), "check_policy"),
    "a schedule": (Message("t", b"", headers={"x-schedule": "5"}), 'headers["x-schedule"]'),
}


@pytest.mark.parametrize("what", REJECTED)
def test_a_message_is_rejected_with_the_rule_it_breaks(what):
    """The error's fields name the topic and the rule."""
    message, reason = REJECTED[what]
    with pytest.raises(MessageRejectedError) as caught:
        validate_message(message)
    assert reason == caught.value.reason
    assert (message.topic if reason != "topic" else "") == caught.value.topic
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"body": "text"}, "body"), ({"body": None}, "body"), ({"body": b"", "key": "k"}, "key")],
)
def test_a_text_is_refused_where_the_message_is_made(fields, reason):
    """A text in place of bytes is named in the line that has the mistake; one set later is named when published."""
    with pytest.raises(MessageRejectedError, match=f"Message.{reason} must be bytes.*encode it first") as caught:
        Message("t", **fields)
    assert (caught.value.reason, caught.value.topic) == (reason, "t")
    message = Message("t", b"", key=b"")
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(MessageRejectedError, match=f"Message.{reason} must be bytes"):
        validate_message(message)


def test_a_number_as_key_is_named_with_what_to_write():
    """A row's number is the usual key, and `Message.json` takes it as a text."""
    with pytest.raises(MessageRejectedError, match=r"not int .*Message\.json takes a text, too: key=str\(…\)"):
        Message.json("t", {"order": 1}, key=1)
    assert b"1" == Message.json("t", {"order": 1}, key=str(1)).key


def test_an_ordinary_message_is_taken():
    """A message may have any bytes, any key, and text and binary headers."""
    validate_message(Message("t", b"\x00\xff", key=b"", headers={"a": "text", "b": b"\xff", "x-ray": "1"}))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"immunity_s": 0}, "immunity_s"),
        ({"immunity_s": 6_000_000}, "immunity_s"),
        ({"immunity_s": "6s"}, "immunity_s"),
        ({"immunity_s": True}, "immunity_s"),
        ({"immunity_s": float("nan")}, "immunity_s"),
        ({"interval_s": -1}, "interval_s"),
        ({"interval_s": float("inf")}, "interval_s"),
        ({"check_max": 0}, "check_max"),
        ({"check_max": 1.5}, "check_max"),
        ({"check_max": True}, "check_max"),
    ],
)
def test_a_policy_of_the_wrong_unit_is_refused_by_its_key(settings, key):
    """Milliseconds in place of seconds, text and booleans are refused by name."""
    with pytest.raises(ConfigError, match=key) as caught:
        CheckPolicy(**settings)
    assert key == caught.value.key


def test_the_default_policy_is_rocketmqs():
    """The default policy is RocketMQ's: immunity 6 s, interval 30 s, 15 checks."""
    assert CheckPolicy(immunity_s=6.0, interval_s=30.0, check_max=15) == CheckPolicy()


def test_an_immunity_shorter_than_the_delivery_time_is_refused(context):
    """An immunity with which the producer would always give way is refused before anything is sent."""
    transaction = transactions.begin(context)
    with pytest.raises(ConfigError, match="choose an immunity above 2 s") as caught:
        transactions.publish(transaction, Message("t", b"", check_policy=CheckPolicy(immunity_s=2.0)))
    assert "immunity_s" == caught.value.key
    assert [] == transaction.messages


def test_the_longest_policy_of_a_transaction_holds():
    """Immunity, interval and count are each the largest of its messages."""
    policies = [
        CheckPolicy(immunity_s=7, interval_s=10, check_max=20),
        CheckPolicy(immunity_s=9, interval_s=5, check_max=3),
    ]
    assert CheckPolicy(immunity_s=9, interval_s=10, check_max=20) == transaction_policy(policies)


def test_without_a_policy_of_its_own_the_checkers_interval_holds(context):
    """A 0 in the half leaves interval and count to the checker; immunity is the producer's."""
    transaction = transactions.begin(context)
    transactions.publish(transaction, Message("t", b""))
    half = wire.decode_half(transactions.make_half(transaction).body)
    assert (context.policy.immunity_s, context.policy.immunity_s * 1000) == (transaction.immunity_s, half.immunity_ms)
    assert (0, 0) == (half.interval_ms, half.check_max)


def test_a_transaction_holds_a_bounded_number_of_messages(context):
    """The first message beyond the bound is refused."""
    transaction = transactions.begin(context)
    for _ in range(MESSAGE_COUNT_MAX):
        transactions.publish(transaction, Message("t", b""))
    with pytest.raises(MessageRejectedError) as caught:
        transactions.publish(transaction, Message("t", b""))
    assert "count" == caught.value.reason


def test_publishing_into_a_prepared_transaction_is_refused(context):
    """Publishing after prepare is refused, because one half holds all messages."""
    transaction = transactions.begin(context)
    transaction.phase = transactions.Phase.PREPARED
    with pytest.raises(TransactionStateError, match="publish before prepare"):
        transactions.publish(transaction, Message("t", b""))


def test_headers_changed_after_publish_do_not_change_the_message(context):
    """A transaction keeps a copy of a message's headers."""
    headers = {"a": "1"}
    transaction = transactions.begin(context)
    transactions.publish(transaction, Message("t", b"", headers=headers))
    headers["a"] = "2"
    assert {"a": "1"} == transaction.messages[0].headers


def test_headers_may_be_none(context):
    """The headers of a message may be None, as in messages of many clients."""
    transaction = transactions.begin(context)
    transactions.publish(transaction, Message("t", b"", headers=None))
    assert {} == transaction.messages[0].headers


FIELDS = {
    "topic": ["", None, b"t", 1, "\ud800"],
    "body": ["text", None, bytearray(b"x")],
    "key": ["text", 1, bytearray(b"k")],
    "headers": [{"a": "b"}, {"txcore-id": "x"}, [("a", "b")]],
    "check_policy": [CheckPolicy(), 5.0],
    "deliver_at": ["tomorrow"],
    "delay_s": [0, 0.0, 5.0],
}


@given(st.lists(st.tuples(st.text("abc.-_", min_size=1), st.none() | st.binary(), st.binary()), min_size=1, max_size=5))
def test_plain_messages_become_targets_together(fields):
    """Messages with a topic, a body and perhaps a key become targets, each as it is published by itself."""
    messages = [Message(topic, body, key) for topic, key, body in fields]
    assert [TargetMessage(topic, key, body, {}) for topic, key, body in fields] == plain_targets(messages)


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_message_that_is_not_plain_is_left_to_its_own_rules(field, value, place):
    """One message with anything else in it, or invalid, is found among plain ones, at each place."""
    messages = [Message("t", b"x"), Message("t", b"x", b"k"), Message("t", b"x", headers=None)]
    assert plain_targets(messages) is not None
    setattr(messages[place], field, value)
    assert plain_targets(messages) is None


def test_what_is_no_message_is_left_to_its_own_rules():
    """An object of another class is found among messages."""

    class Mine(Message):
        pass

    for other in (None, "text", Mine("t", b"x")):
        assert plain_targets([Message("t", b"x"), other]) is None
