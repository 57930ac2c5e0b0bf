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
from txcore_kafka.resting import Rest, Resting
from txcore_kafka.threads import Worker

PREFETCH_KBYTES: Final = 8_192
SILENT_S: Final = 0.25
ARRIVAL_S: Final = 2.0
"""How long a read waits for records that are there but have not arrived; never twice in a row."""
MISSES_MAX: Final = 4
RETRY_S: Final = 0.6
"""Between two questions to a broker that did not answer the first."""
FETCH_POLL_S: Final = 0.05
REST_AFTER_S: Final = 5.0
"""A log without a record for so long is read no more until its end moves."""


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

    No consumer is used for a second place: its next fetch would wait behind the one under way; a new one takes 10 ms.
    """

    def __init__(self, options: Options, control: Control, worker: Worker, clock: Clock) -> None:
        self.options = options
        self.control = control
        self.worker = worker
        self.clock = clock
        self.resting = Resting(options, control, worker, clock)
        self.is_closed = False
        self.mark_counts: Counter[tuple[str, int]] = Counter()  #: by group and partition, of this backend
        self.is_answering = True  #: the last question about a log's bounds was answered
        self._asking: Connection | None = None
        self._lock = threading.Lock()

    def connect(self, group: str) -> Connection:
        """Return a consumer without an assignment."""
        return Connection(reader_config(self.options, group))

    def marked(self, group: str, partition: int) -> None:
        """A mark of this backend was stored; called by one thread only."""
        self.mark_counts[group, partition] += 1

    def asking(self, group: str) -> Connection:
        """Return the connection on which no fetch is ever under way, to ask where logs begin and end."""
        with self._lock:
            self.require_open()
            if self._asking is None:
                self._asking = self.connect(group)
            return self._asking

    def close(self) -> None:
        """Close what is shared; readers close their own consumers."""
        with self._lock:
            self.is_closed = True
            asking, self._asking = self._asking, None
        if asking is not None:
            asking.consumer.close()

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
        self._asks_at_s = 0.0
        self._miss_count = 0
        self._may_wait = True
        self._mark_count = 0
        self._rest: Rest | None = None
        self._rest_mark_count = 0
        self._quiet_since_s = readers.clock.elapsed_s()
        self._is_closed = False

    def read(self, count_max: int) -> Sequence[LogRecord]:
        """See `Reader.read`.

        What is known to be in the log is waited for, for at most `ARRIVAL_S` and never twice in a row. So, on a broker
        that answers, the first empty result says that everything was read that was there when reading began; and of
        a half log the first one behind a mark, that everything was read that was there before the mark. A log on which
        nothing happens is looked at every `resting.ASK_MAX_S`, and behind each mark of this backend.
        """
        if self._is_resting() or (connection := self._connection or self._begin()) is None:
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
        self._consider_rest(is_quiet=not records)
        return records

    def _is_resting(self) -> bool:
        """Say whether there is still nothing to read, without a consumer to read it with."""
        if self._rest is None or self._connection is not None:
            return False
        self._require_open()
        self._readers.resting.look()
        if self._kind is LogKind.HALF:
            self._look_for_end()
            is_marked = self._end > self._next
        else:
            is_marked = self._rest_mark_count != self._marks()
        if self._rest.end == self._next and not is_marked:
            return True
        self._wake()
        return False

    def _consider_rest(self, *, is_quiet: bool) -> None:
        """Give the consumer up, once the broker says that there is nothing behind what was read a while ago."""
        if not is_quiet or (self._rest is not None and self._rest.end not in {None, self._next}):
            self._wake()
        elif self._rest is not None and self._rest.end is not None:
            self._disconnect()
        elif self._rest is not None:
            self._readers.resting.look()
        elif self._readers.clock.elapsed_s() - self._quiet_since_s > REST_AFTER_S:
            self._begin_rest(self._marks())

    def _begin_rest(self, mark_count: int) -> Rest:
        self._rest_mark_count = mark_count
        self._rest = self._readers.resting.begin(self._topic, self._partition)
        return self._rest

    def _wake(self) -> None:
        self._quiet_since_s = self._readers.clock.elapsed_s()
        rest, self._rest = self._rest, None
        if rest is not None:
            self._readers.resting.end(rest)

    def _marks(self) -> int:
        return self._readers.mark_counts[self._group, self._partition]

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
        count = self._marks()
        if count != self._mark_count:
            try:
                self._end = max(self._end, self._bounds(self._readers.patience_s)[1])
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
        self._wake()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.consumer.close()

    def _require_open(self) -> None:
        self._readers.require_open()
        if self._is_closed:
            raise ClosedError("this reader is closed")

    def _bounds(self, timeout_s: float) -> tuple[int, int]:
        return self._readers.bounds(self._readers.asking(self._group), self._topic, self._partition, timeout_s)

    def _begin(self) -> Connection | None:
        """Begin to read if our position is still there and something stands behind it; else rest.

        None as well when the broker has not told yet where the log begins.

        Raises:
            DataLossError: the position is not within the log any more.
            BackendUnavailableError: the broker has been silent for seconds.
        """
        self._require_open()
        if self._group not in self._readers.control.partition_counts:
            _blocking(self._readers.worker, lambda: self._readers.control.partition_count(self._group))
        now_s = self._readers.clock.elapsed_s()
        if now_s < self._asks_at_s:
            return None
        self._asks_at_s = now_s + RETRY_S
        mark_count = self._marks()
        try:
            low, high = self._bounds(self._readers.patience_s)
        except BackendTimeoutError as error:
            self._miss_count += 1
            if self._miss_count % MISSES_MAX:
                return None  # A busy broker; `read` promises nothing but what has arrived.
            raise BackendUnavailableError(str(error)) from error
        self._asks_at_s = 0.0
        self._miss_count = 0
        if not low <= self._next <= high:
            raise DataLossError(self._next, low)
        self._end = high
        if self._next == high:
            self._begin_rest(mark_count).end = high
            return None
        self._connection = self._readers.connect(self._group)
        self._connection.consumer.assign([TopicPartition(self._topic, self._partition, self._next)])
        return self._connection

    def _judge(self, error: KafkaError, connection: Connection) -> None:
        """Take in an error in the place of a record."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            # Our position is gone, or the broker was not ready; the bounds tell which.
            self._disconnect()
        elif is_missing(error):
            self._readers.control.partition_counts.pop(self._group, None)
            connection.trouble = error
        else:
            connection.trouble = error

    def _fetch(self, positions: Sequence[Position]) -> Mapping[Position, LogRecord]:
        found: dict[Position, LogRecord] = {}
        if not positions:
            return found
        low, high = self._bounds(self._readers.options.request_timeout_s)
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
