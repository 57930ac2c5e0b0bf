"""`?release=transaction`: group commit. Targets, parked records and ops of many releases become visible together.

Each group has one thread and one transactional client. A transaction holds the entries queued since the last one,
either of producers or of one claim. An entry with a refused record is tried again alone, so that it does not affect
other releases. After an error with an unknown outcome a new client replaces the old one and first ends its transaction.
The driver's calls have timeouts, and yet one of them may never return after faults of the broker. Then a new thread
with a new client continues. What the old one does has no effect, as its client is fenced by its transactional id.

A release of a claim is visible before the next mark of its partition can be read, or never. Marks go through the same
queue; the entries of an older CLAIM of this process are fenced; the broker refuses a member whose generation is over;
and readers of committed records wait for every transaction that began before the mark.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txcore.clock import Clock
from txcore.errors import BackendUnavailableError, BusyError, ClosedError, TxcoreError
from txcore.records import DURABLE, LogKind, OpKind, Outcome, Status
from txcore.wake import Wake
from txcore_kafka.clients import discard, make_producer, producer_config
from txcore_kafka.codec import is_forbidden, is_membership_lost, kafka_error, translated
from txcore_kafka.entries import POLL_S, Attempt, Entry
from txcore_kafka.options import Options, topic_name

_log = logging.getLogger("txcore.kafka")

INTERVAL_S: Final = 0.015
"""Pause, in seconds, between two transactions: without it, the broker still cleans up after the last one."""
ENTRY_COUNT_MAX: Final = 1_000
RECORD_COUNT_MAX: Final = 10_000
IDLE_S: Final = 0.5
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0
STUCK_FACTOR: Final = 4
"""Time after which a transaction's thread is given up, as a multiple of `transaction_timeout_s`; each call has one."""
CALL_S: Final = 5.0
"""Longest block, in seconds, of one call to the transaction coordinator before it is made again."""


class TransactionLane:
    """The queue, the thread and the client of one group."""

    def __init__(self, options: Options, clock: Clock, name: str) -> None:
        self._options = options
        self._timeout_s = options.transaction_timeout_s  #: of a call to a coordinator, which else may never return
        self._clock = clock
        self._name = name  #: the transactional id, the same for every client of this backend
        self._lock = threading.Lock()
        self._wake = Wake()  #: for the lane's thread: an entry was queued, or `stop` was called
        self._queue: deque[Entry] = deque()
        self._tokens: dict[int, bytes] = {}  #: by partition, of the newest CLAIM of this process
        self._thread: threading.Thread | None = None
        self._busy_since_s: float | None = None  #: when the thread began a transaction that has not ended
        self._stop_at_s: float | None = None
        self._is_forbidden = False  #: the broker refused the last client for want of a right
        self.rebuilt_count = 0
        self.commit_count = 0

    # -- any thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and its client before the first release, as `init_transactions` is slow."""
        with self._lock:
            if self._stop_at_s is None and (self._thread is None or self._is_stuck()):
                self._busy_since_s = None
                self._thread = threading.Thread(target=self._run, name="txcore-kafka-transact", daemon=True)
                self._thread.start()

    def put(self, entries: Sequence[Entry]) -> None:
        """Queue *entries* for the next transaction."""
        self.start()
        refusal: TxcoreError = ClosedError("this backend is closed")
        with self._lock:
            if len(self._queue) + len(entries) > self._options.queue_max:
                refusal = BusyError(f"{len(self._queue)} releases wait for a transaction already")
            elif self._stop_at_s is None:
                self._queue.extend(entries)
                self._wake.set()
                return
        for entry in entries:
            entry.expire(refusal)

    def stop(self, timeout_s: float) -> None:
        """Take no more entries, and commit the queued ones if that ends within *timeout_s*; returns at once."""
        with self._lock:
            self._stop_at_s = self._clock.elapsed_s() + timeout_s
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, for at most *timeout_s*; entries that still wait end as UNKNOWN."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._lock:
            left = list(self._queue)
            self._queue.clear()
        for entry in left:
            entry.expire(ClosedError("the backend was closed before the broker answered"))

    def _is_stuck(self) -> bool:
        since_s = self._busy_since_s
        if since_s is None or self._clock.elapsed_s() - since_s < STUCK_FACTOR * self._timeout_s:
            return False
        _log.error("kafka.transaction_stuck", extra={"txcore": {"name": self._name}})
        return True

    # -- the lane's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause, retry_s = threading.Event(), RETRY_S
        client: list[Any] = []  # One, in a list that another thread empties: the end of a client may take long.
        while self._is_current() and not self._is_over():
            trouble = ""
            try:
                if not client:
                    if self._is_forbidden and not self._has_work():
                        continue
                    client = self._connect()
                    retry_s = RETRY_S
                entries = self._gather()
                if entries:
                    self._commit(client[0], entries)
                    pause.wait(INTERVAL_S)
                else:
                    client[0].poll(0)
            except KafkaException as error:
                trouble = str(error)
                self._is_forbidden = is_forbidden(error)
                if self._is_forbidden:
                    self._refuse_queued(translated(error, f"a transaction as {self._name!r}"))
            except Exception as error:  # noqa: BLE001
                # A bug in a callback must not end the thread on which all callers wait.
                _log.exception("kafka.transaction_thread")
                trouble = repr(error)
            if trouble:  # the error, which refers to the client, is gone by now
                _log.warning("kafka.transactional_producer_rebuilt", extra={"txcore": {"reason": trouble}})
                self.rebuilt_count += 1
                former, client = client, []
                discard(former)
                pause.wait(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
        discard(client)

    def _is_current(self) -> bool:
        """Return whether the calling thread is the lane's; one that was stuck is so no more."""
        return threading.current_thread() is self._thread

    def _is_over(self) -> bool:
        stop_at_s = self._stop_at_s
        return stop_at_s is not None and (not self._queue or self._clock.elapsed_s() >= stop_at_s)

    def _has_work(self) -> bool:
        """Return whether an entry waits; blocks for at most `IDLE_S` until one does."""
        self._wake.clear()
        if not self._queue:
            self._wake.wait(IDLE_S)
        return bool(self._queue)

    def _refuse_queued(self, error: TxcoreError) -> None:
        """End all entries that wait: the next client would be refused, too, and a later caller tries it again."""
        with self._lock:
            refused = list(self._queue)
            self._queue.clear()
        for entry in refused:
            entry.settle(Outcome(Status.REFUSED, error))

    def _connect(self) -> list[Any]:
        """Return a new client, in a list; it ends the transaction that the last client may have left open."""
        timeout_ms = round(self._options.transaction_timeout_s * 1000)
        config = producer_config(self._options) | {
            "transactional.id": self._name,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "socket.timeout.ms": timeout_ms,
        }
        client = [make_producer(config)]
        try:
            client[0].init_transactions(CALL_S)
        except KafkaException:
            discard(client)
            raise
        return client

    def _gather(self) -> list[Entry]:
        """Return the entries of the next transaction: all of one claim, or all without a claim, in their order."""
        self._has_work()
        with self._lock:
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
        """Fence entries of a partition that their claim does not own or has claimed anew; the broker checks neither."""
        owned = []
        for entry in entries:
            if entry.claim is None or (entry.claim.owns(entry.partition) and self._is_newest(entry)):
                owned.append(entry)
            else:
                entry.settle(Outcome(Status.FENCED))
        return owned

    def _is_newest(self, entry: Entry) -> bool:
        """Return whether no CLAIM that was handed over later has replaced the one of *entry*; note a CLAIM."""
        op = entry.op
        if op is None:
            return True
        if op.kind == OpKind.CLAIM:
            self._tokens[entry.partition] = op.token
        return op.token == self._tokens.get(entry.partition, op.token)

    def _again(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            if self._is_current():
                self._queue.extendleft(reversed(entries))

    def _commit(self, producer: Any, entries: list[Entry]) -> None:
        """Carry out one transaction.

        Raises:
            KafkaException: the client cannot be used any more; every entry is settled or queued again.
        """
        attempt = Attempt(producer, entries)
        is_committing = False
        self._busy_since_s = self._clock.elapsed_s()
        try:
            producer.begin_transaction()
            for entry in entries:
                entry.publish(attempt.send)
            attempt.send_ops()
            self._await_reports(attempt)
            if attempt.failed:
                producer.abort_transaction(self._timeout_s)
                self._sort_out(attempt)
                return
            self._send_offsets(attempt)
            is_committing = True
            producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            self._end_in_trouble(attempt, error, is_committing=is_committing)
            return
        finally:
            if self._is_current():
                self._busy_since_s = None
        self.commit_count += 1
        for entry in entries:
            entry.settle(DURABLE)

    def _await_reports(self, attempt: Attempt) -> None:
        """Wait for all delivery reports; an abort while the first record is sent can be fatal (librdkafka #4849)."""
        deadline_s = self._clock.elapsed_s() + self._options.transaction_timeout_s
        while attempt.left:
            attempt.producer.poll(POLL_S)
            if self._clock.elapsed_s() > deadline_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no delivery reports"))  # noqa: SLF001

    def _send_offsets(self, attempt: Attempt) -> None:
        """Tie a claim's transaction to its membership: the broker refuses a generation that has ended."""
        claim = attempt.entries[0].claim
        if claim is None:
            return
        topic = topic_name(claim.group, LogKind.HALF)
        places = [
            TopicPartition(topic, partition, claim.checkpointed(partition))
            for partition in sorted({entry.partition for entry in attempt.entries})
        ]
        metadata = claim.group_metadata()
        if metadata is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "the claim has left its group"))
        attempt.producer.send_offsets_to_transaction(places, metadata, self._timeout_s)

    def _sort_out(self, attempt: Attempt) -> None:
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

    def _end_in_trouble(self, attempt: Attempt, error: KafkaException, *, is_committing: bool) -> None:
        """Settle or queue the entries again after an error, and decide whether the client can still be used.

        Raises:
            KafkaException: the client cannot be used any more.
        """
        cause = kafka_error(error)
        is_abortable = cause is not None and cause.txn_requires_abort() and not cause.fatal()
        if cause is not None and is_membership_lost(cause):
            for entry in attempt.entries:
                entry.settle(Outcome(Status.FENCED))
        elif cause is not None and is_forbidden(cause):
            refusal = translated(cause, f"a transaction as {self._name!r}")
            for entry in attempt.entries:
                entry.settle(Outcome(Status.REFUSED, refusal))
        elif is_committing and not is_abortable:
            # The transaction may be committed, now or later: the outcome is unknown.
            unknown = BackendUnavailableError(f"a transaction's end is uncertain: {error}")
            for entry in attempt.entries:
                entry.expire(unknown)
        else:
            self._again([entry for entry in attempt.entries if not entry.is_done])
        if is_abortable or (cause is not None and is_membership_lost(cause) and not cause.fatal()):
            attempt.producer.abort_transaction(self._timeout_s)
            return
        raise error
