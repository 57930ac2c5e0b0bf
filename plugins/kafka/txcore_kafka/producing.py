"""The producer: one idempotent client with a poll thread, deadlines for what is under way, and a fresh client after
a fatal error.

Delivery callbacks, expiry and everything handed to `call` run on the poll thread; `send` may be called on any thread.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from txcore.clock import Clock
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BusyError,
    ClosedError,
    TxcoreError,
)
from txcore_kafka.clients import make_producer
from txcore_kafka.codec import is_refused_connection, is_too_large, kafka_error
from txcore_kafka.options import BATCH_BYTES, REQUEST_BYTES_MAX, Options

_log = logging.getLogger("txcore.kafka")

IDLE_POLL_S: Final = 0.02
BUSY_POLL_S: Final = 0.005
QUEUE_KBYTES_MAX: Final = 512 * 1024
ANY_PARTITION: Final = -1
REBUILD_PAUSE_S: Final = 0.5


class Waiting:
    """Something that must end by `deadline_s`. `is_done` is set by whoever ends it."""

    __slots__ = ("deadline_s", "is_done")

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.is_done = False

    def expire(self, error: TxcoreError) -> None:
        """End as UNKNOWN; called once, on the poll thread, while `is_done` is False."""
        raise NotImplementedError


class Record:
    """One record on its way; called by the driver with its fate."""

    __slots__ = ("headers", "is_alone", "key", "partition", "producing", "topic", "value")

    def __init__(
        self,
        producing: Producing,
        topic: str,
        value: bytes,
        partition: int = ANY_PARTITION,
        key: bytes | None = None,
        headers: Any = None,
    ) -> None:
        self.producing = producing
        self.topic = topic
        self.value = value
        self.partition = partition
        self.key = key
        self.headers = headers
        self.is_alone = False

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        """Take the delivery report."""
        if error is None:
            self.stored(message)
        elif is_too_large(error) and not self.is_alone:
            # The limit holds for a batch, and the driver does not split: this record's neighbours may be the trouble.
            self.is_alone = True
            try:
                self.producing.send(self)
            except TxcoreError:
                self.failed(error)
        else:
            self.failed(error)

    def stored(self, message: Any) -> None:
        """The broker acknowledged it."""
        raise NotImplementedError

    def failed(self, error: KafkaError) -> None:
        """It was refused, or nobody knows."""
        raise NotImplementedError


class Producing:
    """The client, its poll thread, and what is under way."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.news = ConnectionNews()
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[type[Waiting], deque[Waiting]] = {}  # each kind has one timeout, so its deadlines ascend
        self._calls: deque[Callable[[], None]] = deque()
        self._producer: Any = None
        self._lone: Any = None
        self._thread: threading.Thread | None = None
        self._stop_at_s: float | None = None
        self._is_closed = False
        self.on_turn: Callable[[float], float] = lambda _: IDLE_POLL_S  #: after each poll; returns how long to wait
        self.on_stop: Callable[[], bool] = lambda: True  #: while closing, after each poll; True once nothing is queued
        self.rebuilt_count = 0

    # -- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the client and its thread, if they are not there."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._producer = make_producer(self._config())  # Raises ConfigError before anything is started.
                self._thread = threading.Thread(target=self._run, name="txcore-kafka-produce", daemon=True)
                self._thread.start()

    def send(self, record: Record) -> None:
        """Hand a record to the client.

        Raises:
            BusyError: too many records wait already; this one does not.
            BackendUnavailableError, ClosedError: it was not handed over.
        """
        producer = self._lone_client() if record.is_alone else self._producer
        if producer is None:
            raise ClosedError("this backend is closed")
        try:
            if record.headers is None:
                producer.produce(record.topic, record.value, record.key, record.partition, record)
            else:
                producer.produce(
                    record.topic, record.value, record.key, record.partition, record, headers=record.headers
                )
        except BufferError as error:
            raise BusyError(f"{self._options.queue_max} records wait for the broker already") from error
        except KafkaException as error:
            cause = kafka_error(error)
            if cause is not None and cause.fatal():
                self.call(lambda: self._rebuild(cause))
            raise BackendUnavailableError(f"a record was not taken: {error}") from error

    def watch(self, waiting: Waiting) -> None:
        """See to it that *waiting* ends by its deadline."""
        self._waiting.setdefault(type(waiting), deque()).append(waiting)

    def call(self, call: Callable[[], None]) -> None:
        """Run *call* on the poll thread, within `IDLE_POLL_S`."""
        self._calls.append(call)

    def close(self, timeout_s: float) -> None:
        """Let what is under way end, expire the rest, and stop; blocks for at most *timeout_s*, more or less."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is None:
            return
        self._stop_at_s = self._clock.elapsed_s() + timeout_s
        thread.join(timeout_s + 1.0)

    def clients(self) -> list[Any]:
        """Return the driver's objects in use."""
        return [client for client in (self._producer, self._lone) if client is not None]

    # -- the poll thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.0
        is_over = False
        while not is_over:
            try:
                self._poll(pause_s)
                pause_s, is_over = self._turn()
            except Exception:  # noqa: BLE001
                # A bug in what was called back must not end the thread on which everybody waits.
                _log.exception("kafka.poll_thread")
        self._expire_all(ClosedError("the backend was closed before the broker answered"))
        clients = self.clients()
        self._producer = self._lone = None
        for client in clients:
            _discard(client)

    def _turn(self) -> tuple[float, bool]:
        """Do what is due; returns how long to poll, and whether that was all."""
        now_s = self._clock.elapsed_s()
        while self._calls:
            self._calls.popleft()()
        pause_s = min(self.on_turn(now_s), IDLE_POLL_S)
        self._expire(now_s)
        if self._lone is not None or self._stop_at_s is not None:
            pause_s = min(pause_s, BUSY_POLL_S)
        if self._stop_at_s is None:
            return pause_s, False
        is_idle = (
            self.on_stop() and not any(self._waiting.values()) and not any(len(client) for client in self.clients())
        )
        return pause_s, is_idle or now_s >= self._stop_at_s

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
            if self._lone is not None:
                self._lone.poll(0)
        except KafkaException as error:
            cause = kafka_error(error)
            if cause is None or cause.fatal():
                self._rebuild(cause)
            else:
                _log.warning("kafka.producer_error", extra={"reason": str(error)})

    def _expire(self, now_s: float) -> None:
        for waiting in list(self._waiting.values()):
            while waiting and (waiting[0].is_done or waiting[0].deadline_s <= now_s):
                first = waiting.popleft()
                if not first.is_done:
                    first.expire(BackendTimeoutError("no answer from the broker in time"))

    def _expire_all(self, error: TxcoreError) -> None:
        for waiting in list(self._waiting.values()):
            for _ in range(len(waiting)):
                first = waiting.popleft()
                if not first.is_done:
                    first.expire(error)

    def _rebuild(self, cause: KafkaError | None) -> None:
        """Put a new client in the place of one that is dead; what was under way is UNKNOWN."""
        _log.error("kafka.producer_rebuilt", extra={"reason": str(cause)})
        self.rebuilt_count += 1
        with self._lock:
            old = [client for client in (self._producer, self._lone) if client is not None]
            self._producer, self._lone = make_producer(self._config()), None
        for client in old:
            _discard(client)
        self._expire_all(BackendUnavailableError(f"the producer died: {cause}"))

    def _lone_client(self) -> Any:
        if self._lone is None:
            with self._lock:
                if self._lone is None and not self._is_closed:
                    self._lone = make_producer(self._config() | {"batch.num.messages": 1})
        return self._lone

    def _config(self) -> dict[str, Any]:
        return producer_config(self._options) | {"error_cb": self.news.heard}


def producer_config(options: Options) -> dict[str, Any]:
    """Return the settings of an idempotent producer."""
    own: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "partitioner": "murmur2_random",
        "message.timeout.ms": round(options.delivery_timeout_s * 1000),
        "topic.metadata.propagation.max.ms": 1_000,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 500,
        "batch.size": BATCH_BYTES,
        "message.max.bytes": REQUEST_BYTES_MAX,
        "queue.buffering.max.messages": options.queue_max,
        "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
        "compression.type": options.compression,
    }
    return options.connection() | own


class ConnectionNews:
    """The driver's news about connections; only information, as it reconnects by itself for ever.

    Attributes:
        refusal: Why the last connection was refused, if certificates or credentials were the reason.
    """

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """Take what the producer's client says."""
        if is_refused_connection(error):
            self.refusal = error
        _log.info("kafka.connection", extra={"reason": error.str(), "code": error.name()})


def _discard(client: Any) -> None:
    """Forget what a client still has in its queues, so that it goes away at once."""
    for step in (client.purge, functools.partial(client.poll, 0)):
        try:
            step()
        except KafkaException as error:
            _log.debug("kafka.discarded", extra={"reason": str(error)})
