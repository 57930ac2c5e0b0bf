"""The yardsticks of the styles: the same disk, the same database, the same broker, without txcore."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import uuid
from contextlib import closing
from typing import Final

from benchmarks.databases import INSERT_ORDER, PLAIN_INSERT_ORDER
from benchmarks.drive import Drive, Sample
from benchmarks.place import POLICY, Place
from benchmarks.plain import PlainPool
from txcore.port import Backend
from txcore.producer.producer import TransactionProducer
from txcore.producer.transaction import begin, make_half, publish
from txcore.records import HalfRecord, Outcome, Status
from txcore.runtime.batching import Group

WAIT_MAX_S: Final = 60.0
PIPELINED_COUNT: Final = 1_000
WARM_UP_COUNT: Final = 3


def row_commit(place: Place, drive: Drive) -> Sample:
    """Commit one row at a time in a bare sqlite3 connection: WAL and synchronous=FULL, as in the broker file."""
    with closing(sqlite3.connect(place.folder / "raw.db", isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, body BLOB NOT NULL)")

        def call() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO log (body) VALUES (?)", (place.body,))
            connection.execute("COMMIT")

        call()
        return drive.threads(call, 1)


def business(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run the database style's business transaction alone, through SQLAlchemy Core."""
    engine = place.engine(thread_count)

    def call() -> None:
        with engine.begin() as connection:
            connection.execute(INSERT_ORDER)

    call()
    return drive.threads(call, thread_count)


def plain_business(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run the business transaction alone, through plain psycopg connections."""
    connections = PlainPool(place.business_url(), thread_count)

    def call() -> None:
        with connections.connection() as connection:
            connection.execute(PLAIN_INSERT_ORDER)
            connection.commit()

    with connections:
        call()
        return drive.threads(call, thread_count)


def plain_by_hand(place: Place, drive: Drive, *, thread_count: int) -> Sample:
    """Run the database style reduced to its waits: an order, a row with an id, a message, COMMIT, a message.

    Each call waits for both messages as in `raw`, shares no request with another call, and writes no op.
    """
    publisher = place.raw_publisher()
    connections = PlainPool(place.business_url(), thread_count)

    def call() -> None:
        with connections.connection() as connection:
            connection.execute(PLAIN_INSERT_ORDER)
            connection.execute("INSERT INTO begun (id) VALUES (%s)", (uuid.uuid4(),))
            publisher.publish()
            connection.commit()
            publisher.publish()

    with connections:
        with connections.connection() as connection:
            connection.execute("CREATE TABLE begun (id uuid PRIMARY KEY)")
            connection.commit()
        call()
        return drive.threads(call, thread_count)


def business_async(place: Place, drive: Drive, *, task_count: int) -> Sample:
    """Run the business transaction alone in asyncio, through SQLAlchemy's asynchronous engine."""

    async def measure() -> Sample:
        engine = place.async_engine(task_count)
        try:

            async def call() -> None:
                async with engine.begin() as connection:
                    await connection.execute(INSERT_ORDER)

            await call()
            return await drive.tasks(call, task_count)
        finally:
            await engine.dispose()

    return asyncio.run(measure())


def raw_pipelined(place: Place, drive: Drive) -> Sample:
    """Publish with the broker's own driver and many unacknowledged messages, up to the last acknowledgement."""
    publisher = place.raw_publisher()
    publisher.hand_over(WARM_UP_COUNT)
    publisher.drain()
    return drive.threads(lambda: publisher.hand_over(PIPELINED_COUNT), 1, PIPELINED_COUNT, finish=publisher.drain)


def raw_in_a_row(place: Place, drive: Drive, *, count: int, thread_count: int) -> Sample:
    """Publish *count* messages per call with the broker's own driver, each acknowledged before the next."""
    publisher = place.raw_publisher()

    def call() -> None:
        for _ in range(count):
            publisher.publish()

    for _ in range(WARM_UP_COUNT):
        call()
    return drive.threads(call, thread_count)


class _Countdown:
    """Waits until every half of a batch is durable."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._wrong: Outcome | None = None
        self._event = threading.Event()
        self._lock = threading.Lock()

    def settle(self, outcome: Outcome) -> None:
        """Count one outcome; from any thread."""
        with self._lock:
            self._left -= 1
            if outcome.status is not Status.DURABLE:
                self._wrong = outcome
            if self._left == 0:
                self._event.set()

    def wait(self) -> None:
        """Wait for the last outcome."""
        if not self._event.wait(WAIT_MAX_S) or self._wrong is not None:
            raise RuntimeError(f"a half was not stored: {self._wrong}")


def halves(place: Place, drive: Drive, *, batch_size: int) -> Sample:
    """Append encoded halves, one batch after the other, which is half of a transaction's writes."""
    backend = place.backend()
    records = _encoded_halves(place, backend, batch_size)

    def call() -> None:
        countdown = _Countdown(batch_size)
        backend.append_halves(Group(records, [countdown] * batch_size))
        countdown.wait()

    call()
    return drive.threads(call, 1, batch_size)


def _encoded_halves(place: Place, backend: Backend, count: int) -> list[HalfRecord]:
    context = TransactionProducer(backend, place.group, policy=POLICY)._context  # noqa: SLF001 - the flows' own
    records = []
    for _ in range(count):
        transaction = begin(context)
        publish(transaction, place.message())
        records.append(make_half(transaction))
    return records
