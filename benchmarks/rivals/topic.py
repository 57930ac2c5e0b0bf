"""A Kafka topic as its readers see it: the number of messages, their numbers, and the time of each arrival."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # it lists no names of its own
from txcore_conformance import brokers

from benchmarks.rivals.system import number_of

PARTITIONS: Final = 4
_WAIT_S: Final = 10.0
_WARM_UP_S: Final = 10.0
_WARM_UP_BATCH: Final = 20


@contextlib.contextmanager
def kafka() -> Iterator[str]:
    """Run a Kafka broker with its default settings, warmed up; gives `host:port`."""
    broker = brokers.kafka_as_shipped()
    try:
        broker.start()
        servers = broker.url.removeprefix("kafka://")
        _warm_up(servers)
        yield servers
    finally:
        broker.kill()
        broker.remove()


def _warm_up(servers: str) -> None:
    """Load the broker with small requests until its methods are compiled, which would disturb the measurement."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    topic = Topic(servers, "warm-up")
    until_s = time.monotonic() + _WARM_UP_S
    while time.monotonic() < until_s:
        for _ in range(_WARM_UP_BATCH):
            producer.produce(topic.name, b"x" * 300)
        producer.flush(_WAIT_S)
    topic.close()


class Topic:
    """One topic, created here."""

    def __init__(self, servers: str, name: str) -> None:
        self.name = name
        self._servers = servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(_WAIT_S)
        self._counting = self._consumer()
        if not wait_until(self._has_leaders, _WAIT_S):
            raise RuntimeError(f"topic {name} has no leaders")

    def close(self) -> None:
        """Close the topic's connection."""
        self._counting.close()

    def count(self) -> int:
        """Return the number of messages that have been appended."""
        return sum(self._ends())

    def rate_of(self, count: int, limit_s: float) -> float:
        """Return the messages per second, from the first message to message *count*, or until *limit_s* is over."""
        wait_until(lambda: self.count() > 0, limit_s, 0.001)
        begin_s, before = time.monotonic(), self.count()
        wait_until(lambda: self.count() >= count, limit_s, 0.001)
        return (self.count() - before) / (time.monotonic() - begin_s)

    def numbers(self) -> Counter[int]:
        """Read all messages of the topic; returns the count of each number."""
        found: Counter[int] = Counter()
        consumer = self._consumer()
        ends = self._ends()
        consumer.assign([TopicPartition(self.name, each, 0) for each in range(PARTITIONS)])
        left = sum(ends)
        while left > 0:
            for message in consumer.consume(min(left, 1_000), 1.0):
                assert message.error() is None, message.error()
                found[number_of(message.value() or b"")] += 1
                left -= 1
        consumer.close()
        return found

    @contextlib.contextmanager
    def watched(self) -> Iterator[dict[int, float]]:
        """Consume in a thread within the block; gives the first arrival of each number, by time.monotonic()."""
        arrived: dict[int, float] = {}
        is_over = threading.Event()
        consumer = self._consumer()
        consumer.assign([TopicPartition(self.name, each, end) for each, end in enumerate(self._ends())])

        def watch() -> None:
            while not is_over.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    arrived.setdefault(number_of(message.value() or b""), time.monotonic())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield arrived
        finally:
            is_over.set()
            thread.join()
            consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer(
            {"bootstrap.servers": self._servers, "group.id": "reader", "enable.auto.commit": False, "log_level": 2}
        )

    def _has_leaders(self) -> bool:
        try:
            self._ends()
        except KafkaException:
            return False
        return True

    def _ends(self) -> list[int]:
        return [
            self._counting.get_watermark_offsets(TopicPartition(self.name, each), _WAIT_S)[1]
            for each in range(PARTITIONS)
        ]


def wait_until(holds: Callable[[], bool], limit_s: float, pause_s: float = 0.005) -> bool:
    """Wait until the condition holds; returns whether it does."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
    return True
