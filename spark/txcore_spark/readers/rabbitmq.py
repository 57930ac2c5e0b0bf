"""Reading RabbitMQ streams over AMQP by offsets; at least the broker's own count of messages must arrive.

Silence proves nothing here. A stream that delivers nothing although its count is not 0 is an error, never an empty
stream; a range is done when its last offset arrived.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pika import exceptions  # type: ignore[import-untyped]
from txcore_rabbitmq.codec import OFFSET_HEADER, parse_topic, translate
from txcore_rabbitmq.connection import connection_parameters, open_blocking
from txcore_rabbitmq.ends import is_end_marker
from txcore_rabbitmq.names import log_name
from txcore_rabbitmq.options import PARTITION_COUNT_MAX, Options, parse_url

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.records import LogKind
from txcore_spark.plan import BATCH_ROWS, TARGET, Edge, Range, ShortReadError, Source, flushed, split_evenly

PREFETCH: Final = 2_000
ACK_EVERY: Final = 500
QUIET_S: Final = 0.5
"""Silence, in seconds, after which the end of a stream is read; the messages of the last chunk arrive at once."""
FREEZE_S: Final = 3.0
"""Longest time, in seconds, for which a growing stream is followed before its end is read."""
HEARTBEAT_S: Final = 30
_BROKERS_OWN: Final = frozenset({OFFSET_HEADER, "x-stream-filter-value"})


class RabbitmqBroker:
    """The driver's view of a broker. Implements `Broker`."""

    def __init__(self, options: Options, timeout_s: float) -> None:
        self._options = options
        self._timeout_s = timeout_s
        self._connection = _connect(options, timeout_s)

    def topics(self) -> None:
        """See `Broker.topics`: AMQP cannot list topics."""

    def edges(self, source: Source) -> Sequence[Edge]:
        """See `Broker.edges`."""
        if source.log == TARGET:
            name = _queue(source.name)
            self._require_stream(name)
            return [self._edge(0, name)]
        kind = LogKind(source.log)
        found = []
        for partition in range(PARTITION_COUNT_MAX):
            name = log_name(source.name, kind, partition)
            if self._count(name) is None:
                break
            found.append(self._edge(partition, name))
        if not found:
            raise ConfigError(f"there is no group {source.name!r} on this broker", key="group")
        return found

    def _edge(self, partition: int, name: str) -> Edge:
        count = self._count(name) or 0
        with self._consuming(name, "last") as last:
            end = 1 + max(self._offsets(name, last, must_come=count > 0), default=-1)
        if not end:
            return Edge(partition, 0, 0)
        with self._consuming(name, "first") as first:
            start = min(self._offsets(name, first, must_come=True, is_first=True))
        if end - start < count:
            raise BackendUnavailableError(f"stream {name!r} counts {count} messages, but has {end - start} offsets")
        return Edge(partition, start, end, is_truncated=start > 0)

    def _offsets(self, name: str, came: list[int], *, must_come: bool, is_first: bool = False) -> list[int]:
        """Wait until the messages that the stream held when the consumer was attached have arrived."""
        began_s = last_s = time.monotonic()
        while True:
            before = len(came)
            self._connection.process_data_events(0.05)
            now_s = time.monotonic()
            last_s = now_s if len(came) > before else last_s
            if came and (is_first or now_s - last_s >= QUIET_S or now_s - began_s >= FREEZE_S):
                return came
            if not came and not must_come and now_s - began_s >= 2 * QUIET_S and not self._count(name):
                return came
            if not came and now_s - began_s >= self._timeout_s:
                raise BackendUnavailableError(f"stream {name!r} holds messages, but delivers none")

    @contextlib.contextmanager
    def _consuming(self, name: str, start: str) -> Iterator[list[int]]:
        came: list[int] = []
        channel = self._connection.channel()
        try:
            channel.basic_qos(prefetch_count=PREFETCH)

            def take(channel: Any, method: Any, properties: Any, _body: bytes) -> None:
                came.append(int(properties.headers[OFFSET_HEADER]))
                if len(came) % ACK_EVERY == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)

            channel.basic_consume(name, take, arguments={OFFSET_HEADER: start})
            yield came
        except exceptions.AMQPError as error:
            raise translate(error, f"stream {name!r}") from error
        finally:
            self._drop(channel)

    def _drop(self, channel: Any) -> None:
        """Close a channel with deliveries on it, which a stream answers by closing the connection."""
        with contextlib.suppress(exceptions.AMQPError):
            channel.close()
        if not self._connection.is_open:
            self._connection = _connect(self._options, self._timeout_s)

    def _count(self, name: str) -> int | None:
        """Return the broker's count of a queue's messages; None if there is no such queue."""
        channel = self._connection.channel()
        try:
            return int(channel.queue_declare(name, passive=True).method.message_count)
        except exceptions.ChannelClosedByBroker as error:
            if error.reply_code == 404:
                return None
            raise translate(error, f"stream {name!r}") from error
        except exceptions.AMQPError as error:
            raise translate(error, f"stream {name!r}") from error
        finally:
            self._drop(channel)

    def _require_stream(self, name: str) -> None:
        """Refuse a queue that cannot be replayed: consuming it would take its messages from their consumers."""
        if self._count(name) is None:
            raise ConfigError(f"there is no queue {name!r}", key="topics")
        channel = self._connection.channel()
        text = ""
        try:
            # Nothing is changed: a stream refuses to be declared as another type, and the error names its type.
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})
        except exceptions.ChannelClosedByBroker as error:
            text = error.reply_text
        finally:
            self._drop(channel)
        if "'stream'" not in text:
            raise ConfigError(
                f"{name!r} is a queue and cannot be replayed: bind a stream beside it and name that in taps", key="taps"
            )

    def seal(self, source: Source, partition: int, end: int) -> str:
        """See `Broker.seal`: a hash of the last record, because AMQP does not say when a stream was made."""
        is_target = source.log == TARGET
        name = _queue(source.name) if is_target else log_name(source.name, LogKind(source.log), partition)
        channel = self._connection.channel()
        try:
            channel.basic_qos(prefetch_count=PREFETCH)
            arguments = {OFFSET_HEADER: end - 1}
            for method, properties, body in channel.consume(
                name, arguments=arguments, inactivity_timeout=self._timeout_s
            ):
                if method is None or properties.headers[OFFSET_HEADER] >= end:
                    return ""
                if properties.headers[OFFSET_HEADER] == end - 1:
                    headers = {key: each for key, each in properties.headers.items() if key not in _BROKERS_OWN}
                    return hashlib.blake2b(repr(sorted(headers.items())).encode() + body, digest_size=16).hexdigest()
        except exceptions.AMQPError as error:
            raise translate(error, f"stream {name!r}") from error
        finally:
            self._drop(channel)
        return ""

    def split(self, wanted: Range, records_max: int) -> Sequence[Range]:
        """See `Broker.split`."""
        return [replace(part, expected=None) for part in split_evenly(wanted, records_max)]

    def close(self) -> None:
        """See `Broker.close`."""
        with contextlib.suppress(exceptions.AMQPError):
            self._connection.close()


def open_broker(url: str, timeout_s: float) -> RabbitmqBroker:
    """See `Reader.open_broker`."""
    return RabbitmqBroker(parse_url(url), timeout_s)


def read(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """See `Reader.read`."""
    source, rows, count = wanted.source, wanted.rows(), 0
    is_target = source.log == TARGET
    name = _queue(source.name) if is_target else log_name(source.name, LogKind(source.log), wanted.place.partition)
    add = {"half": rows.add_half, "op": rows.add_ops, "parked": rows.add_parked}.get(source.log)
    connection = _connect(parse_url(url), wanted.timeout_s)
    try:
        for offset, properties, body in _messages(connection, name, wanted):
            count += 1
            if add is not None:
                if not is_end_marker(properties.message_id):
                    add(offset, body, None)
            else:
                headers = {
                    key: value if isinstance(value, str | bytes) else str(value)
                    for key, value in properties.headers.items()
                    if key not in _BROKERS_OWN
                }
                rows.add_target(offset, source.topic, None, body, headers, None)
            if count % BATCH_ROWS == 0:
                yield from flushed(rows, at_least=1)
    except exceptions.AMQPError as error:
        raise translate(error, f"stream {name!r}") from error
    finally:
        # A closing channel returns its prefetched messages, and a stream refuses that: the connection ends.
        with contextlib.suppress(exceptions.AMQPError):
            connection.close()
    rows.add_cover(wanted.start, wanted.end, count)
    yield rows.take()


def _messages(connection: Any, name: str, wanted: Range) -> Iterator[tuple[int, Any, bytes]]:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    consumed = channel.consume(name, arguments={OFFSET_HEADER: wanted.start}, inactivity_timeout=wanted.timeout_s)
    is_first = True
    for method, properties, body in consumed:
        if method is None:
            raise ShortReadError(f"nothing came for {wanted.timeout_s:g} s; the end is offset {wanted.end}")
        offset = int(properties.headers[OFFSET_HEADER])
        if method.delivery_tag % ACK_EVERY == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if offset < wanted.start:
            continue  # Delivery starts with the chunk that holds the offset, so the first messages may be before it.
        if is_first and offset > wanted.start and offset > _first_offset(connection, name, wanted.timeout_s):
            is_first = False  # Offsets have holes anyway; records are gone only if the stream begins later.
        elif is_first and offset > wanted.start:
            raise ShortReadError(f"offsets from {wanted.start} to {offset} are gone (retention)")
        is_first = False
        if offset >= wanted.end:
            return
        yield offset, properties, body
        if offset == wanted.end - 1:
            return


def _first_offset(connection: Any, name: str, timeout_s: float) -> int:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    for method, properties, _ in channel.consume(
        name, arguments={OFFSET_HEADER: "first"}, inactivity_timeout=timeout_s
    ):
        if method is None:
            break
        return int(properties.headers[OFFSET_HEADER])
    raise ShortReadError(f"stream {name!r} does not report its first offset")


def _connect(options: Options, timeout_s: float) -> Any:
    """Connect; a login may take as long as a topic may be silent, because a busy broker is no unreadable one."""
    patient = replace(options, connect_timeout_s=max(options.connect_timeout_s, timeout_s))
    return open_blocking(connection_parameters(patient, HEARTBEAT_S, "txcore audit"), "connecting")


def _queue(topic: str) -> str:
    target = parse_topic(topic)
    return target.routing_key if not target.exchange else topic
