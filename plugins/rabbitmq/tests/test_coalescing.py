"""Messages encoded in one step: the same bytes as pika's, sent together; no broker is needed."""

from __future__ import annotations

import pytest
from pika import BasicProperties, frame, spec
from txcore_rabbitmq.coalescing import CoalescingConnection, log_properties, publish_frames, target_properties

HEADERS = {"txcore-id": "0190:0", "txcore-key": b"\x00\xff", "Grüße": "你好 🙂", "empty": "", "none": b""}
BODY = {"content-type": "text/你好", "colour": "red", "content-encoding": "utf-8"}
UNFIT = {"content-encoding": "gzip", "content-type": "x" * 256}  # longer than AMQP's property
BODY_FRAME_MAX = 100


def pikas(channel_number, exchange, routing_key, properties, body):
    """Return the frames as pika encodes them."""
    method = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
    frames = [frame.Method(channel_number, method), frame.Header(channel_number, len(body), properties)]
    starts = range(0, len(body), BODY_FRAME_MAX)
    frames += [frame.Body(channel_number, body[start : start + BODY_FRAME_MAX]) for start in starts]
    return b"".join(each.marshal() for each in frames)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 350])
@pytest.mark.parametrize(
    ("properties", "ours"),
    [
        (BasicProperties(delivery_mode=2, message_id="17"), log_properties("17")),
        (BasicProperties(headers=HEADERS, delivery_mode=2, message_id="id"), target_properties(HEADERS, "id")),
        (
            BasicProperties("text/你好", "utf-8", {**BODY}, 2, message_id="id"),
            target_properties(BODY, "id"),
        ),
        (
            BasicProperties(None, "gzip", {**UNFIT}, 2, message_id="id"),
            target_properties(UNFIT, "id"),
        ),
        (BasicProperties(headers={}, delivery_mode=2, message_id=""), target_properties({}, "")),
    ],
)
def test_the_bytes_are_pikas(size, properties, ours):
    """The frames of every kind of message equal pika's, with bodies of none, one and many frames."""
    body = bytes(range(256)) * 2
    place = (300, "exchange", "key of Grüße")
    assert pikas(*place, properties, body[:size]) == publish_frames(*place, ours, body[:size], BODY_FRAME_MAX)


class Network:
    """A transport and loop that record the bytes written and the timers requested."""

    def __init__(self):
        self.written, self.timers = [], []

    def write(self, data):
        self.written.append(data)

    def get_write_buffer_size(self):
        return 0

    def call_later(self, _delay_s, timer):
        self.timers.append(timer)


def test_what_is_sent_in_one_turn_goes_together(monkeypatch):
    """Bytes of one turn are written together and in order at its end; many bytes at once; unsent ones are counted."""
    network = Network()
    monkeypatch.setattr(CoalescingConnection, "ioloop", network)
    connection = CoalescingConnection.__new__(CoalescingConnection)
    connection._frames, connection._frames_size, connection._transport = [], 0, network
    for piece in (b"a", b"b", b"c"):
        connection._adapter_emit_data(piece)
    assert (network.written, connection.unsent_bytes, len(network.timers)) == ([], 3, 1)
    network.timers.pop()()
    assert (network.written, connection.unsent_bytes) == ([b"abc"], 0)
    connection._adapter_emit_data(b"d" * 70_000)
    assert network.written == [b"abc", b"d" * 70_000]
    connection._adapter_emit_data(b"lost")
    connection._transport = None
    for timer in network.timers:
        timer()
    assert len(network.written) == 2
