"""CloudEvents 1.0 as bodies: one JSON document (structured), or headers `ce_*` beside the data (binary, of Kafka).

event = cloud_event(source="/shop", type="order.created")
tx.publish(Message.of("orders.created", {"number": 1}, serializer=event))

No library is needed. The formats: CloudEvents 1.0.2, its JSON event format and its Kafka protocol binding.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any, Final, Literal

from txcore.clock import Clock, Randomness, SystemClock, system_randomness
from txcore.errors import ConfigError
from txcore.serializers import CONTENT_TYPE, Serializer, to_json

SPECVERSION: Final = "1.0"


def cloud_event(
    *,
    source: str,
    type: str,  # noqa: A002 - the attribute's name in the specification
    mode: Literal["structured", "binary"] = "structured",
    subject: str | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Serializer:
    """Return a serializer that makes each object the JSON data of an event with a new `id` and the present `time`.

    Args:
        source: The context in which events happen, a URI reference; not empty.
        type: The kind of event, such as `com.example.order.created`; not empty.
        mode: "structured": the body is the whole event. "binary": the body is the data, the attributes are headers.
        subject: The part of the source that events are about; None for none.

    Raises:
        ConfigError: an attribute is empty or no text, or the mode is unknown; `key` names it.

    Thread safe. Duplicates of a message carry the same event id, as the event is made once.
    """
    required: dict[str, Any] = {"source": source, "type": type}
    if subject is not None:
        required["subject"] = subject
    for name, value in required.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{name} of a CloudEvent is a text that is not empty, not {value!r}", key=name)
    if mode not in {"structured", "binary"}:
        raise ConfigError(f"mode is structured or binary, not {mode!r}", key="mode")

    wall, chance = clock or SystemClock(), randomness or system_randomness()

    def serialize(topic: str, obj: Any) -> tuple[bytes, dict[str, str | bytes]]:
        data, _ = to_json(topic, obj)
        at = dt.datetime.fromtimestamp(wall.wall_ms() / 1000, dt.UTC).isoformat(timespec="milliseconds")
        identity = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        attributes = {"specversion": SPECVERSION, "id": identity, **required, "time": at}
        if mode == "binary":
            headers: dict[str, str | bytes] = {f"ce_{name}": value for name, value in attributes.items()}
            return data, {**headers, CONTENT_TYPE: "application/json"}
        envelope = json.dumps({**attributes, "datacontenttype": "application/json"}, ensure_ascii=False).encode()
        body = envelope[:-1] + b', "data": ' + data + b"}"
        return body, {CONTENT_TYPE: "application/cloudevents+json; charset=UTF-8"}

    return serialize
