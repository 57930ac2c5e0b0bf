"""RabbitMQ through pika: persistent messages with confirms to a quorum queue, on a connection with its own thread."""

from __future__ import annotations

import base64
import json
import logging
import threading
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pika  # type: ignore[import-untyped]
from pika.adapters.select_connection import SelectConnection  # type: ignore[import-untyped]
from txcore_conformance import brokers

from benchmarks.brokers import TIMEOUT_S, WINDOW_COUNT, Arrived

PERSISTENT: Final = 2
PREFETCH: Final = 1_000

logging.getLogger("pika").setLevel(logging.CRITICAL)


class RabbitmqServer:
    """One RabbitMQ node with its default settings."""

    def __init__(self) -> None:
        self._broker = brokers.managed("rabbitmq")
        self._broker.start()
        self.url, self.version, self.pid = self._broker.url, self._broker.version, self._broker.pid

    def create_topic(self, topic: str) -> None:
        """See `Server.create_topic`."""
        with pika.BlockingConnection(_parameters(self.url)) as connection:
            connection.channel().queue_declare(topic, durable=True, arguments={"x-queue-type": "quorum"})

    def raw_publisher(self, topic: str, body: bytes, key: bytes) -> RabbitmqPublisher:
        """See `Server.raw_publisher`."""
        return RabbitmqPublisher(self.url, topic, body, key)

    def clear(self) -> None:
        """See `Server.clear`."""
        request = urllib.request.Request(f"{self._broker.monitor_url}/api/queues?columns=name&disable_stats=true")
        request.add_header("Authorization", f"Basic {base64.b64encode(b'guest:guest').decode()}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            queues = json.load(answer)
        with pika.BlockingConnection(_parameters(self.url)) as connection:
            channel = connection.channel()
            for queue in queues:
                channel.queue_delete(queue["name"])

    def close(self) -> None:
        """See `Server.close`."""
        self._broker.remove()


class RabbitmqPublisher:
    """One channel in confirm mode; a call wakes its thread once."""

    def __init__(self, url: str, topic: str, body: bytes, key: bytes) -> None:
        self._queue, self.body, self._headers = topic, body, {"txcore-key": key}
        self._tag = 0
        self._unconfirmed: dict[int, None] = {}
        self._waiting: list[tuple[int, threading.Lock]] = []  # most unconfirmed messages, and the waiter's lock
        self._failed = ""
        self._channel: Any = None
        self._is_ready = threading.Event()
        self._connection: Any = SelectConnection(_parameters(url), on_open_callback=self._opened)
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)
        self._thread.start()
        if not self._is_ready.wait(TIMEOUT_S):
            raise TimeoutError("RabbitMQ opened no channel in time")

    def publish(self) -> None:
        """See `RawPublisher.publish`."""
        self._enter(1, 0)

    def hand_over(self, count: int) -> None:
        """See `RawPublisher.hand_over`."""
        self._enter(count, WINDOW_COUNT)

    def drain(self) -> None:
        """See `RawPublisher.drain`."""
        self._enter(0, 0)

    def close(self) -> None:
        """See `RawPublisher.close`."""
        ioloop = self._connection.ioloop
        ioloop.add_callback_threadsafe(self._connection.close)
        ioloop.add_callback_threadsafe(partial(ioloop.call_later, 0.1, ioloop.stop))
        self._thread.join()

    def _enter(self, count: int, unconfirmed_max: int) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._connection.ioloop.add_callback_threadsafe(partial(self._publish, count, unconfirmed_max, lock))
        lock.acquire()
        if self._failed:
            raise RuntimeError(f"a yardstick's message was not stored: {self._failed}")

    def _publish(self, count: int, unconfirmed_max: int, lock: threading.Lock) -> None:
        properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers=self._headers)
        for _ in range(count):
            self._channel.basic_publish("", self._queue, self.body, properties, mandatory=True)
            self._tag += 1
            self._unconfirmed[self._tag] = None
        self._waiting.append((unconfirmed_max, lock))
        self._wake()

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            self._failed = method.NAME
        if method.multiple:
            while self._unconfirmed and (first := next(iter(self._unconfirmed))) <= method.delivery_tag:
                del self._unconfirmed[first]
        else:
            self._unconfirmed.pop(method.delivery_tag, None)
        self._wake()

    def _wake(self) -> None:
        while self._waiting and len(self._unconfirmed) <= self._waiting[0][0]:
            self._waiting.pop(0)[1].release()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._prepare)

    def _prepare(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._is_ready.set())


def start() -> RabbitmqServer:
    """Start the broker."""
    return RabbitmqServer()


def consume(url: str, topic: str, arrived: Arrived, ready: Callable[[], None]) -> None:
    """See `benchmarks.brokers.Consume`: pushed, acknowledged one by one."""
    connection = pika.BlockingConnection(_parameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)

    def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        arrived(body)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(topic, take)
    ready()
    channel.start_consuming()


def _parameters(url: str) -> Any:
    return pika.URLParameters(url.replace("rabbitmq", "amqp", 1).removesuffix("/") + "/%2F")
