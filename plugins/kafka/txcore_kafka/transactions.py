"""`?release=transaction`: group commit. Targets, parked records and ops of many releases become visible together.

There is one thread and one transactional client. Each transaction holds the entries queued since the last one, either
of producers or of one claim. An entry with a refused record is tried again alone, so that it does not affect other
releases. After an error with an unknown outcome a new client replaces the old one and first ends its transaction.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txcore.clock import Clock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, ClosedError, TxcoreError
from txcore.records import DURABLE, HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import encode_ops, target_headers
from txcore_kafka.clients import discard, make_producer
from txcore_kafka.codec import as_sent, delivery_outcome, is_membership_lost, is_missing, kafka_error
from txcore_kafka.options import Options, topic_name
from txcore_kafka.ownership import KafkaClaim
from txcore_kafka.producing import ANY_PARTITION, producer_config

_log = logging.getLogger("txcore.kafka")

INTERVAL_S: Final = 0.015
"""Pause, in seconds, between two transactions: without it, the broker still cleans up after the last one."""
ENTRY_COUNT_MAX: Final = 1_000
RECORD_COUNT_MAX: Final = 10_000
OPS_PER_RECORD: Final = 1_000
IDLE_S: Final = 0.5
POLL_S: Final = 0.05
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0
CALL_S: Final = 5.0
"""Longest block, in seconds, of one call to the transaction coordinator before it is made again."""


class Entry:
    """One release or mark that waits for a transaction. The lane settles it, or its deadline does."""

    __slots__ = ("claim", "finish", "group", "is_alone", "is_done", "lock", "missing", "op", "partition", "resolution")

    def __init__(
        self,
        half: HalfRecord | tuple[str, int],
        op: Op | None,
        claim: KafkaClaim | None,
        finish: Callable[[Outcome], None],
        resolution: Resolution | None = None,
    ) -> None:
        self.is_done = False
        self.group, self.partition = half if isinstance(half, tuple) else (half.group, half.partition)
        self.op = op
        self.claim = claim
        self.finish = finish
        self.resolution = resolution
        self.missing = () if resolution is None else tuple(resolution.targets)
        self.is_alone = False
        self.lock = threading.Lock()

    def settle(self, outcome: Outcome) -> None:
        """End, unless the deadline came first."""
        with self.lock:
            if self.is_done:
                return
            self.is_done = True
        self.finish(outcome)

    def expire(self, error: TxcoreError) -> None:
        """See `Waiting.expire`; a transaction that is under way may still be committed."""
        self.settle(Outcome(Status.UNKNOWN, error, missing=self.missing))

    def refuse(self, error: TxcoreError | None) -> None:
        """End as REFUSED; none of the targets was published."""
        self.settle(Outcome(Status.REFUSED, error, missing=self.missing))

    def not_found(self, error: TxcoreError) -> None:
        """End before any target was published, as the group or a target could not be found."""
        if isinstance(error, BackendUnavailableError | BackendTimeoutError):
            self.expire(error)
        else:
            self.refuse(error)

    def publish(self, send: Callable[..., None]) -> None:
        """Hand over the targets and the parked record; the op is sent later, merged with others."""
        resolution = self.resolution
        if resolution is None:
            return
        half = resolution.half
        if resolution.parked:
            send(self, topic_name(half.group, LogKind.PARKED), resolution.parked, partition=half.partition)
        for index in resolution.targets:
            message = half.messages[index]
            headers = target_headers(
                half.group, half.transaction_id, index, message, resolution.by, key_as_header=False
            )
            send(self, message.topic, message.body, key=message.key, headers=as_sent(headers))


class _Attempt:
    """One transaction: its entries, and the outcomes of its records."""

    def __init__(self, producer: Any, entries: Sequence[Entry]) -> None:
        self.producer = producer
        self.entries = entries
        self.left = 0
        self.refused: dict[int, Outcome] = {}  # by the id() of the entry
        self.failed = False

    def send(
        self,
        entry: Entry | None,
        topic: str,
        value: bytes,
        partition: int = ANY_PARTITION,
        key: bytes | None = None,
        headers: Any = None,
    ) -> None:
        def reported(error: KafkaError | None, _message: Any) -> None:
            self.left -= 1
            if error is not None:
                self.failed = True
                outcome = delivery_outcome(error, topic)
                if outcome.status is Status.REFUSED and entry is not None:
                    self.refused[id(entry)] = outcome

        while True:
            try:
                self.producer.produce(topic, value, key, partition, reported, headers=headers)
            except BufferError:
                self.producer.poll(POLL_S)
            except KafkaException as raised:
                cause = kafka_error(raised)
                if entry is None or cause is None or not is_missing(cause):
                    raise
                self.failed = True  # At once, as the client knows that the topic is gone.
                self.refused[id(entry)] = delivery_outcome(cause, topic)
                return
            else:
                self.left += 1
                return

    def send_ops(self) -> None:
        """Send the ops of all entries, merged by partition."""
        queues: dict[tuple[str, int], list[Op]] = {}
        for entry in self.entries:
            if entry.op is not None:
                queues.setdefault((entry.group, entry.partition), []).append(entry.op)
        for (group, partition), ops in queues.items():
            for start in range(0, len(ops), OPS_PER_RECORD):
                value = encode_ops(ops[start : start + OPS_PER_RECORD])
                self.send(None, topic_name(group, LogKind.OP), value, partition=partition)


class TransactionLane:
    """The queue, the thread and the client."""

    def __init__(self, options: Options, clock: Clock, name: str) -> None:
        self._options = options
        self._clock = clock
        self._name = name  #: the transactional id, the same for every client of this backend
        self._changed = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._producer: Any = None
        self._thread: threading.Thread | None = None
        self._stop_at_s: float | None = None
        self.rebuilt_count = 0
        self.commit_count = 0

    # -- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and its client before the first release, as `init_transactions` is slow."""
        with self._changed:
            if self._thread is None and self._stop_at_s is None:
                self._thread = threading.Thread(target=self._run, name="txcore-kafka-transact", daemon=True)
                self._thread.start()

    def put(self, entries: Sequence[Entry]) -> None:
        """Queue *entries* for the next transaction."""
        self.start()
        refusal: TxcoreError = ClosedError("this backend is closed")
        with self._changed:
            if len(self._queue) + len(entries) > self._options.queue_max:
                refusal = BusyError(f"{len(self._queue)} releases wait for a transaction already")
            elif self._stop_at_s is None:
                self._queue.extend(entries)
                self._changed.notify_all()
                return
        for entry in entries:
            entry.expire(refusal)

    def close(self, timeout_s: float) -> None:
        """Commit the queued entries if there is time, and end; blocks for at most *timeout_s*."""
        with self._changed:
            self._stop_at_s = self._clock.elapsed_s() + timeout_s
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        for entry in left:
            entry.expire(ClosedError("the backend was closed before the broker answered"))

    # -- the lane's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = threading.Event()
        retry_s = RETRY_S
        while not self._is_over():
            trouble = ""
            try:
                if self._producer is None:
                    self._connect()
                    retry_s = RETRY_S
                entries = self._gather()
                if entries:
                    self._commit(entries)
                    pause.wait(INTERVAL_S)
                else:
                    self._producer.poll(0)
            except KafkaException as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001
                # A bug in a callback must not end the thread on which all callers wait.
                _log.exception("kafka.transaction_thread")
                trouble = repr(error)
            if trouble:  # the error, which refers to the client, is gone by now
                self._give_up_client(trouble)
                pause.wait(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
        self._discard_client()

    def _is_over(self) -> bool:
        stop_at_s = self._stop_at_s
        return stop_at_s is not None and (not self._queue or self._clock.elapsed_s() >= stop_at_s)

    def _connect(self) -> None:
        """Create a client. `init_transactions` ends the transaction that the last client may have left open."""
        timeout_ms = round(self._options.transaction_timeout_s * 1000)
        config = producer_config(self._options) | {
            "transactional.id": self._name,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "socket.timeout.ms": timeout_ms,
        }
        self._producer = make_producer(config)
        self._producer.init_transactions(CALL_S)

    def _give_up_client(self, reason: str) -> None:
        _log.warning("kafka.transactional_producer_rebuilt", extra={"reason": reason})
        self.rebuilt_count += 1
        self._discard_client()

    def _discard_client(self) -> None:
        old = [] if self._producer is None else [self._producer]
        self._producer = None
        discard(old)

    def _gather(self) -> list[Entry]:
        """Return the entries of the next transaction: all of one claim, or all without a claim, in their order."""
        with self._changed:
            if not self._queue:
                self._changed.wait(IDLE_S)
            entries: list[Entry] = []
            others: deque[Entry] = deque()
            count = 0
            while self._queue and len(entries) < ENTRY_COUNT_MAX and count < RECORD_COUNT_MAX:
                entry = self._queue.popleft()
                if entry.is_done:
                    continue
                if entries and (entry.claim is not entries[0].claim or entry.is_alone or entries[0].is_alone):
                    others.append(entry)
                    continue
                entries.append(entry)
                count += 1 + len(entry.missing)
            others.extend(self._queue)
            self._queue = others
        return self._owned(entries)

    def _owned(self, entries: list[Entry]) -> list[Entry]:
        """Fence entries of partitions that their claim does not own: the broker does not check the partition."""
        owned = []
        for entry in entries:
            if entry.claim is None or entry.claim.owns(entry.partition):
                owned.append(entry)
            else:
                entry.settle(Outcome(Status.FENCED))
        return owned

    def _again(self, entries: Sequence[Entry]) -> None:
        with self._changed:
            self._queue.extendleft(reversed(entries))

    def _commit(self, entries: list[Entry]) -> None:
        """Carry out one transaction.

        Raises:
            KafkaException: the client cannot be used any more; every entry is settled or queued again.
        """
        attempt = _Attempt(self._producer, entries)
        is_committing = False
        try:
            self._producer.begin_transaction()
            for entry in entries:
                entry.publish(attempt.send)
            attempt.send_ops()
            self._await_reports(attempt)
            if attempt.failed:
                self._producer.abort_transaction()
                self._sort_out(attempt)
                return
            self._send_offsets(entries)
            is_committing = True
            self._producer.commit_transaction()
        except KafkaException as error:
            self._end_in_trouble(attempt, error, is_committing=is_committing)
            return
        self.commit_count += 1
        for entry in entries:
            entry.settle(DURABLE)

    def _await_reports(self, attempt: _Attempt) -> None:
        """Wait for all delivery reports; an abort while the first record is sent can be fatal (librdkafka #4849)."""
        deadline_s = self._clock.elapsed_s() + self._options.transaction_timeout_s
        while attempt.left:
            self._producer.poll(POLL_S)
            if self._clock.elapsed_s() > deadline_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no delivery reports"))  # noqa: SLF001

    def _send_offsets(self, entries: Sequence[Entry]) -> None:
        """Tie a claim's transaction to its membership: the broker refuses a generation that has ended."""
        claim = entries[0].claim
        if claim is None:
            return
        topic = topic_name(claim.group, LogKind.HALF)
        places = [
            TopicPartition(topic, partition, claim.checkpointed(partition))
            for partition in sorted({entry.partition for entry in entries})
        ]
        metadata = claim.group_metadata()
        if metadata is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "the claim has left its group"))
        self._producer.send_offsets_to_transaction(places, metadata)

    def _sort_out(self, attempt: _Attempt) -> None:
        """After an abort, refuse a refused entry that was alone; try other refused ones alone, the rest together."""
        alone = len(attempt.entries) == 1
        again: list[Entry] = []
        suspects: list[Entry] = []
        for entry in attempt.entries:
            outcome = attempt.refused.get(id(entry))
            if outcome is None:
                again.append(entry)
            elif alone:
                entry.refuse(outcome.error)
            else:
                entry.is_alone = True
                suspects.append(entry)
        self._again([*again, *suspects])

    def _end_in_trouble(self, attempt: _Attempt, error: KafkaException, *, is_committing: bool) -> None:
        """Settle or queue the entries again after an error, and decide whether the client can still be used.

        Raises:
            KafkaException: the client cannot be used any more.
        """
        cause = kafka_error(error)
        is_abortable = cause is not None and cause.txn_requires_abort() and not cause.fatal()
        if cause is not None and is_membership_lost(cause):
            for entry in attempt.entries:
                entry.settle(Outcome(Status.FENCED))
        elif is_committing and not is_abortable:
            # The transaction may be committed, now or later: the outcome is unknown.
            unknown = BackendUnavailableError(f"a transaction's end is uncertain: {error}")
            for entry in attempt.entries:
                entry.expire(unknown)
        else:
            self._again([entry for entry in attempt.entries if not entry.is_done])
        if is_abortable or (cause is not None and is_membership_lost(cause) and not cause.fatal()):
            self._producer.abort_transaction()
            return
        raise error
