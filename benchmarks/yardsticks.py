"""What the styles are compared with: the same disk, the same database, the same broker, without txcore around them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import Final

from benchmarks.drive import Sample, run_tasks, run_threads
from benchmarks.place import BODY, GROUP, INSERT_ORDER, Place, message
from txcore.gather import Group
from txcore.message import CheckPolicy
from txcore.port import Backend
from txcore.producer import make_context
from txcore.records import HalfRecord, Outcome, Status
from txcore.transaction import begin, half_record, publish

WAIT_MAX_S: Final = 60.0


def row_commit(place: Place, seconds: float) -> Sample:
    """One row per commit in a bare sqlite3 connection: WAL and synchronous=FULL, as the broker file has them."""
    with closing(sqlite3.connect(place.folder / "raw.db", isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, body BLOB NOT NULL)")

        def call() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO log (body) VALUES (?)", (BODY,))
            connection.execute("COMMIT")

        call()
        return run_threads(call, 1, seconds)


def business(place: Place, seconds: float, *, thread_count: int) -> Sample:
    """The database style's business transaction alone, on the same kind of engine."""
    engine = place.engine()

    def call() -> None:
        with engine.begin() as connection:
            connection.execute(INSERT_ORDER)

    call()
    return run_threads(call, thread_count, seconds)


def business_async(place: Place, seconds: float, *, task_count: int) -> Sample:
    """The same in asyncio, through aiosqlite."""

    async def measure() -> Sample:
        engine = place.async_engine()
        try:

            async def call() -> None:
                async with engine.begin() as connection:
                    await connection.execute(INSERT_ORDER)

            await call()
            return await run_tasks(call, task_count, seconds)
        finally:
            await engine.dispose()

    return asyncio.run(measure())


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
        """Wait for the last one."""
        if not self._event.wait(WAIT_MAX_S) or self._wrong is not None:
            raise RuntimeError(f"a half was not stored: {self._wrong}")


def halves(place: Place, seconds: float, *, batch_size: int) -> Sample:
    """`append_halves` of encoded halves, one batch after the other; half of what a transaction writes."""
    backend = place.backend()
    records = _encoded_halves(backend, batch_size)

    def call() -> None:
        countdown = _Countdown(batch_size)
        backend.append_halves(Group(records, [countdown] * batch_size))
        countdown.wait()

    call()
    return run_threads(call, 1, seconds, batch_size)


def _encoded_halves(backend: Backend, count: int) -> list[HalfRecord]:
    policy = CheckPolicy()
    context = make_context(backend, GROUP, fence=None, policy=policy, partition_count=None, clock=None, randomness=None)
    records = []
    for _ in range(count):
        transaction = begin(context)
        publish(transaction, message())
        records.append(half_record(transaction, policy))
    return records
