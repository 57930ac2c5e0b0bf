"""Consuming a target for demos and tests: a stream as topic, read by any number of groups, with pika's blocking client.

With this consumer several groups can read one topic from its first message on, and continue after a kill at the last
acknowledgement. Services can use their own consumers of queues. Delivery is at least once.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pika import exceptions  # type: ignore[import-untyped]

from txcore.clock import Clock, SystemClock
from txcore.errors import BackendUnavailableError, ClosedError, WireFormatError
from txcore.wire import HEADER_KEY
from txcore_rabbitmq.codec import OFFSET_HEADER, is_locked, offset_of, stored_properties, translate
from txcore_rabbitmq.connection import connection_parameters, open_blocking
from txcore_rabbitmq.names import CHECKPOINT_LENGTH_BYTES, CHECKPOINT_SEGMENT_BYTES, SEGMENT_ARGUMENT
from txcore_rabbitmq.options import Options

HEARTBEAT_S: Final = 20
PREFETCH_COUNT: Final = 200
RETRY_S: Final = 1.0
READ_TIMEOUT_S: Final = 10.0
TOPIC_SEGMENT_BYTES: Final = 50_000_000


class _Done(msgspec.Struct, array_like=True, tag="txcd"):
    """An acknowledgement of all messages up to `position`; a `nonce` makes it a marker."""

    position: int
    nonce: bytes = b""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(_Done)


@dataclass(frozen=True, slots=True)
class Received:
    """A message as its consumers get it; `headers` has the user's headers, `txcore-id`, `-group` and `-by`."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]


class RabbitmqConsumer:
    """The reader of the stream *topic* for a consumer group. One thread may use it at a time.

    Of the consumers of one topic and group the one that holds an exclusive queue is active. The others receive no
    messages; one of them takes over when the active one is gone, or frozen for two to three heartbeats. `poll` opens a
    lost connection again.

    Raises:
        BackendUnavailableError: the broker cannot be reached, or refuses the login.
        ConfigError: the topic is a queue of another kind.
    """

    def __init__(self, options: Options, topic: str, group: str, *, clock: Clock | None = None) -> None:
        self.topic = topic
        self.group = group
        self._clock = clock or SystemClock()
        self._parameters = connection_parameters(options, HEARTBEAT_S, f"txcore consumer {group}")
        self._connection: Any = None
        self._offsets: Any = None
        self._consuming: Any = None
        self._arrived: deque[tuple[int, Received]] = deque()
        self._retry_at_s = 0.0
        self._is_closed = False
        self._connect()

    def poll(self, count_max: int = 100) -> list[Received]:
        """Return at once at most *count_max* messages after those polled before; the list is empty if there are none.

        The first poll of an active consumer starts after the last acknowledged message of its group.

        Raises:
            ConfigError: the topic was created again as a queue of another kind.
        """
        self._require_open()
        try:
            if self._consuming is None and not self._become_active():
                return []
            self._connection.process_data_events(0)
            if not self._consuming.consumer_tags:
                raise exceptions.ConsumerCancelled  # The stream, or its member on this node, was deleted.
            taken = [self._arrived.popleft() for _ in range(min(count_max, len(self._arrived)))]
            if taken:
                self._consuming.basic_ack(taken[-1][0], multiple=True)  # only credit
        except (exceptions.AMQPError, BackendUnavailableError):
            self._drop()
            return []
        return [received for _, received in taken]

    def ack(self, position: int) -> bool:
        """Store that all messages up to *position*, inclusive, are done; return False if this is not certain.

        After False the connection was lost, or another consumer is active, and the messages may come again.
        """
        self._require_open()
        if self._consuming is None:
            return False
        try:
            self._store(_Done(position))
        except exceptions.AMQPError:
            self._drop()
            return False
        return True

    def close(self) -> None:
        """Let another consumer of the group take over at once; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._drop()

    # -- becoming active -----------------------------------------------------------------------------------------------

    def _become_active(self) -> bool:
        now_s = self._clock.elapsed_s()
        if now_s < self._retry_at_s:
            if self._connection is not None:
                self._connection.process_data_events(0)
            return False
        self._retry_at_s = now_s + RETRY_S
        if self._connection is None:
            self._connect()
        if not self._lock():
            return False
        self._offsets = self._connection.channel()
        self._offsets.confirm_delivery()
        following = self._load()
        self._consuming = self._connection.channel()
        self._consuming.basic_qos(prefetch_count=PREFETCH_COUNT)
        self._consuming.basic_consume(self.topic, self._take, arguments={OFFSET_HEADER: following})
        return True

    def _connect(self) -> None:
        doing = f"opening {self.topic!r}"
        self._connection = open_blocking(self._parameters, doing)
        try:
            channel = self._connection.channel()
            stream = {"x-queue-type": "stream"}
            channel.queue_declare(self.topic, durable=True, arguments=stream | {SEGMENT_ARGUMENT: TOPIC_SEGMENT_BYTES})
            offsets = stream | {
                "x-max-length-bytes": CHECKPOINT_LENGTH_BYTES,
                SEGMENT_ARGUMENT: CHECKPOINT_SEGMENT_BYTES,
            }
            channel.queue_declare(self._name("offsets"), durable=True, arguments=offsets)
            channel.close()
        except exceptions.AMQPError as error:
            self._drop()
            raise translate(error, doing) from error

    def _lock(self) -> bool:
        channel = self._connection.channel()
        try:
            channel.queue_declare(self._name("active"), exclusive=True, arguments={"x-queue-type": "classic"})
        except exceptions.ChannelClosedByBroker as error:
            if is_locked(error):
                return False
            raise
        channel.close()
        return True

    def _load(self) -> int | str:
        """Return the offset to continue at: after the largest position stored before a marker of this consumer."""
        nonce = secrets.token_bytes(16)
        self._store(_Done(-1, nonce))
        largest, is_read = -1, False

        def take(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
            nonlocal largest, is_read
            done = _decode(body)
            largest = max(largest, done.position)
            is_read = is_read or done.nonce == nonce
            channel.basic_ack(_method.delivery_tag)

        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH_COUNT)
        channel.basic_consume(self._name("offsets"), take, arguments={OFFSET_HEADER: "first"})
        deadline_s = self._clock.elapsed_s() + READ_TIMEOUT_S
        while not is_read:
            self._connection.process_data_events(RETRY_S)
            if self._clock.elapsed_s() > deadline_s:
                raise exceptions.AMQPConnectionError("the offsets could not be read")
        # The channel stays open: closing it would refuse messages under way, after which a stream drops the connection.
        return "first" if largest < 0 else largest + 1

    def _take(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        headers = {name: value for name, value in properties.headers.items() if name != OFFSET_HEADER}
        key = headers.get(HEADER_KEY)
        received = Received(offset_of(properties), key.encode() if isinstance(key, str) else key, body, headers)
        self._arrived.append((method.delivery_tag, received))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _store(self, done: _Done) -> None:
        self._offsets.basic_publish("", self._name("offsets"), _encode(done), stored_properties(), mandatory=True)

    def _name(self, what: str) -> str:
        return f"{self.topic}.{self.group}.{what}"

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._offsets = self._consuming = None
        self._arrived.clear()
        if connection is not None and connection.is_open:
            with contextlib.suppress(exceptions.AMQPError):
                connection.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this consumer is closed")


def _decode(body: bytes) -> _Done:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WireFormatError(f"{len(body)} bytes are no acknowledgement: {error}") from error
