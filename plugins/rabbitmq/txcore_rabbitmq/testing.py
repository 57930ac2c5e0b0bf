"""The conformance harness: target topics are queues and exchanges, created and read with pika alone."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pika  # type: ignore[import-untyped]
from txcore_conformance.brokers import Broker
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.harness import Delivered

from txcore.records import LogKind
from txcore_rabbitmq.names import log_exchange, log_name
from txcore_rabbitmq.options import parse_url

ROUTING_KEY: Final = "orders.created"
REFUSING_NAMES: Final = ("refusing", "other")
READ_TIMEOUT_S: Final = 10.0
STORE_TIMEOUT_S: Final = 60.0
PAUSE_S: Final = 0.05
FIRST_STREAM: Final = b"rabbit_stream_coordinator"

# pika logs ten lines for each refused connection, among which the output of a failed test is hard to find.
logging.getLogger("pika").setLevel(logging.CRITICAL)


class RabbitmqHarness(BrokerHarness):
    """A RabbitMQ broker; topics with one of `REFUSING_NAMES` are exchanges with one bound queue, all others queues."""

    broker_name = "rabbitmq"
    url_options = "?claim_heartbeat_s=2&drain_s=1&delivery_timeout_s=4"
    silent_member_max_s = 8.0

    def __init__(self, broker: Broker | None = None) -> None:
        super().__init__(broker)
        self._connection: Any = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """See `Harness.start`.

        A new node forgets its first stream if it is killed within a second. Until then the name of its stream
        coordinator, which keeps the list of streams, is not on the disk.
        """
        super().start()
        if self.broker.can_be_killed:
            with self._channel() as channel:
                channel.queue_declare("first-stream", durable=True, arguments={"x-queue-type": "stream"})
            deadline_s = time.monotonic() + STORE_TIMEOUT_S
            while not any(FIRST_STREAM in path.read_bytes() for path in self.broker.folder.rglob("names.dets")):
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the node did not store the name of its stream coordinator")
                time.sleep(PAUSE_S)

    def stop(self) -> None:
        """See `Harness.stop`."""
        if self._connection is not None:
            with contextlib.suppress(pika.exceptions.AMQPError):
                self._connection.close()
        super().stop()

    def topic(self, name: str) -> str:
        """See `Harness.topic`."""
        return f"{name}/{ROUTING_KEY}" if name.startswith(REFUSING_NAMES) else name

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`."""
        exchange, _, routing_key = topic.rpartition("/")
        with self._channel() as channel:
            channel.queue_declare(_queue(topic), durable=True, arguments={"x-queue-type": "classic"})
            if exchange:
                channel.exchange_declare(exchange, "topic", durable=True)
                channel.queue_bind(_queue(topic), exchange, routing_key)

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`. All messages are taken, and then requeued by a nack, which keeps the order."""
        queue = _queue(topic)
        taken: list[Delivered] = []

        def take(_channel: Any, _method: Any, properties: Any, body: bytes) -> None:
            headers = dict(properties.headers or {})
            taken.append(Delivered(len(taken), None, body, headers))

        with self._channel() as channel:
            count = channel.queue_declare(queue, passive=True).method.message_count
            if count:
                consumer = channel.basic_consume(queue, take)
                while len(taken) < count:
                    self._connection.process_data_events(READ_TIMEOUT_S)
                channel.basic_cancel(consumer)
                channel.basic_nack(0, multiple=True, requeue=True)
                self._await_count(channel, queue, count)
        return taken

    def _await_count(self, channel: Any, queue: str, count: int) -> None:
        """Wait until all messages are back: a queue may report its count before it has handled earlier requests."""
        deadline_s = time.monotonic() + STORE_TIMEOUT_S
        while channel.queue_declare(queue, passive=True).method.message_count < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"queue {queue!r} did not take back its {count} messages")
            self._connection.sleep(PAUSE_S)

    def missing_topic(self) -> str | None:
        """See `Harness.missing_topic`."""
        return "never-made-queue"

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`: without its binding, an exchange returns published messages."""
        exchange, _, routing_key = topic.rpartition("/")
        if not exchange:
            return False
        with self._channel() as channel:
            (channel.queue_unbind if refuses else channel.queue_bind)(_queue(topic), exchange, routing_key)
        return True

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        with self._channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish(log_exchange(group, kind), log_name(group, kind, partition), body, mandatory=True)
        return True

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Any]:
        with self._lock:  # several threads may use the harness at once
            channel = self._opened_channel()
            yield channel
            channel.close()

    def _opened_channel(self) -> Any:
        if self._connection is not None:
            with contextlib.suppress(pika.exceptions.AMQPError):  # the broker may have been killed meanwhile
                return self._connection.channel()
        self._connection = connect(self.url)
        return self._connection.channel()


def connect(url: str, **settings: Any) -> Any:
    """Return a plain, blocking connection to the broker of a `rabbitmq://` URL."""
    options = parse_url(url)
    credentials = pika.PlainCredentials(options.user, options.password)
    parameters: Mapping[str, Any] = {"heartbeat": 0, **settings}
    return pika.BlockingConnection(
        pika.ConnectionParameters(options.host, options.port, options.vhost, credentials, **parameters)
    )


def _queue(topic: str) -> str:
    return topic.partition("/")[0]
