"""pika's connection with two short cuts: a message is encoded in one step, and all bytes of a turn are sent together.

pika encodes a message as three frames, each in many steps, and writes each to the socket with a call of its own. This
costs system calls and packets, for the client and the broker. The bytes are the same here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from pika import frame, spec  # type: ignore[import-untyped]
from pika.adapters.select_connection import SelectConnection  # type: ignore[import-untyped]

from txcore_rabbitmq.names import SHORT_STRING_BYTES_MAX

WRITE_BYTES: Final = 64 << 10
"""Bytes written to the socket at once, without waiting for the end of the turn."""
METHODS_CACHED: Final = 1_000
_LOG_FLAGS: Final = spec.BasicProperties.FLAG_DELIVERY_MODE | spec.BasicProperties.FLAG_MESSAGE_ID
_TARGET_FLAGS: Final = _LOG_FLAGS | spec.BasicProperties.FLAG_HEADERS
#: Headers that AMQP has as properties, in the order of AMQP's encoding.
_BODY_HEADERS: Final = {
    "content-type": spec.BasicProperties.FLAG_CONTENT_TYPE,
    "content-encoding": spec.BasicProperties.FLAG_CONTENT_ENCODING,
}
_pack_header: Final = Struct(">BHIHHQ").pack
_pack_start: Final = Struct(">BHI").pack
_pack_flags: Final = Struct(">HBB").pack
_pack_short: Final = Struct(">H").pack
_pack_size: Final = Struct(">I").pack
_END: Final = bytes([spec.FRAME_END])


class CoalescingConnection(SelectConnection):  # type: ignore[misc] # pika has no types
    """A connection on one loop; all methods on the loop's thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._frames: list[bytes] = []
        self._frames_size = 0
        super().__init__(*arguments, **options)

    @property
    def unsent_bytes(self) -> int:
        """The number of published bytes that the network has not taken yet."""
        waiting = 0 if self._transport is None else int(self._transport.get_write_buffer_size())
        return self._frames_size + waiting

    def publish(self, channel_number: int, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        """Publish on an open channel, mandatory; *properties* are those of `log_properties` or `target_properties`."""
        self._adapter_emit_data(
            publish_frames(channel_number, exchange, routing_key, properties, body, self._body_max_length)
        )

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._frames:
            self.ioloop.call_later(0, self._emit)
        self._frames.append(data)
        self._frames_size += len(data)
        if self._frames_size >= WRITE_BYTES:
            self._emit()

    def _emit(self) -> None:
        frames, self._frames, self._frames_size = self._frames, [], 0
        if frames and self._transport is not None:  # without a transport the connection is lost, and so are the frames
            super()._adapter_emit_data(b"".join(frames))


def publish_frames(
    channel_number: int, exchange: str, routing_key: str, properties: bytes, body: bytes, body_frame_max: int
) -> bytes:
    """Return the frames of one message."""
    head_size = len(properties) + 12
    frames = [
        _method_frame(channel_number, exchange, routing_key),
        _pack_header(spec.FRAME_HEADER, channel_number, head_size, spec.Basic.INDEX, 0, len(body)),
        properties,
        _END,
    ]
    for start in range(0, len(body), body_frame_max):
        part = body[start : start + body_frame_max]
        frames += (_pack_start(spec.FRAME_BODY, channel_number, len(part)), part, _END)
    return b"".join(frames)


def log_properties(message_id: str) -> bytes:
    """Return the properties of a record in one of txcore's streams: persistent, with an id."""
    raw = message_id.encode()
    return _pack_flags(_LOG_FLAGS, spec.PERSISTENT_DELIVERY_MODE, len(raw)) + raw


def target_properties(headers: Mapping[str, str | bytes], message_id: str) -> bytes:
    """Return the properties of a target: persistent, with headers and an id.

    A text in the header `content-type` or `content-encoding` is AMQP's property of this name too, by which consumers
    such as Celery decode the body.
    """
    parts: list[bytes] = []
    for name, value in headers.items():
        raw = value.encode() if isinstance(value, str) else value
        parts += (_short(name), b"S" if isinstance(value, str) else b"x", _pack_size(len(raw)), raw)
    table = b"".join(parts)
    flags, before = _TARGET_FLAGS, b""
    for name, flag in _BODY_HEADERS.items():
        kind = headers.get(name)
        if isinstance(kind, str) and len(kind.encode()) <= SHORT_STRING_BYTES_MAX:
            flags |= flag
            before += _short(kind)
    return _pack_short(flags) + before + _pack_size(len(table)) + table + b"\x02" + _short(message_id)


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


@functools.lru_cache(METHODS_CACHED)
def _method_frame(channel_number: int, exchange: str, routing_key: str) -> bytes:
    method = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
    marshaled: bytes = frame.Method(channel_number, method).marshal()
    return marshaled
