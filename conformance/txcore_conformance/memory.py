"""Harnesses for the broker in memory: one per profile, so that the suite sees every combination of promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, MemoryBackend, MemoryBroker, Profile
from txcore.records import LogKind
from txcore_conformance.harness import Delivered, Harness


class MemoryHarness(Harness):
    """A broker that promises everything; topics must be created."""

    profile: ClassVar[Profile] = STRONG
    quiet_s = 0.0
    immunity_s = 0.03

    def __init__(self) -> None:
        self.broker = MemoryBroker(replace(self.profile, auto_create=False))

    def open(self) -> MemoryBackend:
        """See `Harness.open`."""
        return MemoryBackend(self.broker)

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`."""
        self.broker.create_topic(topic)

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        with self.broker.lock:
            targets = list(self.broker.topics.get(topic, ()))
        return [Delivered(each.position, each.key, each.body, each.headers, each.appended_ms) for each in targets]

    def missing_topic(self) -> str:
        """See `Harness.missing_topic`."""
        return "nobody-made-this-topic"

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`."""
        (self.broker.refusing.add if refuses else self.broker.refusing.discard)(topic)
        return True

    def expire_member(self, group: str, member: str) -> bool:
        """See `Harness.expire_member`."""
        self.broker.expire(group, member)
        return True

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> bool:
        """See `Harness.trim`."""
        self.broker.trim(group, kind, partition, before)
        return True


class KafkaLikeHarness(MemoryHarness):
    """Promises what plain Kafka does: no atomic release, no unique resolutions, no fencing."""

    profile = KAFKA_LIKE


class RabbitmqLikeHarness(MemoryHarness):
    """Promises what RabbitMQ streams do: as Kafka, and no server time."""

    profile = RABBITMQ_LIKE


class NatsLikeHarness(MemoryHarness):
    """Promises what plain NATS does: only the op is unique, targets are de-duplicated for a while."""

    profile = NATS_LIKE
