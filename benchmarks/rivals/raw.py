"""Kafka's own client without any transaction: the yardstick, in the same run as the others.

It is as durable as txcore's own publishing: idempotent, `acks=all`, with the plugin's settings.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final

from confluent_kafka import Producer
from txcore_kafka.clients import producer_config
from txcore_kafka.options import parse_url

from benchmarks.brokers.kafka import KafkaPublisher
from benchmarks.drive import Drive
from benchmarks.place import KEY
from benchmarks.rivals import measures
from benchmarks.rivals.system import MESSAGES, PAIRS, Figures, Plan, Row, body_of, callers
from benchmarks.rivals.topic import Topic, kafka
from benchmarks.yardsticks import PIPELINED_COUNT

THREADS: Final = (1, 16, 64)
_WARM_UP_S: Final = 0.5
_FLUSH_S: Final = 30.0


class RawKafka:
    """The system Kafka, without anything on top of it."""

    name = "raw Kafka"

    def prepare(self) -> None:
        """Do nothing: the tests' own broker is used."""

    def measure(self, plan: Plan) -> Figures:
        """Measure messages pipelined and awaited, and the time from hand-over to an ordinary consumer."""
        with kafka() as servers:
            url, topic = f"kafka://{servers}", Topic(servers, "raw")
            found = self._pipelined(url, topic, plan) | self._awaited(url, topic, plan)
            found |= self._visible(url, topic, plan)
            topic.close()
        return found

    def _pipelined(self, url: str, topic: Topic, plan: Plan) -> dict[Row, float]:
        publisher = KafkaPublisher(url, topic.name, body_of(0), KEY)

        def call() -> None:
            publisher.hand_over(PIPELINED_COUNT)

        Drive(_WARM_UP_S).threads(call, 1, PIPELINED_COUNT, finish=publisher.drain)
        sample = Drive(plan.seconds).threads(call, 1, PIPELINED_COUNT, finish=publisher.drain)
        publisher.close()
        return {Row(MESSAGES, "pipelined", "/s"): sample.per_s}

    def _awaited(self, url: str, topic: Topic, plan: Plan) -> dict[Row, float]:
        publisher = KafkaPublisher(url, topic.name, body_of(0), KEY)

        def pair() -> None:
            publisher.publish()
            publisher.publish()

        Drive(_WARM_UP_S).threads(publisher.publish, 1)
        found = {
            Row(MESSAGES, callers(count), "/s"): Drive(plan.seconds).threads(publisher.publish, count).per_s
            for count in THREADS
        }
        found[Row(PAIRS, callers(1), "/s")] = Drive(plan.seconds).threads(pair, 1).per_s
        publisher.close()
        return found

    def _visible(self, url: str, topic: Topic, plan: Plan) -> dict[Row, float]:
        producer: Any = Producer(producer_config(parse_url(url)))

        def hand_over(number: int) -> float:
            at_s = time.monotonic()
            producer.produce(topic.name, body_of(number), KEY)
            producer.poll(0)
            return at_s

        found = measures.visible(hand_over, itertools.count(1), topic, plan)
        producer.flush(_FLUSH_S)
        return found
