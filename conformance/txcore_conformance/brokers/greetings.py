"""The first messages of each broker's protocol, without a client: they show that it answers, and its version."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

_TIME_MAX_S: Final = 2.0
_AMQP_HEADER: Final = b"AMQP\x00\x00\x09\x01"
#: Request ApiVersions, version 0: key 18, correlation 1, no client id.
_KAFKA_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def kafka_answers(host: str, port: int) -> None:
    """Return if Kafka answers ApiVersions, otherwise raise OSError, struct.error or AssertionError."""
    with socket.create_connection((host, port), _TIME_MAX_S) as connection, connection.makefile("rb") as answer:
        connection.sendall(_KAFKA_API_VERSIONS)
        _size, correlation, error = struct.unpack(">iih", answer.read(10))
        assert (correlation, error) == (1, 0)


def amqp_start(host: str, port: int) -> bytes:
    """Return the Connection.Start with which RabbitMQ answers AMQP's header; raises OSError or AssertionError."""
    with socket.create_connection((host, port), _TIME_MAX_S) as connection, connection.makefile("rb") as answer:
        connection.sendall(_AMQP_HEADER)
        head = answer.read(7)
        assert len(head) == 7, head
        kind, _channel, size = struct.unpack(">BHI", head)
        assert kind == 1, head
        return answer.read(size)


def amqp_version(start: bytes) -> str:
    """Return the server property `version` of a Connection.Start."""
    _, _, rest = start.partition(b"\x07versionS")
    (size,) = struct.unpack(">I", rest[:4])
    return rest[4 : 4 + size].decode()


def nats_information(host: str, port: int) -> dict[str, Any]:
    """Return the INFO with which a NATS server greets; raises OSError or ValueError."""
    with socket.create_connection((host, port), _TIME_MAX_S) as connection, connection.makefile("rb") as lines:
        information: dict[str, Any] = json.loads(lines.readline().removeprefix(b"INFO "))
        return information
