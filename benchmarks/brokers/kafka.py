"""Kafka through confluent-kafka: an idempotent producer with acks=all, pipelined or awaited through a poll thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # it lists no names of its own
from txcore_conformance import brokers
from txcore_kafka.clients import producer_config
from txcore_kafka.options import parse_url

from benchmarks.brokers import PARTITIONS, TIMEOUT_S, WINDOW_COUNT, Arrived

POLL_S: Final = 0.02
EMPTY_POLLS: Final = 512
"""Number of messages between two polls for acknowledgements, while there is room."""


class KafkaServer:
    """One Kafka node with its default settings, on Java with the settings of its start script."""

    def __init__(self) -> None:
        self._broker = brokers.kafka_as_shipped()
        self._broker.start()
        self.url, self.version, self.pid = self._broker.url, self._broker.version, self._broker.pid
        self._admin = AdminClient({"bootstrap.servers": _servers(self.url), "log_level": 2})

    def create_topic(self, topic: str) -> None:
        """See `Server.create_topic`."""
        for answer in self._admin.create_topics([NewTopic(topic, PARTITIONS)]).values():
            answer.result(TIMEOUT_S)
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._admin.list_topics(topic, TIMEOUT_S).topics[topic].error is not None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"topic {topic!r} did not appear")
            time.sleep(0.02)

    def raw_publisher(self, topic: str, body: bytes, key: bytes) -> KafkaPublisher:
        """See `Server.raw_publisher`."""
        return KafkaPublisher(self.url, topic, body, key)

    def clear(self) -> None:
        """See `Server.clear`."""
        topics = [each for each in self._admin.list_topics(timeout=TIMEOUT_S).topics if not each.startswith("__")]
        for answer in self._admin.delete_topics(topics).values() if topics else ():
            answer.result(TIMEOUT_S)

    def close(self) -> None:
        """See `Server.close`."""
        self._broker.remove()


class KafkaPublisher:
    """A producer with the plugin's settings, without the plugin."""

    def __init__(self, url: str, topic: str, body: bytes, key: bytes) -> None:
        self._producer: Any = Producer(producer_config(parse_url(url)))
        self._topic, self.body, self._key = topic, body, key
        self._handed_over = 0
        self._acknowledged = 0
        self._failed: Any = None
        self._poller: threading.Thread | None = None
        self._is_closed = False

    def publish(self) -> None:
        """See `RawPublisher.publish`: the callback releases a lock, on a thread that only polls."""
        if self._poller is None:
            self._poller = threading.Thread(target=self._poll, daemon=True)
            self._poller.start()
        lock = threading.Lock()
        lock.acquire()

        def acknowledged(error: Any, _message: Any) -> None:
            self._failed = error
            lock.release()

        self._producer.produce(self._topic, self.body, self._key, on_delivery=acknowledged)
        lock.acquire()
        self._require_stored()

    def hand_over(self, count: int) -> None:
        """See `RawPublisher.hand_over`; this thread polls, which is faster than a second thread."""
        assert self._poller is None
        topic, body, key = self._topic, self.body, self._key
        produce, poll, acknowledged = self._producer.produce, self._producer.poll, self._count
        for number in range(count):
            produce(topic, body, key, on_delivery=acknowledged)
            if not number % EMPTY_POLLS:
                poll(0)
        self._handed_over += count
        while self._handed_over - self._acknowledged > WINDOW_COUNT:
            poll(0.001)
        self._require_stored()

    def drain(self) -> None:
        """See `RawPublisher.drain`."""
        while self._acknowledged < self._handed_over:
            self._producer.poll(0.001)
        self._require_stored()

    def close(self) -> None:
        """See `RawPublisher.close`."""
        self._is_closed = True
        if self._poller is not None:
            self._poller.join()

    def _poll(self) -> None:
        while not self._is_closed:
            self._producer.poll(POLL_S)

    def _count(self, error: Any, _message: Any) -> None:
        self._acknowledged += 1
        if error is not None:
            self._failed = error

    def _require_stored(self) -> None:
        if self._failed is not None:
            raise RuntimeError(f"a yardstick's message was not stored: {self._failed}")


def start() -> KafkaServer:
    """Start the broker."""
    return KafkaServer()


def consume(url: str, topic: str, arrived: Arrived, ready: Callable[[], None]) -> None:
    """See `benchmarks.brokers.Consume`."""
    settings = {"bootstrap.servers": _servers(url), "group.id": "bench", "enable.auto.commit": False, "log_level": 2}
    consumer: Any = Consumer(settings | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    consumer.poll(1.0)
    ready()
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            arrived(message.value())


def _servers(url: str) -> str:
    return url.partition("://")[2].partition("?")[0]
