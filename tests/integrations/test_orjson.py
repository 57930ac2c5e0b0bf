"""Bodies by orjson."""

from __future__ import annotations

import pytest

from txcore.errors import MessageRejectedError
from txcore.integrations.orjson import orjson_serializer
from txcore.message import Message

pytest.importorskip("orjson")


def test_orjson_makes_the_body():
    """The body is orjson's, with its `default` for unknown objects; the header says JSON."""
    message = Message.of("t", {"a": 1j}, serializer=orjson_serializer(default=str))
    assert (b'{"a":"1j"}', {"content-type": "application/json"}) == (message.body, message.headers)


def test_an_object_that_orjson_does_not_know_is_refused():
    """Nothing was sent, and the text is orjson's."""
    with pytest.raises(MessageRejectedError, match="complex"):
        Message.of("t", {"a": 1j}, serializer=orjson_serializer())
