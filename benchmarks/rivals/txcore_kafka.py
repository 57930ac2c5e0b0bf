"""txcore on Kafka, with PostgreSQL and without a database.

All settings are the defaults. In the database rows each of 16 callers inserts an order and sends one message, with
plain psycopg or with SQLAlchemy; in mode table, which is an outbox, `txcore relay` runs at the same time. The other
rows have a listener that returns COMMIT at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy

import txcore
from benchmarks.drive import Drive
from benchmarks.rivals import measures
from benchmarks.rivals.postgres import INSERT_ORDER, Connections, business_only, database, sqlalchemy_url
from benchmarks.rivals.system import (
    BUSINESS,
    CALLERS,
    DRAIN,
    TRANSACTIONAL,
    Figures,
    Plan,
    Row,
    body_of,
    callers,
)
from benchmarks.rivals.topic import Topic, kafka, wait_until
from benchmarks.styles import AsyncCommitting, Committing
from txcore.port import Backend
from txcore.results import EndResult, EndState

THREADS: Final = (1, 16, 64)
TASKS: Final = 1_000
BATCH: Final = 10_000
PIPELINES: Final = 4
TABLED: Final = "tabled"
KEYS: Final = ((None, ""), (100, ", 100 keys"), (1, ", 1 key"))
"""Numbers of keys of the messages that wait for a relay, each with the end of its load's name; None: all distinct."""
IMMUNITY_S: Final = txcore.CheckPolicy().immunity_s
_WARM_UP_S: Final = 0.5
_RECOVERY_MAX_S: Final = 120.0


class TxcoreKafka:
    """The system txcore on Kafka; see the module."""

    name = "txcore, Kafka"

    def prepare(self) -> None:
        """Do nothing: the tests' own broker and database are used."""

    def measure(self, plan: Plan) -> Figures:
        """Measure without a database, then with one."""
        with kafka() as servers, _opened(servers) as backend:
            found = _without_database(backend, Topic(servers, "made"), plan)
            if plan.has_incidents:
                found |= _overload(backend, Topic(servers, "overload"), plan)
            with database() as url:
                found |= business_only(url, plan.seconds)
                found |= _Database(url, backend, servers).measure(plan)
        return found


@contextlib.contextmanager
def _opened(servers: str) -> Iterator[Backend]:
    backend = txcore.connect(f"kafka://{servers}")
    try:
        yield backend
    finally:
        backend.close().result(30)


def message(topic: Topic, number: int, key: bytes | None = None) -> txcore.Message:
    """Return the message with this number."""
    return txcore.Message(topic.name, body_of(number), key)


def _require_end(result: EndResult | None, state: EndState = EndState.ACCEPTED) -> None:
    if result is None or result.state is not state:
        raise RuntimeError(f"a transaction did not end {state.value} but {result}")


def _without_database(backend: Backend, topic: Topic, plan: Plan) -> dict[Row, float]:
    producer = txcore.TransactionProducer(backend, "listener", listener=Committing())
    found = {}

    def call() -> None:
        _require_end(producer.send_message_in_transaction(message(topic, 0)).end)

    Drive(_WARM_UP_S).threads(call, CALLERS)
    for count in THREADS:
        found[Row(TRANSACTIONAL, callers(count), "/s")] = Drive(plan.seconds).threads(call, count).per_s

    def batch() -> None:
        for result in producer.send_many((message(topic, 0), None) for _ in range(BATCH)):
            _require_end(result.end)

    batch()
    sample = Drive(plan.seconds).threads(batch, 1, BATCH)
    found[Row(TRANSACTIONAL, "pipelined, send_many", "/s")] = sample.per_s
    found[Row(TRANSACTIONAL, f"{TASKS:,} asyncio tasks", "/s")] = asyncio.run(_tasks(backend, topic, plan.seconds))
    topic.close()
    return found


async def _tasks(backend: Backend, topic: Topic, seconds: float) -> float:
    producer = txcore.AsyncTransactionProducer(backend, "listener", listener=AsyncCommitting())

    async def call() -> None:
        _require_end((await producer.send_message_in_transaction(message(topic, 0))).end)

    await Drive(_WARM_UP_S).tasks(call, TASKS)
    return (await Drive(seconds).tasks(call, TASKS)).per_s


def _overload(backend: Backend, topic: Topic, plan: Plan) -> dict[Row, float]:
    """Run more pipelines than the broker can serve; only an end ACCEPTED counts as reported as committed."""
    producer = txcore.TransactionProducer(backend, "listener", listener=Committing())
    numbers = itertools.count(1)
    reported: list[int] = []

    def call() -> None:
        own = list(itertools.islice(numbers, BATCH))
        results = producer.send_many([(message(topic, number), None) for number in own])
        reported.extend(
            number
            for number, result in zip(own, results, strict=True)
            if result.end is not None and result.end.state is EndState.ACCEPTED
        )

    def send_for(seconds: float) -> list[int]:
        Drive(seconds).threads(call, PIPELINES)
        return reported

    found = measures.overload(topic, f"{PIPELINES} pipelines", send_for, plan)
    topic.close()
    return found


class _Database:
    """The rows with a database."""

    def __init__(self, url: str, backend: Backend, servers: str) -> None:
        self._url = url
        self._backend = backend
        self._servers = servers
        self._engine = sqlalchemy.create_engine(sqlalchemy_url(url), pool_size=CALLERS, max_overflow=8)
        self._fence = txcore.SqlFence(self._engine)
        self._fence.create()
        self._connections = Connections(url)
        self._numbers = itertools.count(1)

    def measure(self, plan: Plan) -> dict[Row, float]:
        """Measure all rows."""
        topic = Topic(self._servers, "orders")
        producer = txcore.TransactionProducer(self._backend, "database", fence=self._fence)

        def commit(number: int) -> float:
            tx, committed_s = self._prepared(producer, topic, number)
            _require_end(tx.commit())
            return committed_s

        found = measures.rate(commit, self._numbers, plan, "psycopg")
        found |= self._through_sqlalchemy(producer, topic, plan.seconds)
        found |= measures.visible(commit, self._numbers, topic, plan)
        found |= self._through_table(plan)
        for key_count, words in KEYS:
            found |= self._drain(plan, key_count, words)
        if plan.has_incidents:
            found |= self._recovery(plan)
        topic.close()
        self._connections.close()
        self._engine.dispose()
        return found

    def _prepared(self, producer: Any, topic: Topic, number: int, key: bytes | None = None) -> tuple[Any, float]:
        """Run one transaction up to the database's COMMIT; returns it, and the time of the answer to COMMIT."""
        connection = self._connections.get()
        tx = producer.begin()
        tx.publish(message(topic, number, key))
        tx.prepare(connection)
        connection.execute(INSERT_ORDER)
        connection.commit()
        return tx, time.monotonic()

    def _through_sqlalchemy(
        self, producer: txcore.TransactionProducer, topic: Topic, seconds: float
    ) -> dict[Row, float]:
        insert = sqlalchemy.text(INSERT_ORDER)

        def business() -> None:
            with self._engine.begin() as connection:
                connection.execute(insert)

        def call() -> None:
            with producer.transaction(self._engine) as tx:
                tx.connection.execute(insert)
                tx.publish(message(topic, next(self._numbers)))
            _require_end(tx.result)

        found = {}
        for measure, work in ((BUSINESS, business), (TRANSACTIONAL, call)):
            Drive(_WARM_UP_S).threads(work, CALLERS)
            row = Row(measure, f"{callers(CALLERS)}, SQLAlchemy", "/s")
            found[row] = Drive(seconds).threads(work, CALLERS).per_s
        return found

    def _through_table(self, plan: Plan) -> dict[Row, float]:
        """Measure mode table with a running relay: the rate and, when everything was sent, commit to visible."""
        topic = Topic(self._servers, TABLED)
        producer = txcore.TransactionProducer(self._backend, TABLED, fence=self._fence, mode="table")

        def commit(number: int) -> float:
            tx, committed_s = self._prepared(producer, topic, number)
            _require_end(tx.commit(), EndState.VIA_TABLE)
            return committed_s

        with self._relay(TABLED):
            found = measures.rate(commit, self._numbers, plan, "psycopg, mode table")
            table = txcore.Relay(self._backend, TABLED, self._engine)
            wait_until(lambda: not table.waiting().waiting, _RECOVERY_MAX_S)
            found |= measures.visible(commit, self._numbers, topic, plan, ", mode table")
        topic.close()
        return found

    @contextlib.contextmanager
    def _relay(self, group: str) -> Iterator[None]:
        command = [sys.executable, "-m", "txcore.cli", "relay", "--broker", f"kafka://{self._servers}"]
        command += ["--group", group, "--database", sqlalchemy_url(self._url)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as relay:
            try:
                yield
            finally:
                relay.terminate()

    def _drain(self, plan: Plan, key_count: int | None, words: str) -> dict[Row, float]:
        """Measure the time between the first and the last message of a relay that finds many waiting.

        Each message has a key of its own, or one of *key_count*: a relay sends those of one key one after the other.
        """
        name = f"relayed-{key_count or 'distinct'}"
        topic = Topic(self._servers, name)
        producer = txcore.TransactionProducer(self._backend, name, fence=self._fence, mode="table")

        def leave(number: int) -> None:
            key = b"%d" % (number % key_count if key_count else number)
            self._prepared(producer, topic, number, key)[0].commit()

        self._many(plan.in_doubt, leave)
        with self._relay(name):
            rate = topic.rate_of(plan.in_doubt, _RECOVERY_MAX_S)
        topic.close()
        return {Row(DRAIN, f"{plan.in_doubt:,} waiting{words}", "/s"): rate}

    def _recovery(self, plan: Plan) -> dict[Row, float]:
        """Leave transactions open after their COMMIT, as a killed producer does; start a checker when all are due."""
        topic = Topic(self._servers, "recovered")
        producer = txcore.TransactionProducer(self._backend, "recovered", fence=self._fence)
        self._many(plan.in_doubt, lambda number: self._prepared(producer, topic, number))
        time.sleep(IMMUNITY_S)
        checker = txcore.Checker(self._backend, "recovered", fence=self._fence)
        begin_s = time.monotonic()
        checker.start()
        wait_until(lambda: topic.count() >= plan.in_doubt, _RECOVERY_MAX_S)
        took_s = time.monotonic() - begin_s
        checker.stop()
        return measures.recovery(topic, plan.in_doubt, took_s)

    def _many(self, count: int, work: Any) -> None:
        """Call *work* with each of *count* numbers, from 16 threads, and close the connections of these."""
        numbers = iter(range(count))
        lock = threading.Lock()

        def run() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                work(number)

        threads = [threading.Thread(target=run, daemon=True) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._connections.close()
        self._connections = Connections(self._url)
