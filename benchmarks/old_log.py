"""A log on Kafka as after years of use: halves with their ops, and a few undecided ones between them.

The driver writes it in txcore's wire format, because the producer needs too long for ten million transactions.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from confluent_kafka import Producer
from txcore_kafka.clients import producer_config
from txcore_kafka.options import parse_url, topic_name

from benchmarks.orphans import GROUP, make_half, new_ids
from txcore import wire
from txcore.records import LogKind, Op, OpKind

MERGED_COUNT: Final = 50
"""Number of ops in one record."""
UNDECIDED_S: Final = 86_400.0
BODY: Final = b"x" * 100
POLL_COUNT: Final = 1_000


def write_old_log(url: str, topic: str, count: int, undecided: int) -> None:
    """Write *count* resolved transactions and *undecided* others spread evenly; the first record is undecided.

    Raises:
        RuntimeError: the broker did not store every record.
    """
    producer: Any = Producer(
        producer_config(parse_url(url)) | {"linger.ms": 20, "queue.buffering.max.messages": 50_000}
    )
    half_topic, op_topic = topic_name(GROUP, LogKind.HALF), topic_name(GROUP, LogKind.OP)
    ids, every = new_ids(), max(count // undecided, 1)
    ops: defaultdict[int, list[Op]] = defaultdict(list)
    for number in range(count):
        if not number % every and number // every < undecided:
            _send(producer, half_topic, make_half(ids.new(), topic, BODY, UNDECIDED_S))
        half = make_half(ids.new(), topic, BODY, UNDECIDED_S)
        _send(producer, half_topic, half)
        waiting = ops[half.partition]
        waiting.append(Op(OpKind.COMMIT, half.transaction_id, 0, "p:old"))
        if len(waiting) == MERGED_COUNT:
            _produce(producer, op_topic, wire.encode_ops(waiting), half.partition)
            waiting.clear()
        if not number % POLL_COUNT:
            producer.poll(0)
    for partition, waiting in ops.items():
        _produce(producer, op_topic, wire.encode_ops(waiting), partition)
    if producer.flush(60):
        raise RuntimeError("the old log was not written")


def _send(producer: Any, topic: str, record: Any) -> None:
    _produce(producer, topic, record.body, record.partition)


def _produce(producer: Any, topic: str, body: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, body, partition=partition)
        except BufferError:
            producer.poll(0.05)
        else:
            return
