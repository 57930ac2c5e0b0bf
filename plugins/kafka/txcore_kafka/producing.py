"""The producer: idempotent clients, the threads that poll them, deadlines for all items under way, and fresh clients
after a fatal error.

Records of lone callers leave at once. Many records together go through a client of their own, which waits a
millisecond for more: full requests cost the driver and the broker a fifth of those with few records.

Delivery reports, expiry and all functions handed to `call` run on the thread that polls, one at a time. This is the
poll thread, or a waiting thread that has borrowed its work (`poll`). The driver takes Python's lock for each delivery
report, so a poll is slow, for both threads, while another thread works. Therefore a poll only collects the reports,
and the waiting threads are woken after it. `send` may be called on any thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from txcore.clock import Clock
from txcore.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BusyError,
    ClosedError,
    TxcoreError,
)
from txcore_kafka.clients import ConnectionNews, discard, make_producer, producer_config
from txcore_kafka.codec import is_forbidden, is_missing, kafka_error, translated
from txcore_kafka.options import Options
from txcore_kafka.poll_lending import PollLending
from txcore_kafka.reports import OnReport, Record, Records

_log = logging.getLogger("txcore.kafka")

IDLE_POLL_S: Final = 0.02
BUSY_POLL_S: Final = 0.005
NOT_AGAIN: Final = float("inf")
SHARED_POLL_S: Final = 0.001
"""Longest poll of one client, in seconds, while another one has records under way, too."""
QUIET_TURNS: Final = 10
"""Number of turns with nothing under way after which the poll thread sleeps until it is woken."""
MANY_COUNT: Final = 32
"""Least number of records that are sent together by the client for many."""
FOR_MANY: Final = {"linger.ms": 1}
FOR_ONE: Final = {"batch.num.messages": 1}
"""Settings of the clients for many records together, and for a record in a batch of its own."""


class Waiting(Protocol):
    """An item, or a batch of items, that must end in time."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""

    def expire(self, error: TxcoreError) -> None:
        """End without an answer; called once, on the thread that polls, while `is_done` is False."""


class Producing:
    """The client, its poll thread, and the items under way."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.news = ConnectionNews()
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self.reports: deque[Records] = deque()  #: those with reports in the current poll
        self._waiting: dict[str, deque[tuple[Waiting, float]]] = {}  # each kind has one timeout: its deadlines ascend
        self._calls: deque[Callable[[], None]] = deque()
        self._producer: Any = None
        self._many: Any = None
        self._lone: Any = None
        self._thread: threading.Thread | None = None
        self._stop_at_s: float | None = None
        self._is_closed = False
        self._refusal: TxcoreError | None = None  #: why the broker refused the client, which is of no use any more
        self._lending = PollLending(clock)
        self._pause_s = 0.0
        self._quiet_turns = 0
        self.wake = self._lending.wake  #: wakes the poll thread for new work, if it sleeps
        self.on_turn: Callable[[float], float] = lambda _: NOT_AGAIN  #: runs after each poll; returns how long to wait
        self.on_stop: Callable[[], bool] = lambda: True  #: while closing, after each poll; True once nothing is queued
        self.rebuilt_count = 0

    # -- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the client and its thread, if they do not exist yet."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._producer = make_producer(self._config())  # Raises ConfigError before anything is started.
                self._thread = threading.Thread(target=self._run, name="txcore-kafka-produce", daemon=True)
                self._thread.start()

    def send(self, on_report: OnReport, record: Record, *, is_alone: bool = False) -> None:
        """Hand a record to the client; the caller wakes the poll thread, as `watch` does.

        Args:
            on_report: Called with each delivery report, on the thread that polls.
            is_alone: Send it in a batch of its own.

        Raises:
            BusyError: too many records wait already; this record was not handed over.
            BackendUnavailableError, ClosedError: this record was not handed over.
            ConfigError: this user may not produce at all; the next record tries it anew.
        """
        topic, value, key, partition, headers = record
        producer = self._lone_client() if is_alone else self._producer
        if producer is None:
            raise ClosedError("this backend is closed")
        try:
            producer.produce(topic, value, key, partition, on_report, None, 0, headers)
        except (BufferError, KafkaException) as error:
            raise self._not_taken(error) from error

    def send_all(
        self, report: Callable[[int, KafkaError | None, Any], None], numbers: Sequence[int], records: Iterable[Record]
    ) -> list[tuple[int, TxcoreError]]:
        """Hand records with these numbers to the client; as `send`, but never raises.

        Args:
            report: Called with a record's number and its delivery report, on the thread that polls.

        Returns:
            The numbers of the records that were not handed over, each with an error that `send` would raise.
        """
        producer = self._producer if len(numbers) < MANY_COUNT else self._many_client()
        if producer is None:
            return [(number, ClosedError("this backend is closed")) for number in numbers]
        left, left_over = iter(numbers), []
        topics, values, keys, partitions, headers = zip(*records, strict=True) if numbers else [()] * 5
        reports = map(partial, repeat(report), left)
        # One call in C for all of them: a loop here would cost as much as the driver's part.
        calls = map(producer.produce, topics, values, keys, partitions, reports, repeat(None), repeat(0), headers)
        while True:
            try:
                deque(calls, maxlen=0)
            except (BufferError, KafkaException) as error:
                refused = self._not_taken(error)
                refused.__cause__ = error
                left_over.append((numbers[len(numbers) - length_hint(left) - 1], refused))
            else:
                return left_over

    def watch(self, kind: str, items: Sequence[Waiting], deadline_s: float) -> None:
        """Expire *items* at *deadline_s* if they have not ended before; the deadlines of one *kind* must ascend."""
        if items:
            self._waiting.setdefault(kind, deque()).extend(zip(items, repeat(deadline_s)))
            self.wake()

    def poll(self, timeout_s: float, is_done: Callable[[], Any], *, comes_again: bool) -> bool:
        """Do the poll thread's work on the calling thread until *is_done*, for at most *timeout_s*.

        The poll thread pauses meanwhile. Afterwards it continues at once if work is under way, unless the caller
        *comes_again*: then it waits briefly for the caller. A caller with no *timeout_s* that does not come again
        leaves all work to the poll thread, which is woken if no thread polls.

        Returns False if the client is closed or not started, or if another thread polls for all of *timeout_s*. Any
        exception of a signal's handler is raised; a delivery report that it interrupts is lost, and its item expires.
        """
        if self._producer is None or self._stop_at_s is not None:
            return False
        if not timeout_s and not comes_again:
            self._lending.leave()
            return True
        now_s = self._clock.elapsed_s()
        until_s = now_s + timeout_s
        polling = self._lending.lend(now_s, timeout_s)
        if not polling.acquire(timeout=timeout_s):
            return False
        try:
            while not is_done() and self._stop_at_s is None:
                self._poll(max(0.0, min(until_s - now_s, self._pause_s)))
                self._turn()
                now_s = self._lending.polled_s
                if now_s >= until_s:
                    break
        finally:
            polling.release()
        self._lending.given_back(now_s, comes_again=comes_again, is_busy=self._is_busy)
        return True

    def call(self, call: Callable[[], None]) -> None:
        """Run *call* on the poll thread, within `IDLE_POLL_S`."""
        self._calls.append(call)
        self.wake()

    def close(self, timeout_s: float) -> None:
        """Let the items under way end, expire the others, and stop; blocks for about *timeout_s* at most."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is None:
            return
        self._stop_at_s = self._clock.elapsed_s() + timeout_s
        self._lending.end()
        thread.join(timeout_s + 1.0)

    def has_topic(self, topic: str) -> bool:
        """Return whether the broker has *topic*; blocks.

        The client that publishes asks, so that it learns the answer too. The question does not create a topic.

        Raises:
            ClosedError: this backend is closed.
            KafkaException: the broker did not answer.
        """
        producer = self._producer
        if producer is None:
            raise ClosedError("this backend is closed")
        error = producer.list_topics(topic, self._options.control_timeout_s).topics[topic].error
        return error is None or not is_missing(error)

    def clients(self) -> list[Any]:
        """Return the driver's objects in use."""
        return [client for client in (self._producer, self._many, self._lone) if client is not None]

    # -- the poll thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_over = False
        while not is_over:
            if self._stop_at_s is None and self._lending.is_lent():
                self._lending.wait_for_borrower()
                continue
            polling = self._lending.take()
            try:
                self._poll(self._pause_s)
                is_over = self._turn()
            except Exception:  # noqa: BLE001 - an error of a callback must not end the thread on which all callers wait
                _log.exception("kafka.poll_thread")
            polling.release()
            if self._quiet_turns > QUIET_TURNS:
                self._lending.sleep(self._may_sleep)
        self._expire_all(ClosedError("the backend was closed before the broker answered"))
        clients = self.clients()
        self._producer = self._many = self._lone = None
        discard(clients)

    def _turn(self) -> bool:
        """Do the work that is due and set the length of the next poll; return whether to stop, after `close`."""
        self._lending.polled_s = now_s = self._clock.elapsed_s()
        while self._calls:
            self._calls.popleft()()
        again_s = self.on_turn(now_s)
        self._expire(now_s)
        self._quiet_turns = self._quiet_turns + 1 if again_s == NOT_AGAIN and not self._is_busy() else 0
        self._pause_s = min(again_s, IDLE_POLL_S)
        if self._many is not None or self._lone is not None or self._stop_at_s is not None:
            self._pause_s = min(self._pause_s, BUSY_POLL_S)
        if self._stop_at_s is None:
            return False
        return (self.on_stop() and not self._is_busy()) or now_s >= self._stop_at_s

    def _is_busy(self) -> bool:
        """Return whether any item is under way."""
        for client in (self._producer, self._many, self._lone):
            if client is not None and len(client):
                return True
        return bool(self._calls or any(self._waiting.values()))

    def _may_sleep(self) -> bool:
        return self._stop_at_s is None and not self._is_busy() and self.on_turn(self._clock.elapsed_s()) == NOT_AGAIN

    def _poll(self, timeout_s: float) -> None:
        try:
            if self._many is None and self._lone is None:
                self._producer.poll(timeout_s)
            else:
                self._poll_several(timeout_s)
        except KafkaException as error:
            cause = kafka_error(error)
            if cause is not None and is_forbidden(cause):
                self._refuse(cause)
            elif cause is None or cause.fatal():
                self._rebuild(cause)
            else:
                _log.warning("kafka.producer_error", extra={"txcore": {"reason": str(error)}})
        self._take_reports()

    def _poll_several(self, timeout_s: float) -> None:
        """Poll each client once, and wait only for one with records under way; not with reports of others in hand."""
        clients = self.clients()
        busy = [client for client in clients if len(client)] or clients[:1]
        for client in clients:
            if client is not busy[0]:
                client.poll(0.0)
        if self.reports:
            timeout_s = 0.0
        busy[0].poll(timeout_s if len(busy) == 1 else min(timeout_s, SHARED_POLL_S))

    def _take_reports(self) -> None:
        while self.reports:
            self.reports.popleft().reported()

    def _expire(self, now_s: float) -> None:
        for waiting in list(self._waiting.values()):
            while waiting:
                item, deadline_s = waiting[0]
                if not item.is_done:
                    if deadline_s > now_s:
                        break
                    item.expire(BackendTimeoutError("no answer from the broker in time"))
                waiting.popleft()

    def _expire_all(self, error: TxcoreError) -> None:
        for waiting in list(self._waiting.values()):
            for _ in range(len(waiting)):
                item, _ = waiting.popleft()
                if not item.is_done:
                    item.expire(error)

    def _rebuild(self, cause: KafkaError | None) -> None:
        """Replace a dead client by a new one; all items under way end as expired."""
        _log.error("kafka.producer_rebuilt", extra={"txcore": {"reason": str(cause)}})
        with self._lock:
            old = self.clients()
            self._producer, self._many, self._lone = make_producer(self._config()), None, None
        self.rebuilt_count += 1
        discard(old)
        self._take_reports()
        self._expire_all(BackendUnavailableError(f"the producer died: {cause}"))

    def _refuse(self, cause: KafkaError) -> None:
        """Keep the client that the broker refused: another one, made at once, would be refused without an end."""
        self._refusal = refusal = translated(cause, "opening a producer")
        _log.error("kafka.producer_refused", extra={"txcore": {"reason": str(refusal)}})
        self._expire_all(refusal)

    def _try_again(self, cause: KafkaError | None) -> None:
        """Replace a refused client, unless an earlier record has done so: the user may have its rights by now."""
        if self._refusal is not None:
            self._refusal = None
            self._rebuild(cause)

    def _not_taken(self, error: BufferError | KafkaException) -> TxcoreError:
        """Return the error of a record that the client did not take, and replace a client that is of no use."""
        if isinstance(error, BufferError):
            return BusyError(f"{self._options.queue_max} records wait for the broker already")
        cause, refusal = kafka_error(error), self._refusal
        if refusal is not None:
            self.call(lambda: self._try_again(cause))
            return refusal
        if cause is not None and cause.fatal():
            self.call(lambda: self._rebuild(cause))
        return BackendUnavailableError(f"a record was not taken: {error}")

    def _many_client(self) -> Any:
        if self._many is None:
            with self._lock:
                if self._many is None and self._producer is not None and not self._is_closed:
                    self._many = make_producer(self._config() | FOR_MANY)
        return self._many

    def _lone_client(self) -> Any:
        if self._lone is None:
            with self._lock:
                if self._lone is None and not self._is_closed:
                    self._lone = make_producer(self._config() | FOR_ONE)
        return self._lone

    def _config(self) -> dict[str, Any]:
        return producer_config(self._options) | {"error_cb": self.news.heard}
