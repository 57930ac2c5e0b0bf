"""The shared parts of a backend's readers: how they connect, and the one connection on which they ask for bounds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from txcore.backends.checkpoint_record import decode_checkpoint
from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, ClosedError, WireFormatError
from txcore.records import Checkpoint, LogKind
from txcore_kafka.clients import close, make_consumer
from txcore_kafka.codec import is_missing, translated
from txcore_kafka.control import Control
from txcore_kafka.ends import Ends, Log
from txcore_kafka.options import Options, checkpoint_topic, consumer_group
from txcore_kafka.resting import Place, Resting
from txcore_kafka.threads import Worker

PREFETCH_KBYTES: Final = 512
SILENT_S: Final = 0.25
ARRIVAL_S: Final = 2.0
"""Longest wait of a read, in seconds, for stored records that have not arrived yet; never twice in a row."""
FETCH_POLL_S: Final = 0.05
NEAR_COUNT: Final = 500
"""Number of records whose reading costs less than a jump to another place."""
FETCHING: Final = {"queued.min.messages": 1, "fetch.message.max.bytes": 262_144, "fetch.wait.max.ms": 10}
"""Settings for reading single records: few other records are read, and no jump waits long for an earlier request."""


class Connection:
    """A consumer, and the last trouble with its broker.

    The consumer does not refer to this object: without a circle, the consumer ends after its last call.
    """

    __slots__ = ("consumer", "news")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.news = _News()
        self.consumer: Any = make_consumer(dict(config) | {"error_cb": self.news.heard})


class _News:
    __slots__ = ("trouble",)

    def __init__(self) -> None:
        self.trouble: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        if error.code() in {
            KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the driver's names for its own errors begin so
            KafkaError._AUTHENTICATION,  # noqa: SLF001
        }:
            self.trouble = error


class Readers:
    """The shared parts of a backend's readers. Thread safe.

    A consumer that reads a log is not used for a second place: its next fetch would wait for the one under way. A new
    consumer takes only 10 ms.
    """

    def __init__(self, options: Options, control: Control, worker: Worker, clock: Clock, log_ends: Ends) -> None:
        self.options = options
        self.control = control
        self.worker = worker
        self.clock = clock
        self.resting = Resting(self.ends, clock)
        self.log_ends = log_ends
        self.is_closed = False
        self.mark_counts: Counter[tuple[str, int]] = Counter()  #: number of this backend's marks by group and partition
        self.is_answering = True  #: whether the last question about a log's bounds was answered
        self._asking: Connection | None = None
        self._fetching: Connection | None = None
        self._group = ""  #: the last group that was read
        self._lock = threading.Lock()

    def connect(self, group: str, *, tells_end: bool = False) -> Connection:
        """Return a consumer without an assignment; with *tells_end* it reports when it has reached the log's end."""
        return Connection(reader_config(self.options, group) | {"enable.partition.eof": tells_end})

    def marked(self, group: str, partition: int) -> None:
        """Count a stored mark of this backend; called by one thread only."""
        self.mark_counts[group, partition] += 1

    def asking(self, group: str) -> Connection:
        """Return the connection on which no fetch is ever under way, to ask for the bounds of logs.

        The broker reports the high watermark. This is a hint only, as a deposed leader answers too (`log_ends`).
        """
        with self._lock:
            self.require_open()
            self._group = group
            if self._asking is None:
                self._asking = Connection(reader_config(self.options, group) | {"isolation.level": "read_uncommitted"})
            return self._asking

    def close(self, timeout_s: float) -> None:
        """Drop the shared connections; readers close their own consumers. Blocks for at most *timeout_s*.

        The shared consumers are not closed here, as another thread may still use them: closing a consumer during a call
        ends the process. They end after their last use.
        """
        with self._lock:
            self.is_closed = True
            self._asking = self._fetching = None
        self.resting.close(timeout_s)
        self.log_ends.close()

    def marker_count(self, kind: LogKind) -> int:
        """Return how many offsets at a log's end the marker of the last transaction may have."""
        return int(self.options.is_transactional and kind is not LogKind.HALF)

    def require_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self.is_closed:
            raise ClosedError("this backend is closed")

    def bounds(self, connection: Connection, topic: str, partition: int, timeout_s: float) -> tuple[int, int]:
        """Return a log's first offset and the one after its last; blocks for at most *timeout_s*.

        A leader that does not know that it was replaced reports an end that is too low.

        Raises:
            ConfigError: this user may not see the topic.
            BackendTimeoutError, BackendUnavailableError: the broker did not report the bounds.
        """
        place = TopicPartition(topic, partition)
        try:
            low, high = connection.consumer.get_watermark_offsets(place, timeout=timeout_s, cached=False)
        except KafkaException as error:
            self.is_answering = False
            what = f"asking for the bounds of {topic!r}"
            if is_missing(error):
                self.control.look([topic]).require(topic)  # A topic that is hidden from this user looks missing, too.
                # A broker learns of a new topic a little later than the client that created it.
                _refresh(connection, topic, timeout_s)
                raise BackendTimeoutError(f"{what}: the client knows of no leader of partition {partition}") from error
            raise translated(error, what) from error
        self.is_answering = True
        return low, high

    def ends(self, places: Iterable[Place]) -> Mapping[Place, int]:
        """Return the offset after the last record of each log, if it is known; blocks for at most `ARRIVAL_S`.

        Raises:
            KafkaException: the broker did not answer; the worker that asks turns this into one of txcore's errors.
            ClosedError: the backend is closed.
        """
        asked = [TopicPartition(topic, partition, OFFSET_END) for topic, partition in places]
        connection = self.asking(self._group)
        found = connection.consumer.offsets_for_times(asked, timeout=ARRIVAL_S)
        return {(each.topic, each.partition): each.offset for each in found if each.error is None}

    @property
    def patience_s(self) -> float:
        """How long a reader may wait for the broker, in seconds: a short time if the last question had no answer."""
        return ARRIVAL_S if self.is_answering else SILENT_S

    def read_some(self, log: Log, offsets: Sequence[int]) -> list[Any]:
        """Return the messages at *offsets*, which ascend, without deleted ones; blocks, on the worker's thread.

        Raises:
            ConfigError, BackendUnavailableError: the broker does not report the log's end.
            BackendTimeoutError: the broker did not answer in time.
        """
        connection, self._fetching = self._fetching, None
        if connection is None:
            connection = Connection(reader_config(self.options, log.group) | FETCHING)
        try:
            found = [message for near in _near(offsets) for message in self._read_near(connection, log, near)]
            connection.consumer.unassign()
        except BaseException:
            close(connection.consumer)
            raise
        self._fetching = connection
        return found

    def _read_near(self, connection: Connection, log: Log, offsets: Sequence[int]) -> Sequence[Any]:
        messages = self._read(connection, log.topic, log.partition, offsets)
        if messages is None and (there := self._still_there(log, offsets)):
            messages = self._read(connection, log.topic, log.partition, there)
            if messages is None:
                raise _stale(log.topic)
        return messages or ()

    def _still_there(self, log: Log, offsets: Sequence[int]) -> Sequence[int]:
        """Return those of *offsets* that *log* holds, after a leader reported that it does not hold the first one.

        Raises:
            ConfigError, BackendUnavailableError, BackendTimeoutError: the broker does not report the bounds.
        """
        low, high = self.bounds(self.asking(log.group), log.topic, log.partition, self.options.control_timeout_s)
        if offsets[-1] >= high:
            marker = self.log_ends.ask(log).result() - 1
            if any(high <= offset < marker for offset in offsets):
                raise _stale(log.topic)
        return [offset for offset in offsets if low <= offset < high]

    def _read(self, connection: Connection, topic: str, partition: int, offsets: Sequence[int]) -> list[Any] | None:
        """Read from the first of *offsets* to the last without a jump; None if the first is not within the log."""
        wanted, place, last = set(offsets), offsets[0], offsets[-1]
        found: list[Any] = []
        connection.consumer.assign([TopicPartition(topic, partition, place)])
        deadline_s = self.clock.elapsed_s() + self.options.control_timeout_s
        while self.clock.elapsed_s() < deadline_s:
            for message in connection.consumer.consume(last - place + 1, FETCH_POLL_S):
                error = message.error()
                if error is None:
                    place = message.offset() + 1
                    found += [message] if message.offset() in wanted else []
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                    return None
                else:
                    raise translated(error, f"reading {topic!r}")
            if place > last:
                return found
        raise BackendTimeoutError(f"{topic!r} gave no answer within {self.options.control_timeout_s:g} s")

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
            low, high = self.bounds(connection, topic, partition, self.options.control_timeout_s)
            found = None if low == high else self._read(connection, topic, partition, [high - 1])
            return decode_checkpoint(found[0].value()) if found else None
        except WireFormatError:
            return None  # A checkpoint only saves work; without it the logs are read from their beginning.
        finally:
            close(connection.consumer)


def _refresh(connection: Connection, topic: str, timeout_s: float) -> None:
    """Let the driver ask where *topic*'s leaders are; blocks for at most *timeout_s*.

    The driver keeps the answer that a partition has no leader, and does not ask again for minutes (librdkafka,
    `rd_kafka_topic_partition_list_query_leaders`).
    """
    with suppress(KafkaException):
        connection.consumer.list_topics(topic, timeout=timeout_s)


def _stale(topic: str) -> BackendTimeoutError:
    return BackendTimeoutError(f"{topic!r} has a new leader, of which the client has not heard yet")


def _near(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield *offsets* in parts: within a part, reading the records between two offsets costs less than a jump."""
    start = 0
    for index in range(1, len(offsets) + 1):
        if index == len(offsets) or offsets[index] - offsets[index - 1] > NEAR_COUNT:
            yield offsets[start:index]
            start = index


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
        "fetch.message.max.bytes": 262_144,
        "receive.message.max.bytes": 500_000_000,
    }
