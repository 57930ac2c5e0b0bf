"""Writing any record to a real broker without the protocol: a producer would refuse the records of a self-test."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import create_engine, text

from txcore.errors import BackendUnavailableError
from txcore.records import LogKind, OpKind
from txcore.wire import decode_half, decode_ops, decode_parked
from txcore_spark.anomalies import Written

CONFIRM_S: Final = 60.0
CHUNK: Final = 1_000


class Writer(Protocol):
    """Appends records to a group's logs and to topics; `write` returns once the broker has them."""

    def prepare(self, topics: Sequence[str]) -> None:
        """Make the topics."""

    def write(self, records: Iterable[tuple[int, Written]]) -> None:
        """Append records, each with the partition of its transaction, in order."""

    def close(self) -> None:
        """Disconnect."""


class KafkaWriter:
    """Plain Kafka records."""

    def __init__(self, url: str, group: str) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415 - each driver is an extra
        from txcore_kafka.options import parse_url  # noqa: PLC0415

        self._options = parse_url(url)
        self._group = group
        self._producer: Any = Producer({**self._options.connection(), "linger.ms": 20, "acks": "all"})
        self._errors: list[Any] = []

    def prepare(self, topics: Sequence[str]) -> None:
        """See `Writer.prepare`."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

        admin = AdminClient(self._options.connection())
        wanted = [NewTopic(topic, num_partitions=2, replication_factor=-1) for topic in topics]
        for answer in admin.create_topics(wanted).values():
            answer.result(CONFIRM_S)

    def write(self, records: Iterable[tuple[int, Written]]) -> None:
        """See `Writer.write`."""
        for number, (partition, record) in enumerate(records):
            if record.log == "target":
                self._produce(record.topic, record.body, key=record.key, headers=list(record.headers.items()))
            else:
                self._produce(f"txc.{self._group}.{record.log}", record.body, partition=partition)
            if number % CHUNK == 0:
                self._producer.poll(0)
        self._producer.flush(CONFIRM_S)
        if self._errors or len(self._producer):
            raise BackendUnavailableError(f"Kafka did not take {len(self._errors)} records: {self._errors[:1]}")

    def _produce(self, topic: str, body: bytes, **more: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, body, on_delivery=self._delivered, **more)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._errors.append(error)

    def close(self) -> None:
        """See `Writer.close`."""
        self._producer.flush(CONFIRM_S)


class RabbitmqWriter:
    """Plain messages for the streams of a group; each topic is a queue with a stream that taps it."""

    def __init__(self, url: str, group: str) -> None:
        import pika  # type: ignore[import-untyped]  # noqa: PLC0415
        from txcore_rabbitmq import names  # noqa: PLC0415
        from txcore_rabbitmq.connection import connection_parameters, open_blocking  # noqa: PLC0415
        from txcore_rabbitmq.options import parse_url  # noqa: PLC0415

        self._pika, self._names = pika, names
        self._group = group
        self._connection = open_blocking(connection_parameters(parse_url(url), 0, "txcore self-test"), "connecting")
        self._channel = self._connection.channel()

    def prepare(self, topics: Sequence[str]) -> None:
        """See `Writer.prepare`: `exchange/key`, bound to a queue and to the stream `exchange.tap`."""
        for topic in topics:
            exchange, _, key = topic.partition("/")
            self._channel.exchange_declare(exchange, "topic", durable=True)
            self._channel.queue_declare(exchange, durable=True, arguments={"x-max-length": 1_000})
            self._channel.queue_declare(f"{exchange}.tap", durable=True, arguments={"x-queue-type": "stream"})
            for queue in (exchange, f"{exchange}.tap"):
                self._channel.queue_bind(queue, exchange, key)

    def write(self, records: Iterable[tuple[int, Written]]) -> None:
        """See `Writer.write`: in AMQP transactions, each confirmed as a whole."""
        self._channel.tx_select()
        for number, (partition, record) in enumerate(records, start=1):
            properties = self._pika.BasicProperties(delivery_mode=2, headers=dict(record.headers) or None)
            exchange, _, key = record.topic.partition("/")
            if record.log != "target":
                kind = LogKind(record.log)
                exchange = self._names.log_exchange(self._group, kind)
                key = self._names.log_name(self._group, kind, partition)
            self._channel.basic_publish(exchange, key, record.body, properties)
            if number % CHUNK == 0:
                self._channel.tx_commit()
        self._channel.tx_commit()

    def close(self) -> None:
        """See `Writer.close`."""
        self._connection.close()


class NatsWriter:
    """Plain messages on the subjects of a group, without ids by which the server would drop a second one."""

    def __init__(self, url: str, group: str) -> None:
        from nats.aio.client import Client  # noqa: PLC0415
        from txcore_nats.options import GroupNames, parse_url  # noqa: PLC0415

        options = parse_url(url)
        self._names = GroupNames(group, options)
        self._loop = asyncio.new_event_loop()
        self._client = Client()
        self._loop.run_until_complete(self._client.connect(servers=list(options.servers)))

    def prepare(self, topics: Sequence[str]) -> None:
        """See `Writer.prepare`."""
        from nats.js.api import StreamConfig  # noqa: PLC0415

        config = StreamConfig(name="selftest-" + topics[0].replace(".", "-"), subjects=list(topics))
        self._loop.run_until_complete(self._client.jetstream().add_stream(config))

    def write(self, records: Iterable[tuple[int, Written]]) -> None:
        """See `Writer.write`."""
        self._loop.run_until_complete(self._write(records))

    async def _write(self, records: Iterable[tuple[int, Written]]) -> None:
        context = self._client.jetstream(publish_async_max_pending=CHUNK)
        pending: list[asyncio.Future[Any]] = []
        for partition, record in records:
            headers = _nats_headers(record) or None
            pending.append(await context.publish_async(self._subject(partition, record), record.body, headers=headers))
            if len(pending) >= CHUNK:
                await asyncio.wait_for(asyncio.gather(*pending), CONFIRM_S)
                pending.clear()
        await asyncio.wait_for(asyncio.gather(*pending), CONFIRM_S)

    def _subject(self, partition: int, record: Written) -> str:
        if record.log == "target":
            return record.topic
        if record.log == "op":
            op = decode_ops(record.body)[0]
            return self._names.op_subject(partition, op.kind, op.transaction_id)
        return self._names.subject(LogKind(record.log), partition)

    def close(self) -> None:
        """See `Writer.close`."""
        from txcore_spark.readers.nats import end  # noqa: PLC0415

        end(self._loop, self._client)


def _nats_headers(record: Written) -> dict[str, str]:
    if record.log != "target":
        return {}
    from txcore_nats.codec import encode_headers  # noqa: PLC0415

    return encode_headers(record.headers)


class SqliteWriter:
    """Rows of a broker file."""

    def __init__(self, url: str, group: str) -> None:
        from txcore_sqlite.options import parse_path  # noqa: PLC0415

        self._connection = sqlite3.connect(parse_path(url), timeout=CONFIRM_S, isolation_level=None)
        self._group = group

    def prepare(self, topics: Sequence[str]) -> None:
        """See `Writer.prepare`."""
        for topic in topics:
            self._connection.execute("INSERT OR IGNORE INTO topic (name) VALUES (?)", (topic,))

    def write(self, records: Iterable[tuple[int, Written]]) -> None:
        """See `Writer.write`."""
        chunk: list[tuple[int, Written]] = []
        for record in records:
            chunk.append(record)
            if len(chunk) == CHUNK:
                self._write(chunk)
                chunk = []
        self._write(chunk)

    def _write(self, chunk: Sequence[tuple[int, Written]]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        (group,) = execute("SELECT group_id FROM producer_group WHERE name = ?", (self._group,)).fetchone()
        (position,) = execute("SELECT next FROM sequence").fetchone()
        now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
        for partition, record in chunk:
            if record.log == "target":
                headers = msgspec.msgpack.encode(dict(record.headers))
                execute(
                    "INSERT INTO target VALUES (?, (SELECT topic_id FROM topic WHERE name = ?), ?, ?, ?, " + now + ")",
                    (position, record.topic, record.key, record.body, headers),
                )
            else:
                execute(
                    "INSERT OR IGNORE INTO log (group_id, partition, kind, first) VALUES (?, ?, ?, ?)",
                    (group, partition, record.log, position),
                )
                execute(
                    f"INSERT INTO {record.log} VALUES (?, ?, ?, ?, {now})", (position, group, partition, record.body)
                )
            position += 1
        execute("UPDATE sequence SET next = ?", (position,))
        execute("COMMIT")

    def close(self) -> None:
        """See `Writer.close`."""
        self._connection.close()


def open_writer(url: str, group: str) -> Writer:
    """Return the writer for a broker's URL."""
    kinds: dict[str, type[Any]] = {
        "kafka": KafkaWriter,
        "rabbitmq": RabbitmqWriter,
        "nats": NatsWriter,
        "sqlite": SqliteWriter,
    }
    writer: Writer = kinds[url.partition(":")[0]](url, group)
    return writer


def write_rows(url: str, table: str, group: str, rows: Sequence[tuple[bytes, int, bytes]]) -> None:
    """Insert fence rows of any state; an empty digest is none."""
    engine = create_engine(url)
    sql = text(
        f"INSERT INTO {table} (transaction_id, state, producer_group, digest) VALUES (:id, :state, :group, :digest)"
    )
    if engine.dialect.name in {"mysql", "mariadb"}:
        sql = text(
            f"INSERT INTO {table} (transaction_id, state, producer_group, digest, created, checks) "
            "VALUES (:id, :state, :group, :digest, CURRENT_TIMESTAMP(6), 0)"
        )
    is_uuid = engine.dialect.name == "postgresql"
    values = [
        {"id": uuid.UUID(bytes=each) if is_uuid else each, "state": state, "group": group, "digest": digest or None}
        for each, state, digest in rows
    ]
    with engine.begin() as connection:
        for begin in range(0, len(values), CHUNK):
            connection.execute(sql, values[begin : begin + CHUNK])
    engine.dispose()


def kind_of(record: Written) -> str:
    """Return a description of a record."""
    if record.log == "op":
        return OpKind(decode_ops(record.body)[0].kind).name
    if record.log == "half":
        return f"half of {len(decode_half(record.body).messages)} messages"
    return decode_parked(record.body).code if record.log == "parked" else record.log
