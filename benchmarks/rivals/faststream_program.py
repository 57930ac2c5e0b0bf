"""faststream-outbox as in its quick start: producers, and the relay to Kafka. Runs in its own environment.

`faststream_program.py DATABASE SERVERS TOPIC default|tuned COMMAND ...`, where the command is one of
`create`; `relay` (until killed); `fill COUNT`; `business CALLERS SECONDS`;
`produce CALLERS SECONDS RATE FIRST`, at most RATE a second unless that is 0. They print one line of JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from faststream import FastStream
from faststream.kafka import KafkaBroker
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

QUEUE = "orders_outbox"
INSERT_ORDER = text("INSERT INTO orders (item) VALUES ('tea')")
#: Raised values of all throughput options of a subscriber.
TUNED = {"max_workers": 16, "fetch_batch_size": 500, "min_fetch_interval": 0.01, "terminal_flush_batch_size": 100}
FILL_BATCH = 500


class Program:
    """The outbox with its table, its broker and an engine."""

    def __init__(self, database: str, servers: str, topic: str, setting: str) -> None:
        self.metadata = MetaData()
        self.table = make_outbox_table(self.metadata, table_name="outbox")
        self.engine = create_async_engine(database, pool_size=64)
        self.sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self.broker = OutboxBroker(
            self.engine, outbox_table=self.table, log_level=logging.WARNING if setting == "tuned" else logging.INFO
        )
        self.servers = servers
        self.topic = topic
        self.options = TUNED if setting == "tuned" else {}

    async def create(self) -> None:
        """Create the table."""
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.create_all)

    async def relay(self) -> None:
        """Relay until killed."""
        kafka = KafkaBroker(self.servers)
        publisher = kafka.publisher(self.topic)

        @publisher
        @self.broker.subscriber(QUEUE, **self.options)
        async def relay(body: bytes) -> bytes:
            return body

        await FastStream(self.broker, on_startup=[kafka.connect]).run()

    async def fill(self, count: str) -> None:
        """Write this number of rows for a relay."""
        for first in range(0, int(count), FILL_BATCH):
            bodies = [body_of(number) for number in range(first, min(first + FILL_BATCH, int(count)))]
            async with self.sessions() as session, session.begin():
                await self.broker.publish_batch(*bodies, queue=QUEUE, session=session)

    async def business(self, callers: str, seconds: str) -> dict[str, Any]:
        """Measure the business row alone."""

        async def commit() -> None:
            async with self.sessions() as session, session.begin():
                await session.execute(INSERT_ORDER)

        await self._load(commit, int(callers), 0.3, 0.0)
        return {"per_s": await self._load(commit, int(callers), float(seconds), 0.0)}

    async def produce(self, callers: str, seconds: str, rate: str, first: str) -> dict[str, Any]:
        """Commit orders with one message each; return the rate per second, and the time of each number's commit."""
        numbers = itertools.count(int(first))
        committed = {}

        async def commit() -> None:
            number = next(numbers)
            async with self.sessions() as session, session.begin():
                await session.execute(INSERT_ORDER)
                await self.broker.publish(body_of(number), queue=QUEUE, session=session)
            committed[number] = time.monotonic()

        per_s = await self._load(commit, int(callers), float(seconds), float(rate))
        return {"per_s": per_s, "committed": committed}

    @staticmethod
    async def _load(call: Callable[[], Awaitable[None]], callers: int, seconds: float, rate: float) -> float:
        begin_s = time.monotonic()
        count = 0

        async def work(index: int) -> None:
            nonlocal count
            due_s = begin_s + (index / rate if rate else 0)
            while time.monotonic() < begin_s + seconds and due_s < begin_s + seconds:
                if rate:
                    await asyncio.sleep(max(due_s - time.monotonic(), 0))
                    due_s += callers / rate
                await call()
                count += 1

        await asyncio.gather(*(work(index) for index in range(callers)))
        return count / (time.monotonic() - begin_s)


def body_of(number: int) -> bytes:
    """Return a message's body, as the other systems send it."""
    return b"%020d" % number + b"x" * 280


if __name__ == "__main__":
    *settings, command = sys.argv[1:6]
    print(json.dumps(asyncio.run(getattr(Program(*settings), command)(*sys.argv[6:]))))
