"""Events have the attributes that CloudEvents 1.0 requires, in both modes."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from txcore.errors import ConfigError, MessageRejectedError
from txcore.integrations.cloudevents import cloud_event
from txcore.message import Message

ATTRIBUTES = {"specversion": "1.0", "source": "/shop", "type": "order.created", "subject": "7"}


def test_a_structured_event_is_one_document():
    """The body holds attributes and data; the content type is that of the JSON event format."""
    serializer = cloud_event(source="/shop", type="order.created", subject="7")
    first, second = (Message.of("t", {"é": [1]}, serializer=serializer, key="7") for _ in range(2))
    event = json.loads(first.body)
    at = dt.datetime.fromisoformat(event.pop("time"))
    assert at.tzinfo is not None
    assert event.pop("id") != json.loads(second.body)["id"]
    assert {**ATTRIBUTES, "datacontenttype": "application/json", "data": {"é": [1]}} == event
    assert {"content-type": "application/cloudevents+json; charset=UTF-8"} == first.headers


def test_a_binary_event_has_its_attributes_in_headers():
    """The body is the data alone; each attribute is a header `ce_*`, and content-type is that of the data."""
    serializer = cloud_event(source="/shop", type="order.created", subject="7", mode="binary")
    message = Message.of("t", {"a": 1}, serializer=serializer)
    assert b'{"a":1}' == message.body
    assert {"ce_specversion", "ce_source", "ce_type", "ce_subject", "ce_id", "ce_time", "content-type"} == set(
        message.headers
    )
    assert ATTRIBUTES.items() <= {name.removeprefix("ce_"): value for name, value in message.headers.items()}.items()
    assert "application/json" == message.headers["content-type"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"source": ""}, "source"), ({"type": 7}, "type"), ({"subject": ""}, "subject"), ({"mode": "x"}, "mode")],
)
def test_a_wrong_attribute_is_named(settings, key):
    """An attribute that the specification forbids is refused by name, before any message."""
    with pytest.raises(ConfigError) as caught:
        cloud_event(**({"source": "/shop", "type": "t"} | settings))
    assert key == caught.value.key


def test_data_that_is_no_json_is_named():
    """The error names the field of the data."""
    with pytest.raises(MessageRejectedError) as caught:
        Message.of("t", {"a": 1j}, serializer=cloud_event(source="/shop", type="t"))
    assert "body['a']" == caught.value.reason
