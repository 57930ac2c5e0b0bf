"""Bodies are made once, before the half: JSON of any object, or by a serializer of the application's own."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid

import msgspec
import pydantic
import pytest
from txcore_conformance.kit import wait_until

from txcore import Checker, CheckPolicy, TransactionProducer
from txcore.errors import MessageRejectedError, NotSentError
from txcore.ids import TransactionId
from txcore.listener import TransactionListener
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.message import LocalTransactionState, Message


class Kind(enum.Enum):
    TEA = "tea"


@dataclasses.dataclass
class Line:
    kind: Kind
    price: object


class Order(msgspec.Struct):
    number: int
    lines: list[Line]


class Parcel(pydantic.BaseModel):
    number: int
    at: dt.datetime


class Safe(str):
    """A text like those of template libraries, which its own text replaces when it is printed."""

    __slots__ = ()

    def __str__(self):
        return "<safe>"


class Price(float):
    """A number like NumPy's float64."""


class Count(int):
    """A whole number with a name of its own."""


class Raw(bytes):
    """Bytes with a name of their own."""


NIL = uuid.UUID(int=0)
NOON = dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("obj", "body"),
    [
        (Order(1, [Line(Kind.TEA, decimal.Decimal("1.50"))]), b'{"number":1,"lines":[{"kind":"tea","price":"1.50"}]}'),
        (
            {"id": uuid.UUID(int=1), "at": NOON},
            b'{"id":"00000000-0000-0000-0000-000000000001","at":"2026-11-24T12:00:00Z"}',
        ),
        (Parcel(number=2, at=NOON), b'{"number":2,"at":"2026-11-24T12:00:00Z"}'),
        ([Parcel(number=2, at=NOON)], b'[{"number":2,"at":"2026-11-24T12:00:00Z"}]'),
        ({"id": TransactionId.parse(str(NIL))}, b'{"id":"00000000-0000-0000-0000-000000000000"}'),
        (
            {"name": Safe("tea"), "price": Price(1.5), "count": Count(2), "raw": Raw(b"tea")},
            b'{"name":"tea","price":1.5,"count":2,"raw":"dGVh"}',
        ),
    ],
)
def test_json_takes_the_usual_objects(obj, body):
    """The body is JSON, the header says so, and a key may be a text."""
    message = Message.json("t", obj, key="7")
    assert (body, b"7", {"content-type": "application/json"}) == (message.body, message.key, message.headers)


def test_headers_of_the_caller_come_first():
    """A header of the caller replaces that of the serializer, whatever the case of its letters."""
    given = {"Content-Type": "application/vnd.order+json", "a": b"1"}
    assert given == Message.json("t", {}, headers=given).headers
    assert {"content-type": "application/json"} == Message.json("t", {}, headers=None).headers


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("obj", "field", "kind"),
    [
        (Order(1, [Line(Kind.TEA, object())]), "body.lines[0].price", "object"),
        ({"a": [1, {"b": 1j}]}, "body['a'][1]['b']", "complex"),
        ({"a": "\ud800"}, "body['a']", "str"),
        (object(), "body", "object"),
        (Order, "body", "StructMeta"),
        (CYCLE, "body[0]", "list"),
    ],
)
def test_json_names_the_field_and_the_type_that_it_cannot_encode(obj, field, kind):
    """The error has the path of the innermost part, its type, and the outcome."""
    with pytest.raises(MessageRejectedError, match="nothing was sent") as caught:
        Message.json("t", obj)
    assert (field, "t") == (caught.value.reason, caught.value.topic)
    assert f"{field} of a message for 't'" in str(caught.value)
    assert f"type {kind} " in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": None}, "topic"),
        ({"key": 7}, "key"),
        ({"headers": {"x": 1}}, 'headers["x"]'),
        ({"headers": [("x", "1")]}, "headers"),
    ],
)
def test_a_wrong_field_is_named_where_the_message_is_made(arguments, field):
    """The error is raised by the call that has the mistake, and names the field."""
    with pytest.raises(MessageRejectedError) as caught:
        Message.json(**({"topic": "t", "obj": {}} | arguments))
    assert field == caught.value.reason
    assert field in str(caught.value)


def test_a_serializer_must_make_bytes():
    """A serializer that returns a text is found in the call that uses it."""
    with pytest.raises(MessageRejectedError, match=r"^Message\.body must be bytes, not str"):
        Message.of("t", 1, serializer=lambda _, obj: (str(obj), None))


@pytest.mark.parametrize(("serializer", "field"), [(None, "serializer"), (lambda _, obj: str(obj), "body")])
def test_a_serializer_of_another_form_is_named(serializer, field):
    """An object that is no callable, or that returns the body alone, is the program's mistake."""
    with pytest.raises(MessageRejectedError, match=r"^(a )?serializer must .*, not \w+; nothing was sent$") as caught:
        Message.of("t", 12, serializer=serializer)
    assert field == caught.value.reason


@pytest.mark.parametrize(("raised", "error"), [(KeyError("n"), MessageRejectedError), (OSError("down"), NotSentError)])
def test_an_exception_of_a_serializer_means_that_nothing_was_sent(raised, error):
    """An object that cannot be encoded is the program's mistake; any other failure is none. Both name the topic."""

    def failing(_topic, _obj):
        raise raised

    with pytest.raises(error, match="nothing was sent") as caught:
        Message.of("t", 1, serializer=failing)
    assert "t" == caught.value.topic
    assert raised is caught.value.__cause__


class Forgetful(TransactionListener):
    """Leaves the end to the check, which says COMMIT."""

    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, half):
        return LocalTransactionState.COMMIT


def test_a_serializer_runs_once_though_the_check_publishes_the_message():
    """The checker publishes the bytes of the half: the serializer is not run again."""
    calls = []

    def counting(topic, obj):
        calls.append(obj)
        return b"%d:%d" % (obj, len(calls)), {"by": topic}

    broker = MemoryBroker()
    backend = MemoryBackend(broker)
    policy = CheckPolicy(immunity_s=2.1)
    producer = TransactionProducer(backend, "shop", listener=Forgetful(), policy=policy)
    producer.send_message_in_transaction(Message.of("t", 7, serializer=counting))
    assert "t" not in broker.topics
    checker = Checker(backend, "shop", listener=Forgetful())
    wait_until(lambda: checker.run_once() and "t" in broker.topics, "the check publishes")
    (target,) = broker.topics["t"]
    assert ([7], b"7:1", "t") == (calls, target.body, target.headers["by"])
