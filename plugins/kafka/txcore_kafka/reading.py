"""Readers: one consumer per open log, assigned and never subscribed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txcore.clock import Clock
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ClosedError,
    DataLossError,
    WireFormatError,
)
from txcore.records import Checkpoint, LogKind, LogRecord, Position
from txcore_kafka.clients import make_consumer
from txcore_kafka.codec import decode_checkpoint, is_missing, translated
from txcore_kafka.control import Control
from txcore_kafka.options import Options, checkpoint_topic, consumer_group, topic_name
from txcore_kafka.threads import Worker

PREFETCH_KBYTES: Final = 8_192
SILENT_S: Final = 0.25
ARRIVAL_S: Final = 2.0
"""How long a read waits for records that are there but have not arrived; never twice in a row."""
MISSES_MAX: Final = 4
RETRY_S: Final = 0.6
"""Between two questions to a broker that did not answer the first."""
FETCH_POLL_S: Final = 0.05


class Connection:
    """A consumer, and what it heard about its broker."""

    __slots__ = ("consumer", "trouble")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.trouble: KafkaError | None = None
        self.consumer: Any = make_consumer(dict(config) | {"error_cb": self._heard})

    def _heard(self, error: KafkaError) -> None:
        if error.code() in {
            KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the driver's names for its own errors begin so
            KafkaError._AUTHENTICATION,  # noqa: SLF001
        }:
            self.trouble = error


class Readers:
    """What all readers of one backend share. Thread safe.

    A consumer is never used for a second place: its next fetch would wait behind the one that is under way, for up to
    `fetch.wait.max.ms`; a new one has its first record within 10 ms.
    """

    def __init__(self, options: Options, control: Control, worker: Worker, clock: Clock) -> None:
        self.options = options
        self.control = control
        self.worker = worker
        self.clock = clock
        self.is_closed = False
        self.mark_counts: Counter[tuple[str, int]] = Counter()  #: by group and partition, of this backend
        self.is_answering = True  #: the last question about a log's bounds was answered
        self._asking: dict[str, Connection] = {}
        self._lock = threading.Lock()

    def connect(self, group: str) -> Connection:
        """Return a consumer without an assignment."""
        return Connection(reader_config(self.options, group))

    def marked(self, group: str, partition: int) -> None:
        """A mark of this backend was stored; called by one thread only."""
        self.mark_counts[group, partition] += 1

    def end_of(self, group: str, topic: str, partition: int) -> int:
        """Return the offset behind a log's last record, asked on a connection on which no fetch is under way.

        Raises:
            BackendTimeoutError, BackendUnavailableError: the broker did not tell.
        """
        with self._lock:
            self.require_open()
            connection = self._asking.get(group)
            if connection is None:
                connection = self._asking[group] = self.connect(group)
        return self.bounds(connection, topic, partition, self.patience_s)[1]

    def close(self) -> None:
        """Close what is shared; readers close their own consumers."""
        with self._lock:
            self.is_closed = True
            asking, self._asking = self._asking, {}
        for connection in asking.values():
            connection.consumer.close()

    def marker_count(self, kind: LogKind) -> int:
        """Return how many offsets at a log's end may be taken by the marker of the last transaction."""
        return int(self.options.is_transactional and kind is not LogKind.HALF)

    def require_open(self) -> None:
        """Refuse to go on after `close`."""
        if self.is_closed:
            raise ClosedError("this backend is closed")

    def bounds(self, connection: Connection, topic: str, partition: int, timeout_s: float) -> tuple[int, int]:
        """Return a log's first offset and the one behind its last; blocks for at most *timeout_s*.

        Raises:
            BackendTimeoutError, BackendUnavailableError: the broker did not tell.
        """
        place = TopicPartition(topic, partition)
        try:
            low, high = connection.consumer.get_watermark_offsets(place, timeout=timeout_s, cached=False)
        except KafkaException as error:
            self.is_answering = False
            raise translated(error, f"asking for the bounds of {topic!r}") from error
        self.is_answering = True
        return low, high

    @property
    def patience_s(self) -> float:
        """How long a reader may wait for the broker: next to nothing where others have waited in vain."""
        return ARRIVAL_S if self.is_answering else SILENT_S

    def read_one(self, connection: Connection, topic: str, partition: int, offset: int) -> Any:
        """Return the message at *offset*, or None when it is not there; blocks, on a worker's thread.

        Raises:
            BackendTimeoutError: the broker did not answer in time.
        """
        connection.consumer.assign([TopicPartition(topic, partition, offset)])
        deadline_s = self.clock.elapsed_s() + self.options.request_timeout_s
        while self.clock.elapsed_s() < deadline_s:
            message = connection.consumer.poll(FETCH_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message if message.offset() == offset else None
            if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                return None
            raise translated(error, f"reading {topic!r}")
        raise BackendTimeoutError(f"{topic!r} gave no answer within {self.options.request_timeout_s:g} s")

    def load_checkpoint(self, group: str, partition: int) -> Checkpoint | None:
        """Return the last record of the checkpoint topic; blocks, on a worker's thread.

        Raises:
            ConfigError: there is no such group.
            BackendTimeoutError, BackendUnavailableError: the broker did not answer.
        """
        self.control.partition_count(group)
        topic = checkpoint_topic(group)
        connection = self.connect(group)
        try:
            low, high = self.bounds(connection, topic, partition, self.options.request_timeout_s)
            message = None if low == high else self.read_one(connection, topic, partition, high - 1)
            return None if message is None else decode_checkpoint(message.value())
        except WireFormatError:
            return None  # A checkpoint only saves work; without it the logs are read from their beginning.
        finally:
            connection.consumer.close()


class KafkaReader:
    """One log of one partition; implements `Reader`."""

    def __init__(self, readers: Readers, group: str, kind: LogKind, partition: int, start: Position | None) -> None:
        self._readers = readers
        self._group = group
        self._kind = kind
        self._topic = topic_name(group, kind)
        self._partition = partition
        self._next = 0 if start is None else int(start)
        self._end = 0  #: behind the last record known to be there
        self._connection: Connection | None = None
        self._is_assigned = False
        self._asks_at_s = 0.0
        self._miss_count = 0
        self._may_wait = True
        self._mark_count = 0
        self._is_closed = False

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`.

        What is known to be in the log is waited for, for at most `ARRIVAL_S` and never twice in a row. So, on a broker
        that answers, the first empty result says that everything was read that was there when reading began; and of
        a half log the first one behind a mark, that everything was read that was there before the mark.
        """
        connection = self._require_connection()
        if not self._is_assigned and not self._assign(connection):
            return ()
        records: list[LogRecord] = []
        try:
            for message in self._arrived(connection.consumer, count_max):
                error = message.error()
                if error is None:
                    self._take(message, records)
                else:
                    self._judge(error, connection)
        except (KafkaException, RuntimeError) as raised:
            raise translated(raised, f"reading {self._topic!r}") from raised
        if not records and connection.trouble is not None:
            trouble, connection.trouble = connection.trouble, None
            raise BackendUnavailableError(f"reading {self._topic!r}: {trouble.str()}")
        return records

    def _arrived(self, consumer: Any, count_max: int) -> Sequence[Any]:
        messages: list[Any] = consumer.consume(count_max, 0)
        if not messages and self._kind is LogKind.HALF:
            self._look_for_end()
        if not messages and self._may_wait and self._next < self._end - self._readers.marker_count(self._kind):
            self._may_wait = False
            first = consumer.poll(self._readers.patience_s)
            if first is not None:
                messages = [first, *consumer.consume(count_max - 1, 0)] if count_max > 1 else [first]
        return messages

    def _look_for_end(self) -> None:
        """Ask where the log ends now, once for each mark."""
        count = self._readers.mark_counts[self._group, self._partition]
        if count != self._mark_count:
            try:
                self._end = max(self._end, self._readers.end_of(self._group, self._topic, self._partition))
            except BackendTimeoutError:
                return
            self._mark_count = count
            self._may_wait = True

    def _take(self, message: Any, records: list[LogRecord]) -> None:
        offset = message.offset()
        if offset >= self._next:
            records.append(LogRecord(Position(offset), message.value() or b"", message.timestamp()[1]))
            self._next = offset + 1
            self._may_wait = True

    def fetch(self, positions: Sequence[Position]) -> Future[Mapping[Position, LogRecord]]:
        """See `Reader.fetch`."""
        wanted = sorted(set(positions))
        return self._readers.worker.submit(lambda: self._fetch(wanted))

    def close(self) -> None:
        """See `Reader.close`."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.consumer.close()

    def _require_connection(self) -> Connection:
        self._readers.require_open()
        if self._is_closed:
            raise ClosedError("this reader is closed")
        if self._connection is None:
            if self._group not in self._readers.control.partition_counts:
                _blocking(self._readers.worker, lambda: self._readers.control.partition_count(self._group))
            self._connection = self._readers.connect(self._group)
        return self._connection

    def _assign(self, connection: Connection) -> bool:
        """Begin at our position if it is still there; False when the broker has not told yet where the log begins.

        Raises:
            DataLossError: the position is not within the log any more.
            BackendUnavailableError: the broker has been silent for seconds.
        """
        now_s = self._readers.clock.elapsed_s()
        if now_s < self._asks_at_s:
            return False
        self._asks_at_s = now_s + RETRY_S
        try:
            low, high = self._readers.bounds(connection, self._topic, self._partition, self._readers.patience_s)
        except BackendTimeoutError as error:
            self._miss_count += 1
            if self._miss_count % MISSES_MAX:
                return False  # A busy broker; `read` promises nothing but what has arrived.
            raise BackendUnavailableError(str(error)) from error
        self._asks_at_s = 0.0
        self._miss_count = 0
        if not low <= self._next <= high:
            raise DataLossError(self._next, low)
        connection.consumer.assign([TopicPartition(self._topic, self._partition, self._next)])
        self._is_assigned = True
        self._end = high
        return True

    def _judge(self, error: KafkaError, connection: Connection) -> None:
        """Take in an error in the place of a record."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            # Our position is gone, or the broker was not ready; the bounds tell which.
            self._is_assigned = False
        elif is_missing(error):
            self._readers.control.partition_counts.pop(self._group, None)
            connection.trouble = error
        else:
            connection.trouble = error

    def _bounds_now(self) -> tuple[int, int]:
        connection = self._readers.connect(self._group)
        try:
            return self._readers.bounds(
                connection, self._topic, self._partition, self._readers.options.request_timeout_s
            )
        finally:
            connection.consumer.close()

    def _fetch(self, positions: Sequence[Position]) -> Mapping[Position, LogRecord]:
        found: dict[Position, LogRecord] = {}
        if not positions:
            return found
        low, high = self._bounds_now()
        for position in positions:
            if low <= position < high:
                record = self._fetch_one(position)
                if record is not None:
                    found[position] = record
        return found

    def _fetch_one(self, position: Position) -> LogRecord | None:
        connection = self._readers.connect(self._group)
        try:
            message = self._readers.read_one(connection, self._topic, self._partition, position)
        finally:
            connection.consumer.close()
        return None if message is None else LogRecord(position, message.value() or b"", message.timestamp()[1])


def reader_config(options: Options, group: str) -> dict[str, Any]:
    """Return the settings of a consumer that is assigned its partition and commits nothing."""
    return options.connection() | {
        "group.id": consumer_group(group),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 500,
        "topic.metadata.propagation.max.ms": 5_000,
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
        "queued.min.messages": 10_000,
        "queued.max.messages.kbytes": PREFETCH_KBYTES,
        "fetch.message.max.bytes": 1_048_576,
        "receive.message.max.bytes": 500_000_000,
    }


def _blocking(worker: Worker, request: Callable[[], Any]) -> None:
    worker.submit(request).result()
