"""`python -m benchmarks.floor`: the cost in Python of each part of a pipelined transaction on Kafka.

A loop writes a half, a target and a share of an op for each transaction, with the driver alone. The first row writes
bytes only; each further row adds one part, up to the records and results of `benchmarks.by_hand`. So the table shows
the cost of each part as this loop writes it. A loop that makes fewer objects and fuller requests is cheaper.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
import rich
import rich.table
import typer
from confluent_kafka import Producer
from txcore_kafka.clients import producer_config
from txcore_kafka.options import parse_url

import txcore
from benchmarks import machine
from benchmarks.brokers import PARTITIONS
from benchmarks.brokers.kafka import KafkaServer
from benchmarks.by_hand import BY, half_of, result_of
from txcore import wire
from txcore.clock import SystemClock, system_randomness
from txcore.ids import IdFactory, partition_of
from txcore.message import validate_message
from txcore.records import HalfRecord, Op, OpKind
from txcore.results import TransactionSendResult

TOGETHER_COUNT: Final = 1_000
UNDER_WAY_COUNT: Final = 10_000
BODY: Final = b"x" * 300
KEY: Final = b"12345678"
GROUP: Final = "floor"
HALVES, OPS, TARGETS = "floor-halves", "floor-ops", "floor-targets"
WARM_UP_S: Final = 5.0
THINGS: Final = ("callbacks", "ids", "envelopes", "headers", "results")

_encode: Final = msgspec.msgpack.Encoder().encode


class _Callback:
    """Delivery callback of one record, with a field for the record's transactions."""

    __slots__ = ("_group",)

    def __init__(self, group: _Together) -> None:
        self._group = group

    def __call__(self, error: Any, message: Any) -> None:
        self._group.delivered(error, message)


class _Together:
    """Transactions that continue together."""

    def __init__(self) -> None:
        self.halves: list[Any] = []
        self.left = 0

    def delivered(self, error: Any, message: Any) -> None:  # noqa: ARG002
        if error is not None:
            raise RuntimeError(f"a record was not delivered: {error}")
        self.left -= 1


class _Loop:
    """Writes transactions with some of `THINGS`."""

    def __init__(self, producer: Any, things: frozenset[str]) -> None:
        self._producer = producer
        self._has_callbacks, self._has_ids, self._has_envelopes, self._has_headers, self._has_results = (
            thing in things for thing in THINGS
        )
        self._clock = SystemClock()
        self._ids = IdFactory(self._clock, system_randomness())
        self._numbers = itertools.count()

    def run(self, until_s: float) -> int:
        """Run until *until_s*, with the next transactions' halves under way; returns the number of transactions."""
        count, going = 0, self._begin()
        while True:
            self._wait(going)
            following = self._begin() if time.perf_counter() < until_s else None
            self._publish(going)
            self._wait(going)
            self._end(going)
            count += TOGETHER_COUNT
            if following is None:
                return count
            going = following

    def _wait(self, going: _Together) -> None:
        while going.left:
            self._producer.poll(0.01)

    def _callback(self, going: _Together) -> Any:
        return _Callback(going) if self._has_callbacks else going.delivered

    def _begin(self) -> _Together:
        going = _Together()
        going.left = TOGETHER_COUNT
        for _ in range(TOGETHER_COUNT):
            if self._has_ids:
                identity = self._ids.new(PARTITIONS)
                partition = partition_of(identity, PARTITIONS)
            else:
                number = next(self._numbers)
                identity, partition = number.to_bytes(16, "big"), number % PARTITIONS
            if self._has_envelopes:
                half = self._half(identity, partition)
            else:
                body = _encode((identity, TARGETS, KEY, BODY))
                half = HalfRecord(GROUP, partition, identity, 0, body, ())
            going.halves.append(half)
            self._producer.produce(HALVES, half.body, None, partition, self._callback(going))
        return going

    def _half(self, identity: bytes, partition: int) -> HalfRecord:
        message = txcore.Message(TARGETS, BODY, KEY)
        validate_message(message)
        return half_of(GROUP, partition, identity, message, self._clock.wall_ms())

    def _publish(self, going: _Together) -> None:
        going.left = TOGETHER_COUNT
        for half in going.halves:
            headers: Any = [("id", half.transaction_id), ("group", b"floor")]
            if self._has_headers:
                (target,) = half.messages
                headers = wire.target_headers(GROUP, half.transaction_id, 0, target, BY, key_as_header=False)
            self._producer.produce(TARGETS, BODY, KEY, -1, self._callback(going), None, 0, headers)

    def _end(self, going: _Together) -> list[TransactionSendResult]:
        results = []
        ops: defaultdict[int, list[Any]] = defaultdict(list)
        for half in going.halves:
            identity = half.transaction_id
            op = Op(OpKind.COMMIT, identity, 0, BY, self._clock.wall_ms()) if self._has_envelopes else identity
            ops[half.partition].append(op)
            if self._has_results:
                results.append(result_of(half))
        for partition, merged in ops.items():
            value = wire.encode_ops(merged) if self._has_envelopes else _encode(merged)
            self._producer.produce(OPS, value, None, partition)
        return results


def _raw(producer: Any, until_s: float) -> int:
    """Write single messages."""
    going, count = _Together(), 0
    while time.perf_counter() < until_s:
        for _ in range(TOGETHER_COUNT):
            producer.produce(TARGETS, BODY, KEY, -1, going.delivered)
        going.left += TOGETHER_COUNT
        count += TOGETHER_COUNT
        while going.left > UNDER_WAY_COUNT:
            producer.poll(0.01)
    while going.left:
        producer.poll(0.01)
    return count


def main(
    seconds: Annotated[float, typer.Option(min=0.01, help="Per row and round.")] = 1.5,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Measure on a Kafka of its own, in an order that turns from round to round, and print a table."""
    machine.warn_if_loaded()
    server = KafkaServer()
    try:
        producer: Any = Producer(producer_config(parse_url(server.url)))
        for topic in (HALVES, OPS, TARGETS):
            server.create_topic(topic)
        rows: dict[str, Callable[[float], int]] = {"raw, one message": lambda until_s: _raw(producer, until_s)}
        for count in range(len(THINGS) + 1):
            name = f"+ {THINGS[count - 1]}" if count else "nothing but bytes"
            rows[name] = _Loop(producer, frozenset(THINGS[:count])).run
        rich.print(_measured(rows, seconds, rounds))
    finally:
        server.close()


def _measured(rows: dict[str, Callable[[float], int]], seconds: float, rounds: int) -> rich.table.Table:
    for run in (*rows.values(),)[:: len(rows) - 1]:
        run(time.perf_counter() + WARM_UP_S)
    rates, costs = defaultdict(list), defaultdict(list)
    names = list(rows)
    for number in range(rounds):
        for name in names[number:] + names[:number]:
            began_s, cpu_s = time.perf_counter(), time.process_time()
            count = rows[name](began_s + seconds)
            rates[name].append(count / (time.perf_counter() - began_s))
            costs[name].append((time.process_time() - cpu_s) / count * 1e6)
    table = rich.table.Table("one transaction, Kafka", box=None)
    for column in ("min/s", "median/s", "max/s", "CPU us", "of raw"):
        table.add_column(column, justify="right")
    first = statistics.median(rates[names[0]])
    for name in names:
        low, middle, high = min(rates[name]), statistics.median(rates[name]), max(rates[name])
        cost, ratio = statistics.median(costs[name]), middle / first
        table.add_row(name, f"{low:,.0f}", f"{middle:,.0f}", f"{high:,.0f}", f"{cost:.1f}", f"{ratio:.2f}")
    return table


if __name__ == "__main__":
    typer.run(main)
