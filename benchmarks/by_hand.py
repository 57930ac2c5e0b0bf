"""The cost of a transaction on Kafka in Python without a flow: the same records, from loops written for that.

Ids, envelopes, headers, ops, the listener's call and the results are the real ones. There are no deadlines, no state of
a transaction, no other callers, and only the first error is handled. These rows are no floor: the loops have no linger,
an object for each acknowledgement, and envelopes as objects. The difference between these rows and `raw` is the cost of
two messages with headers, and of their objects, instead of one message without.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Producer
from txcore_kafka.clients import producer_config
from txcore_kafka.options import parse_url, topic_name

import txcore
from benchmarks.drive import Drive, Sample
from benchmarks.place import POLICY, Place
from benchmarks.styles import AsyncCommitting, Committing
from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.ids import IdFactory, known_id, partition_of
from txcore.message import validate_message
from txcore.records import Half, HalfRecord, LogKind, Op, OpKind, TargetMessage
from txcore.results import EndResult, EndState, TransactionSendResult

CHUNK_COUNT: Final = 250
WINDOW_COUNT: Final = 1_000
BY: Final = "p:by hand"
POLL_S: Final = 0.02
PAUSE_S: Final = 0.0005
OPS_COUNT: Final = 60
"""Number of ops in one record."""


class _Chunk:
    """Transactions that continue together when all of their records are acknowledged."""

    __slots__ = ("left", "messages", "records", "then")

    def __init__(self, messages: list[txcore.Message]) -> None:
        self.messages = messages
        self.records: list[HalfRecord] = []
        self.left = len(messages)
        self.then: Callable[[_Chunk], None]


class _Record:
    """A delivery callback."""

    __slots__ = ("chunk", "ready")

    def __init__(self, chunk: _Chunk, ready: deque[_Chunk]) -> None:
        self.chunk = chunk
        self.ready = ready

    def __call__(self, error: Any, message: Any) -> None:  # noqa: ARG002
        if error is not None:
            raise RuntimeError(f"a record was not delivered: {error}")
        self.chunk.left -= 1
        if not self.chunk.left:
            self.ready.append(self.chunk)


class _Records:
    """Makes the records of transactions and hands them to a client of its own."""

    def __init__(self, place: Place) -> None:
        self._partition_count = place.backend().ensure_group(place.group).result(30)
        self.producer: Any = Producer(producer_config(parse_url(place.url.partition("?")[0])))
        self._group = place.group
        self._topics = {kind: topic_name(place.group, kind) for kind in LogKind}
        self._clock = SystemClock()
        self._ids = IdFactory(self._clock, system_randomness())
        self._ops: defaultdict[int, list[Op]] = defaultdict(list)

    def append(self, message: txcore.Message, delivered: Any) -> HalfRecord:
        """Make a half and hand it to the client."""
        validate_message(message)
        count = self._partition_count
        identity = self._ids.new(count)
        partition = partition_of(identity, count)
        half = half_of(self._group, partition, identity, message, self._clock.wall_ms())
        self.producer.produce(self._topics[LogKind.HALF], half.body, None, partition, delivered)
        return half

    def publish(self, half: HalfRecord, delivered: Any) -> None:
        """Hand a transaction's target to the client."""
        (target,) = half.messages
        headers = wire.target_headers(self._group, half.transaction_id, 0, target, BY, key_as_header=False)
        self.producer.produce(target.topic, target.body, target.key, -1, delivered, None, 0, headers)

    def op(self, half: HalfRecord) -> Op:
        """Return a transaction's op."""
        return Op(OpKind.COMMIT, half.transaction_id, 0, BY, self._clock.wall_ms())

    def merge_op(self, half: HalfRecord) -> None:
        """Collect a transaction's op with others of the partition, and write full records; one caller at a time."""
        ops = self._ops[half.partition]
        ops.append(self.op(half))
        if len(ops) >= OPS_COUNT:
            self.write(half.partition, ops)
            self._ops[half.partition] = []

    def write(self, partition: int, ops: list[Op]) -> None:
        """Hand ops to the client in one record."""
        self.producer.produce(self._topics[LogKind.OP], wire.encode_ops(ops), None, partition)


def half_of(group: str, partition: int, identity: bytes, message: txcore.Message, now_ms: int) -> HalfRecord:
    """Return the half of one message."""
    targets = [TargetMessage(message.topic, message.key, message.body, dict(message.headers or ()))]
    immunity_ms = round(POLICY.immunity_s * 1000)
    half = Half(wire.VERSION, identity, group, partition, 0, now_ms, immunity_ms, 0, 0, False, BY, targets)
    return HalfRecord(group, partition, identity, 0, wire.encode_half(half), targets)


def result_of(half: HalfRecord) -> TransactionSendResult:
    """Return the result of an accepted transaction."""
    end = EndResult(EndState.ACCEPTED, known_id(half.transaction_id))
    return TransactionSendResult(end.transaction_id, txcore.LocalTransactionState.COMMIT, end)


class _ByHand:
    def __init__(self, place: Place) -> None:
        self._records = _Records(place)
        self._listener = Committing()
        self._ready: deque[_Chunk] = deque()
        self._results: list[TransactionSendResult] = []
        self._under_way = 0

    def send_many(self, messages: Iterator[txcore.Message]) -> list[TransactionSendResult]:
        self._results = []
        while True:
            while self._under_way < WINDOW_COUNT // CHUNK_COUNT and (
                chunk := [*itertools.islice(messages, CHUNK_COUNT)]
            ):
                self._under_way += 1
                self._append(chunk)
            if not self._under_way:
                return self._results
            self._records.producer.poll(0.0 if self._ready else POLL_S)
            while self._ready:
                chunk_done = self._ready.popleft()
                chunk_done.then(chunk_done)

    def _append(self, messages: list[txcore.Message]) -> None:
        chunk, append = _Chunk(messages), self._records.append
        chunk.then = self._release
        chunk.records = [append(message, _Record(chunk, self._ready)) for message in messages]

    def _release(self, chunk: _Chunk) -> None:
        chunk.left, chunk.then = len(chunk.messages), self._end
        for half, message in zip(chunk.records, chunk.messages, strict=True):
            self._listener.execute(None, message, None)
            self._records.publish(half, _Record(chunk, self._ready))

    def _end(self, chunk: _Chunk) -> None:
        self._under_way -= 1
        ops: defaultdict[int, list[Op]] = defaultdict(list)
        for half in chunk.records:
            ops[half.partition].append(self._records.op(half))
            self._results.append(result_of(half))
        for partition, merged in ops.items():
            self._records.write(partition, merged)


def by_hand(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    """Run the loop in one thread, batch after batch, like `styles.send_many`."""
    loop = _ByHand(place)

    def send() -> None:
        if len(loop.send_many(place.message() for _ in range(batch_size))) != batch_size:
            raise RuntimeError("a transaction is missing")

    send()
    return drive.threads(send, 1, batch_size)


class _Tasks:
    """The same transactions from tasks of one event loop, which polls while any task waits."""

    def __init__(self, place: Place) -> None:
        self._records = _Records(place)
        self._listener = AsyncCommitting()
        self._loop = asyncio.get_running_loop()
        self._delivered: list[asyncio.Future[None]] = []
        self._waiting_count = 0
        self._is_polling = False

    async def send(self, message: txcore.Message) -> TransactionSendResult:
        stored = self._future()
        half = self._records.append(message, _Delivery(stored, self._delivered))
        await stored
        await self._listener.execute(None, message, None)
        published = self._future()
        self._records.publish(half, _Delivery(published, self._delivered))
        await published
        self._records.merge_op(half)
        return result_of(half)

    def _future(self) -> asyncio.Future[None]:
        self._waiting_count += 1
        if not self._is_polling:
            self._is_polling = True
            self._loop.call_soon(self._poll)
        return self._loop.create_future()

    def _poll(self) -> None:
        self._records.producer.poll(0)
        count = len(self._delivered)
        self._waiting_count -= count
        for future in self._delivered:
            future.set_result(None)
        self._delivered.clear()
        if not self._waiting_count:
            self._is_polling = False
        elif count:
            self._loop.call_soon(self._poll)
        else:
            self._loop.call_later(PAUSE_S, self._poll)


class _Delivery:
    """A delivery callback that completes a future or releases a lock."""

    __slots__ = ("_delivered", "_waiter")

    def __init__(self, waiter: Any, delivered: list[Any]) -> None:
        self._waiter = waiter
        self._delivered = delivered

    def __call__(self, error: Any, message: Any) -> None:  # noqa: ARG002
        if error is not None:
            raise RuntimeError(f"a record was not delivered: {error}")
        self._delivered.append(self._waiter)


def by_hand_async(place: Place, drive: Drive, *, task_count: int) -> Sample:
    """Run the tasks of one event loop, like `styles.listener_async`."""

    async def measure() -> Sample:
        tasks = _Tasks(place)

        async def call() -> None:
            await tasks.send(place.message())

        await call()
        return await drive.tasks(call, task_count)

    return asyncio.run(measure())


class _Callers:
    """The same transactions from blocking threads: a poll thread wakes each caller after its delivery report."""

    def __init__(self, place: Place) -> None:
        self._records = _Records(place)
        self._listener = Committing()
        self._delivered: list[Any] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def send(self, message: txcore.Message) -> TransactionSendResult:
        turn = threading.Lock()
        turn.acquire()
        half = self._records.append(message, _Delivery(turn, self._delivered))
        turn.acquire()
        self._listener.execute(None, message, None)
        self._records.publish(half, _Delivery(turn, self._delivered))
        turn.acquire()
        with self._lock:
            self._records.merge_op(half)
        return result_of(half)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()

    def _poll(self) -> None:
        while not self._is_over:
            self._records.producer.poll(POLL_S)
            for turn in self._delivered:
                turn.release()
            self._delivered.clear()


def by_hand_blocking(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run blocking callers, like `styles.listener`."""
    callers = _Callers(place)

    def call() -> None:
        callers.send(place.message())

    call()
    try:
        return drive.threads(call, thread_count)
    finally:
        callers.close()
