"""Bodies by confluent-kafka's serializers, on its mock of a schema registry."""

from __future__ import annotations

import json

import pytest

from txcore.errors import MessageRejectedError, NotSentError
from txcore.integrations.schema_registry import registry_serializer
from txcore.message import Message

for _needed in ("fastavro", "google.protobuf", "authlib", "cachetools"):
    pytest.importorskip(_needed)
registries = pytest.importorskip("confluent_kafka.schema_registry")
avros = pytest.importorskip("confluent_kafka.schema_registry.avro")
protobufs = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
serialization = pytest.importorskip("confluent_kafka.serialization")
wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]})


@pytest.fixture
def registry():
    return registries.SchemaRegistryClient.new_client({"url": "mock://registry"})


def read(message):
    return serialization.SerializationContext("t", serialization.MessageField.VALUE, dict(message.headers))


def test_avro_is_read_back_by_its_deserializer(registry):
    """The schema is registered under the topic's subject, and the body is framed with its id."""
    message = Message.of("t", {"number": 7}, serializer=registry_serializer(avros.AvroSerializer(registry, SCHEMA)))
    assert ["t-value"] == registry.get_subjects()
    assert 0 == message.body[0]
    assert {"number": 7} == avros.AvroDeserializer(registry, SCHEMA)(message.body, read(message))


def test_a_schema_id_in_headers_becomes_a_header(registry):
    """With the schema id in headers the body has no frame, and both reach the message."""
    avro = avros.AvroSerializer(registry, SCHEMA, conf={"schema.id.serializer": registries.header_schema_id_serializer})
    message = Message.of("t", {"number": 7}, serializer=registry_serializer(avro), headers={"a": "b"})
    assert {"a", "__value_schema_id"} == set(message.headers)
    assert b"\x0e" == message.body


def test_protobuf_is_read_back_by_its_deserializer(registry):
    """A Protobuf message is framed with its schema's id and read back."""
    protobuf = protobufs.ProtobufSerializer(wrappers.StringValue, registry)
    message = Message.of("t", wrappers.StringValue(value="tea"), serializer=registry_serializer(protobuf))
    assert "tea" == protobufs.ProtobufDeserializer(wrappers.StringValue)(message.body, read(message)).value


@pytest.mark.parametrize("obj", [{"number": "seven"}, {}, None])
def test_an_object_against_the_schema_is_refused(registry, obj):
    """The object is the program's mistake."""
    with pytest.raises(MessageRejectedError, match="nothing was sent"):
        Message.of("t", obj, serializer=registry_serializer(avros.AvroSerializer(registry, SCHEMA)))


def test_a_registry_that_refuses_means_that_nothing_was_sent(registry):
    """A schema that is not registered, or a registry that is down, is no mistake in the object."""
    avro = avros.AvroSerializer(registry, SCHEMA, conf={"auto.register.schemas": False})
    with pytest.raises(NotSentError, match="SchemaRegistryError"):
        Message.of("t", {"number": 7}, serializer=registry_serializer(avro))
