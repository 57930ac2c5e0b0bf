"""Reading Kafka by offsets: a partition is done only when the consumer's position has reached the frozen end.

Half logs and targets are cut at the high watermark, op logs at the last stable offset. A transaction's op may become
readable before its targets, so targets are cut after the records of open transactions, and the reader waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import sleep
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it lists no names of its own
    ConfigResource,
    ResourceType,
)
from txcore_kafka.clients import make_admin, make_consumer
from txcore_kafka.codec import is_leaderless, translated
from txcore_kafka.ends import is_end_marker
from txcore_kafka.options import Options, is_own_topic, parse_url, topic_name

from txcore.clock import SystemClock
from txcore.errors import BackendTimeoutError, ConfigError, TxcoreError
from txcore.records import LogKind
from txcore_spark.plan import (
    BATCH_ROWS,
    HALF,
    OP,
    PARKED,
    TARGET,
    Edge,
    Range,
    ShortReadError,
    Source,
    flushed,
    split_evenly,
)
from txcore_spark.rows import Rows, joined_headers

POLL_S: Final = 0.25
LEADER_PAUSE_S: Final = 0.1
"""Time, in seconds, between two requests to a partition that has no leader."""
CONSUMED_MAX: Final = 5_000
CONSUMER_GROUP: Final = "txcore-audit"
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"


class KafkaBroker:
    """The driver's view of a cluster. Implements `Broker`."""

    def __init__(self, options: Options, timeout_s: float) -> None:
        self._options = options
        self._timeout_s = timeout_s
        self._clock = SystemClock()
        self._admin = make_admin(options.connection())
        self._consumers = {level: _consumer(options, level) for level in (READ_COMMITTED, READ_UNCOMMITTED)}

    def topics(self) -> Sequence[str]:
        """See `Broker.topics`."""
        return sorted(topic for topic in self._listed("").topics if not is_own_topic(topic))

    def edges(self, source: Source) -> Sequence[Edge]:
        """See `Broker.edges`."""
        topic = name_of(source)
        found = self._listed(topic).topics[topic]
        if found.error is not None:
            raise translated(found.error, f"looking for topic {topic!r}")
        if source.log == TARGET:
            self._require_whole(topic)
        consumer = self._consumers[READ_COMMITTED if source.log == OP else READ_UNCOMMITTED]
        is_dense = self._is_dense(source)
        edges = []
        for partition in sorted(found.partitions):
            low, high = self._bounds(consumer, TopicPartition(topic, partition))
            edges.append(Edge(partition, low, high, is_truncated=low > 0, count=high - low if is_dense else None))
        return edges

    def seal(self, source: Source, partition: int, end: int) -> str:  # noqa: ARG002 - one id for a whole topic
        """See `Broker.seal`: the id that a topic gets when it is made."""
        topic = name_of(source)
        try:
            answer = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)[topic]
            found = answer.result(2 * self._timeout_s).topic_id
        except KafkaException as error:
            raise translated(error, f"looking for topic {topic!r}") from error
        return f"{found.get_most_significant_bits():x}-{found.get_least_significant_bits():x}"

    def split(self, wanted: Range, records_max: int) -> Sequence[Range]:
        """See `Broker.split`."""
        is_dense = self._is_dense(wanted.source)
        return [
            replace(part, expected=part.end - part.start if is_dense else None)
            for part in split_evenly(wanted, records_max)
        ]

    def _bounds(self, consumer: Any, place: TopicPartition) -> tuple[int, int]:
        """Return the bounds of a partition, asked for again while it has no leader."""
        until_s = self._clock.elapsed_s() + self._timeout_s
        while True:
            try:
                low, high = consumer.get_watermark_offsets(place, timeout=self._timeout_s, cached=False)
            except KafkaException as error:
                if not is_leaderless(error) or self._clock.elapsed_s() >= until_s:
                    raise translated(error, f"asking for the bounds of {place.topic!r}") from error
                sleep(LEADER_PAUSE_S)
            else:
                return low, high

    def _is_dense(self, source: Source) -> bool:
        """Return whether every offset holds a record, without a marker of a transaction between our records."""
        return source.log == HALF or (source.log != TARGET and not self._options.is_transactional)

    def close(self) -> None:
        """See `Broker.close`."""
        for consumer in self._consumers.values():
            consumer.close()

    def _listed(self, topic: str) -> Any:
        try:
            return self._admin.list_topics(topic or None, timeout=self._timeout_s)
        except KafkaException as error:
            raise translated(error, "listing topics") from error

    def _require_whole(self, topic: str) -> None:
        """Refuse a topic from which compaction takes messages one by one."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            answer = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
            policy = str(answer.result(self._timeout_s)["cleanup.policy"].value)
        except KafkaException as error:
            raise translated(error, f"reading the settings of {topic!r}") from error
        if "compact" in policy:
            raise ConfigError(f"topic {topic!r} is compacted: a missing message proves nothing there", key="topics")


def open_broker(url: str, timeout_s: float) -> KafkaBroker:
    """See `Reader.open_broker`."""
    return KafkaBroker(parse_url(url), timeout_s)


def name_of(source: Source) -> str:
    """Return the topic of a source."""
    return source.name if source.log == TARGET else topic_name(source.name, LogKind(source.log))


def read(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """See `Reader.read`."""
    source, rows, count = wanted.source, wanted.rows(), 0
    consumer = _consumer(parse_url(url), READ_COMMITTED)
    try:
        for message in messages(consumer, name_of(source), wanted):
            count += 1
            _, stamp_ms = message.timestamp()
            headers = message.headers() or () if source.log == TARGET else ()
            add_record(rows, source, message.offset(), stamp_ms or None, message.key(), message.value() or b"", headers)
            if count % BATCH_ROWS == 0:
                yield from flushed(rows, at_least=1)
    finally:
        consumer.close()
    if wanted.expected is not None and count != wanted.expected:
        raise ShortReadError(f"{count} records of {wanted.expected} by their offsets")
    rows.add_cover(wanted.start, wanted.end, count)
    yield rows.take()


def add_record(
    rows: Rows,
    source: Source,
    offset: int,
    stamp_ms: int | None,
    key: bytes | None,
    value: bytes,
    headers: Iterable[tuple[str, bytes | None]],
) -> None:
    """Add one record to *rows* in the form of its log; skip a record that only marks the log's end."""
    if source.log != TARGET and is_end_marker(key):
        return
    if source.log == HALF:
        rows.add_half(offset, value, stamp_ms)
    elif source.log == OP:
        rows.add_ops(offset, value, stamp_ms)
    elif source.log == PARKED:
        rows.add_parked(offset, value, stamp_ms)
    else:
        rows.add_target(offset, source.topic, key, value, joined_headers(headers), stamp_ms)


def messages(consumer: Any, topic: str, wanted: Range) -> Iterator[Any]:
    """Yield the messages of a range, until the consumer's position is at the range's end.

    Raises:
        ShortReadError: no record arrived for the range's timeout.
        TxcoreError: the broker refuses, or records at the start are gone.
    """
    place = TopicPartition(topic, wanted.place.partition, wanted.start)
    consumer.assign([place])
    silent_s = 0.0
    position = wanted.start
    while position < wanted.end:
        found = consumer.consume(CONSUMED_MAX, POLL_S)
        before = position
        for message in found:
            error = message.error()
            if error is None:
                if message.offset() >= wanted.end:
                    return
                position = message.offset() + 1
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the driver's names for its own errors
                position = max(position, message.offset())
            else:
                raise _refused(error, topic, wanted)
        silent_s = 0.0 if position > before else silent_s + POLL_S
        if silent_s >= wanted.timeout_s:
            raise ShortReadError(
                f"nothing came for {wanted.timeout_s:g} s at offset {position}; the end is {wanted.end}"
            )


def _refused(error: KafkaError, topic: str, wanted: Range) -> TxcoreError:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
        return ShortReadError(f"records of {topic!r} are gone from offset {wanted.start} on (retention)")
    found = translated(error, f"reading {topic!r}")
    return ShortReadError(str(found)) if isinstance(found, BackendTimeoutError) else found


def _consumer(options: Options, isolation: str) -> Any:
    return make_consumer(
        options.connection()
        | {
            "group.id": CONSUMER_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 65_536,
        }
    )
