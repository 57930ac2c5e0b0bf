"""Avro and Protobuf with Confluent's schema registry; needs `txcore[avro]` or `txcore[protobuf]`.

registry = SchemaRegistryClient({"url": "http://registry:8081"})
avro = registry_serializer(AvroSerializer(registry, schema))
tx.publish(Message.of("orders.created", {"number": 1}, serializer=avro))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txcore.serializers import Serializer


def registry_serializer(encode: Callable[[Any, Any], bytes | None]) -> Serializer:
    """Return a serializer that makes bodies by confluent-kafka's AvroSerializer, ProtobufSerializer or JSONSerializer.

    The topic and the field "value" name the subject. A schema id that *encode* writes into headers becomes a header of
    the message. The first message of a subject may ask the registry: make it before a database transaction is open.

    Raises:
        ImportError: confluent-kafka is not installed.
    """
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - optional

    def serialize(topic: str, obj: Any) -> tuple[bytes, dict[str, str | bytes]]:
        headers: dict[str, Any] = {}
        body = encode(obj, SerializationContext(topic, MessageField.VALUE, headers))
        if body is None:
            raise ValueError("None has no body in a schema")
        return body, headers

    return serialize
