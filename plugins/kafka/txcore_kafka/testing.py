"""The conformance harness: topics and their records, seen through the broker's plain clients."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it lists no names of its own
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from txcore_conformance import brokers
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.harness import Delivered

from txcore.records import LogKind
from txcore_kafka.options import topic_name

T = TypeVar("T")
TIMEOUT_S: Final = 10.0
MARKERS_S: Final = 40.0
"""Longest wait, in seconds, for the end of a transaction: above `release_time_max_s` of the tests' longest
`transaction_timeout_s`, which is 20 s. A client that gave up leaves its transaction open for that long."""
PAUSE_S: Final = 0.02
TRANSACTION_OPTIONS: Final = "transaction_timeout_s=2.5&transaction_sweep_s=1.2"
SWEEP: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
SWEEP_MS: Final = 1_200
REFUSING_BYTES: Final = 100
"""Limit of a topic, in bytes, that refuses every batch of txcore: the headers alone are larger. It is not lower, as the
broker must be able to write the 78 bytes that end a transaction: it tries for ever, and the client waits."""

NO_LEADER: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""The driver's answers for a partition whose leader it cannot find at the moment."""


class KafkaHarness(BrokerHarness):
    """A broker; topics are not created by publishing, so that a missing one can be recognized."""

    broker_name: ClassVar[str] = "kafka"
    url_options: ClassVar[str] = "?drain_s=1&session_timeout_s=6&silence_s=8"
    silent_member_max_s = 10.0

    def start(self) -> None:
        """See `Harness.start`."""
        super().start()
        self._servers = self.broker.url.partition("://")[2]
        self._admin = AdminClient(
            {"bootstrap.servers": self._servers, "allow.auto.create.topics": False, "log_level": 2}
        )

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`; two partitions."""
        self._create(NewTopic(topic, num_partitions=2))

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`; a consumer of committed records, one partition after the other."""
        consumer, everything = self._consumer("read_committed"), self._consumer("read_uncommitted")
        try:
            found: list[Delivered] = []
            for partition in sorted(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions):
                _, end = _bounds(everything, topic, partition)
                _await_markers(consumer, topic, partition, end)
                found += _read_partition(consumer, topic, partition)
        finally:
            consumer.close()
            everything.close()
        return found

    def _consumer(self, isolation: str) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "txcore-conformance",
                "log_level": 2,
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )

    def missing_topic(self) -> str | None:
        """See `Harness.missing_topic`."""
        return "never-made-topic"

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`; the topic's `max.message.bytes` is lowered, or set back."""
        how = AlterConfigOpType.SET if refuses else AlterConfigOpType.DELETE
        entry = ConfigEntry("max.message.bytes", str(REFUSING_BYTES), incremental_operation=how)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for answer in self._admin.incremental_alter_configs([resource]).values():
            answer.result(TIMEOUT_S)
        return _until(
            lambda: self._does_refuse(topic) is refuses, f"the new limit of {topic!r} did not come into force"
        )

    def _does_refuse(self, topic: str) -> bool:
        """Return whether the topic refuses a record; the transaction is aborted, so no consumer sees the record."""
        errors: list[KafkaError | None] = []
        producer = self._transaction()
        producer.produce(topic, bytes(REFUSING_BYTES), on_delivery=lambda error, _: errors.append(error))
        while not errors:
            producer.poll(PAUSE_S)
        producer.abort_transaction(TIMEOUT_S)
        return errors[0] is not None and errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE

    def _transaction(self) -> Any:
        """Return a producer that has begun a transaction; a new broker creates its transaction log first."""
        name = f"txcore-probe-{secrets.token_hex(5)}"
        producer = Producer({"bootstrap.servers": self._servers, "transactional.id": name, "log_level": 2})
        producer.init_transactions(3 * TIMEOUT_S)
        producer.begin_transaction()
        return producer

    def limited_topic(self, name: str, *, message_size_max: int = 0, message_count_max: int = 0) -> str | None:
        """See `Harness.limited_topic`; a topic of Kafka is never full."""
        if message_count_max:
            return None
        self._create(NewTopic(name, num_partitions=2, config={"max.message.bytes": str(message_size_max)}))
        return name

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        producer = Producer({"bootstrap.servers": self._servers, "log_level": 2})
        producer.produce(topic_name(group, kind), body, partition=partition)
        return producer.flush(TIMEOUT_S) == 0

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> bool:
        """See `Harness.trim`."""
        place = TopicPartition(topic_name(group, kind), partition, before)
        for answer in self._admin.delete_records([place]).values():
            answer.result(TIMEOUT_S)
        return True

    def _create(self, wanted: Any) -> None:
        """Create a topic and wait until the broker knows it."""
        topic = wanted.topic
        _until(
            lambda: self._is_made(wanted) and self._admin.list_topics(topic, TIMEOUT_S).topics[topic].error is None,
            f"topic {topic!r} did not appear",
        )

    def _is_made(self, wanted: Any) -> bool:
        """Return whether the topic exists now; not while the only broker is fenced, as after a long freeze."""
        try:
            for answer in self._admin.create_topics([wanted]).values():
                answer.result(TIMEOUT_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_REPLICATION_FACTOR):
                raise
            return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)
        return True


class KafkaTransactionHarness(KafkaHarness):
    """The harness with `?release=transaction`, on a broker that ends abandoned transactions soon."""

    url_options: ClassVar[str] = f"{KafkaHarness.url_options}&release=transaction&{TRANSACTION_OPTIONS}"
    timeout_s = 30.0

    def start(self) -> None:
        """See `Harness.start`; uses a broker of its own if the shared one ends such transactions too late."""
        super().start()
        if self._sweep_ms() > SWEEP_MS:
            self.stop()
            self._given = brokers.kafka(own=True)
            self._is_owner = True
            super().start()
        self._transaction().abort_transaction(TIMEOUT_S)

    def _sweep_ms(self) -> int:
        node = next(iter(self._admin.list_topics(timeout=TIMEOUT_S).brokers))
        resource = ConfigResource(ResourceType.BROKER, str(node))
        (answer,) = self._admin.describe_configs([resource]).values()
        return int(answer.result(TIMEOUT_S)[SWEEP].value)


def _until(condition: Callable[[], T | None], trouble: str, time_max_s: float = TIMEOUT_S) -> T:
    """Return the first true value of *condition*, evaluated each `PAUSE_S`; else raise TimeoutError with *trouble*."""
    pause = threading.Event()
    for _ in range(round(time_max_s / PAUSE_S)):
        if value := condition():
            return value
        pause.wait(PAUSE_S)
    raise TimeoutError(trouble)


def _bounds(consumer: Any, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset and the end; waits for a leader, which a broker lacks just after a long freeze."""

    def found() -> tuple[int, int] | None:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S, cached=False)
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER:
                raise
            return None
        return low, high

    return _until(found, f"partition {partition} of {topic!r} has no leader")


def _await_markers(consumer: Any, topic: str, partition: int, end: int) -> None:
    """Wait until every transaction before *end* has ended: committed records become visible a little later."""
    _until(lambda: _bounds(consumer, topic, partition)[1] >= end, f"a transaction in {topic!r} does not end", MARKERS_S)


def _read_partition(consumer: Any, topic: str, partition: int) -> list[Delivered]:
    place = TopicPartition(topic, partition, 0)
    place.offset, high = _bounds(consumer, topic, partition)
    found: list[Delivered] = []
    if place.offset == high:
        return found
    consumer.assign([place])
    while True:
        for message in consumer.consume(500, 0.01):
            if message.error() is not None:
                if message.error().code() == message.error()._PARTITION_EOF:  # noqa: SLF001
                    consumer.unassign()
                    return found
                raise KafkaException(message.error())
            headers = dict(message.headers() or ())
            fields = (message.offset(), message.key(), message.value(), headers, message.timestamp()[1] or None)
            found.append(Delivered(*fields, partition))
