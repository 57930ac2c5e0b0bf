"""A plain consumer of a target topic, as `txcore demo` uses it: a Kafka consumer group, offsets committed by hand."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined] # it lists no names of its own

from txcore.errors import BackendTimeoutError, ClosedError
from txcore_kafka.clients import close, make_admin, make_consumer
from txcore_kafka.codec import exists_already, kafka_error, translated
from txcore_kafka.options import Options
from txcore_kafka.ownership import HEARTBEATS

PAUSE_S: Final = 0.05
CLOSE_MAX_S: Final = 10.0
"""Longest wait of `close`, in seconds, until the group has let the member go."""
_TAKEN_OVER: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._STATE,  # noqa: SLF001 - the driver's names for its own errors begin so
    }
)


@dataclass(frozen=True, slots=True)
class Received:
    """A message as its consumers get it; `position` counts this consumer's messages, over all partitions."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]


class KafkaConsumer:
    """A member of a consumer group that reads one topic. One thread may use it at a time.

    The members share the topic's partitions. A member that takes over a partition continues after the last acknowledged
    message; a new group begins with the topic's first one. Only committed records are read.
    """

    def __init__(self, options: Options, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self._unacknowledged: deque[tuple[int, int | None, int]] = deque()  # position, partition, offset
        self._count = 0
        self._is_closed = False
        session_ms = round(options.session_timeout_s * 1000)
        self._consumer: Any = make_consumer(
            options.connection()
            | {
                "group.id": group,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": session_ms // HEARTBEATS,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([topic], on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def poll(self, count_max: int = 100) -> Sequence[Received]:
        """Return the messages that have arrived, at once; the first polls join the group.

        Raises:
            ConfigError, BackendUnavailableError: the broker refuses this member, or the topic is gone.
        """
        self._require_open()
        received = []
        for message in self._consumer.consume(count_max, 0):
            if message.error() is not None:
                raise translated(message.error(), f"consuming {self.topic!r}")
            self._count += 1
            self._unacknowledged.append((self._count, message.partition(), message.offset()))
            headers = dict(message.headers() or ())
            received.append(Received(self._count, message.key(), message.value() or b"", headers))
        return received

    def ack(self, position: int) -> bool:
        """Store that all messages up to *position*, inclusive, are done; return False if another member took some over.

        Raises:
            BackendUnavailableError, BackendTimeoutError: it is unknown whether the acknowledgement was stored.
        """
        self._require_open()
        if position < 1 or position > self._count:
            return False
        offsets: dict[int, int] = {}
        is_ours = True
        while self._unacknowledged and self._unacknowledged[0][0] <= position:
            _, partition, offset = self._unacknowledged.popleft()
            if partition is None:
                is_ours = False
            else:
                offsets[partition] = offset + 1
        return (not offsets or self._commit(offsets)) and is_ours

    def _commit(self, offsets: Mapping[int, int]) -> bool:
        """Store the next offset of each partition; return False if this member does not own all of them any more."""
        places = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        try:
            errors = [place.error for place in self._consumer.commit(offsets=places, asynchronous=False)]
        except KafkaException as raised:
            errors = [kafka_error(raised)]
        for error in errors:
            if error is not None and error.code() not in _TAKEN_OVER:
                raise translated(error, f"acknowledging {self.topic!r}")
        return not any(errors)

    def close(self) -> None:
        """Leave the group, so that others take over at once; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            close(self._consumer, CLOSE_MAX_S)

    def _on_revoke(self, _consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        self._unacknowledged = deque(
            (position, None if partition in gone else partition, offset)
            for position, partition, offset in self._unacknowledged
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this consumer is closed")


def open_consumer(options: Options, topic: str, group: str) -> KafkaConsumer:
    """Return a consumer of *topic*, which is made if it is missing; see `BackendPlugin.consumer`.

    Raises:
        ConfigError: the topic cannot be made with these settings.
        BackendUnavailableError, BackendTimeoutError: the broker does not answer.
    """
    make_topic(options, topic)
    return KafkaConsumer(options, topic, group)


def make_topic(options: Options, topic: str) -> None:
    """Make a topic that is missing, with the URL's `partitions` and `replication_factor`; see `BackendPlugin.target`.

    Raises:
        ConfigError: the topic cannot be made with these settings.
        BackendUnavailableError, BackendTimeoutError: the broker does not answer.
    """
    admin = make_admin(options.connection())
    wanted = NewTopic(topic, num_partitions=options.partitions, replication_factor=options.replication_factor)
    timeout_s = options.control_timeout_s
    for answer in admin.create_topics([wanted], request_timeout=timeout_s).values():
        try:
            answer.result(2 * timeout_s)
        except KafkaException as error:
            if not exists_already(error):
                raise translated(error, f"making topic {topic!r}") from error
    pause = threading.Event()
    for _ in range(round(timeout_s / PAUSE_S)):
        if admin.list_topics(topic, timeout_s).topics[topic].error is None:
            return
        pause.wait(PAUSE_S)
    raise BackendTimeoutError(f"topic {topic!r} did not appear within {timeout_s:g} s")
