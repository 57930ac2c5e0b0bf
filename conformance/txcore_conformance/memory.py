"""Harnesses for the broker in memory: one per profile, so that the suite sees every combination of promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from txcore.memory import KAFKA_LIKE, NATS_LIKE, RABBITMQ_LIKE, STRONG, Faults, MemoryBackend, MemoryBroker, Profile
from txcore.port import Reader
from txcore.records import LogKind, LogRecord, Position
from txcore.signing import GroupKeys, SignedBackend, SigningKeys
from txcore_conformance.harness import Delivered, Harness


class SilenceableBackend(MemoryBackend):
    """A connection whose readers return nothing while it is silent."""

    is_silent = False

    def silence(self, is_silent: bool) -> None:  # noqa: FBT001 - the suite's signature
        """Let reads return nothing, or all records."""
        self.is_silent = is_silent

    def read(self, group: str, kind: LogKind, partition: int, start: Position | None = None) -> Reader:
        """See `Backend.read`."""
        return _SilenceableReader(self, super().read(group, kind, partition, start))


class _Silent(Faults):
    def visible(self, count: int) -> int:  # noqa: ARG002
        return 0


class _SilenceableReader:
    """A reader to which no record is visible while its connection is silent; implements `Reader`."""

    def __init__(self, backend: SilenceableBackend, reader: Reader) -> None:
        self._backend, self._reader = backend, reader
        self.fetch, self.end, self.close = reader.fetch, reader.end, reader.close

    @property
    def passed(self) -> Position:
        """See `Reader.passed`."""
        return self._reader.passed

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`."""
        broker = self._backend.broker
        with broker.lock:
            faults = broker.faults
            broker.faults = _Silent() if self._backend.is_silent else faults
            try:
                return self._reader.read(count_max)
            finally:
                broker.faults = faults


class MemoryHarness(Harness):
    """A broker that promises everything; topics must be created."""

    profile: ClassVar[Profile] = STRONG
    immunity_s = 0.03

    def __init__(self) -> None:
        self.broker = MemoryBroker(replace(self.profile, auto_create=False))

    def open(self) -> MemoryBackend:
        """See `Harness.open`."""
        return MemoryBackend(self.broker)

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        with self.broker.lock:
            self.broker.append(group, kind, partition, body)
        return True

    def open_silenceable(self) -> tuple[MemoryBackend, Callable[[bool], None]]:
        """See `Harness.open_silenceable`; the connection has faults of its own, and the same logs."""
        backend = SilenceableBackend(self.broker)
        return backend, backend.silence

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
        return "never-created-topic"

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


class _EveryGroup(SigningKeys):
    """The same key for every group."""

    def of(self, group: str) -> GroupKeys:  # noqa: ARG002
        """See `SigningKeys.of`."""
        return GroupKeys(sign_with="one", keys={"one": bytes(range(32))})


class SignedHarness(MemoryHarness):
    """A broker that promises everything, whose groups sign their records."""

    def open(self) -> SignedBackend:  # type: ignore[override]
        """See `Harness.open`."""
        return SignedBackend(super().open(), _EveryGroup({}))


class KafkaLikeHarness(MemoryHarness):
    """Promises the same as plain Kafka: no atomic release, no unique resolutions, no fencing."""

    profile = KAFKA_LIKE


class RabbitmqLikeHarness(MemoryHarness):
    """Promises the same as RabbitMQ streams: as Kafka, and no server time."""

    profile = RABBITMQ_LIKE


class NatsLikeHarness(MemoryHarness):
    """Promises the same as plain NATS: only the op is unique, targets are de-duplicated for a while."""

    profile = NATS_LIKE
