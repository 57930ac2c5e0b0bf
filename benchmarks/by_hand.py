"""What a transaction on Kafka costs in Python without a flow: the records of `send_many`, from a loop made for that.

Ids, envelopes, headers, ops, the listener's call and the results are the real ones. There are no deadlines, no errors
but the first, no state of a transaction and nobody else: what is between this row and `send_many` is txcore's, what is
between this row and `raw` is what two messages with headers, and the objects for them, cost more than one without.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Producer
from txcore_kafka.options import parse_url, topic_name
from txcore_kafka.producing import producer_config

import txcore
from benchmarks.drive import Drive, Sample
from benchmarks.place import POLICY, Place
from benchmarks.styles import Committing
from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.ids import IdFactory, partition_of
from txcore.message import validate_message
from txcore.records import Half, HalfRecord, LogKind, Op, OpKind, TargetMessage
from txcore.results import EndResult, EndState, TransactionSendResult

CHUNK_COUNT: Final = 250
WINDOW_COUNT: Final = 1_000
BY: Final = "p:by hand"
POLL_S: Final = 0.02


class _Chunk:
    """Transactions that go on together once all of their records are acknowledged."""

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


class _ByHand:
    def __init__(self, place: Place) -> None:
        self._partition_count = place.backend().ensure_group(place.group).result(30)
        self._producer: Any = Producer(producer_config(parse_url(place.url.partition("?")[0], {})))
        self._group = place.group
        self._clock = SystemClock()
        self._ids = IdFactory(self._clock, system_randomness())
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
            self._producer.poll(0.0 if self._ready else POLL_S)
            while self._ready:
                chunk_done = self._ready.popleft()
                chunk_done.then(chunk_done)

    def _append(self, messages: list[txcore.Message]) -> None:
        chunk, topic, count = _Chunk(messages), topic_name(self._group, LogKind.HALF), self._partition_count
        chunk.then = self._release
        for message in messages:
            validate_message(message)
            identity = self._ids.new(count)
            partition = partition_of(identity, count)
            targets = [TargetMessage(message.topic, message.key, message.body, dict(message.headers))]
            immunity_ms, now_ms = round(POLICY.immunity_s * 1000), self._clock.wall_ms()
            half = Half(
                wire.VERSION, identity, self._group, partition, 0, now_ms, immunity_ms, 0, 0, False, BY, targets
            )
            body = wire.encode_half(half)
            chunk.records.append(HalfRecord(self._group, partition, identity, 0, body, targets))
            self._producer.produce(topic, body, None, partition, _Record(chunk, self._ready))

    def _release(self, chunk: _Chunk) -> None:
        chunk.left, chunk.then = len(chunk.messages), self._end
        for half, message in zip(chunk.records, chunk.messages, strict=True):
            self._listener.execute_local_transaction(message, None)
            (target,) = half.messages
            headers = wire.target_headers(self._group, half.transaction_id, 0, target, BY, key_as_header=False)
            record = _Record(chunk, self._ready)
            self._producer.produce(target.topic, target.body, target.key, -1, record, None, 0, headers)

    def _end(self, chunk: _Chunk) -> None:
        self._under_way -= 1
        ops: defaultdict[int, list[Op]] = defaultdict(list)
        now_ms = self._clock.wall_ms()
        for half in chunk.records:
            ops[half.partition].append(Op(OpKind.COMMIT, half.transaction_id, 0, BY, now_ms))
            end = EndResult(EndState.ACCEPTED, half.transaction_id)
            state = txcore.LocalTransactionState.COMMIT
            self._results.append(TransactionSendResult(half.transaction_id, state, end))
        for partition, merged in ops.items():
            self._producer.produce(topic_name(self._group, LogKind.OP), wire.encode_ops(merged), None, partition)


def by_hand(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    """The loop from one thread, batch after batch, as `styles.send_many`."""
    loop = _ByHand(place)

    def send() -> None:
        if len(loop.send_many(place.message() for _ in range(batch_size))) != batch_size:
            raise RuntimeError("a transaction is missing")

    send()
    return drive.threads(send, 1, batch_size)
