"""The step on NATS, in asyncio: consume, change the database, publish; the ack comes after the database.

pip install "txcore[asyncio,nats]" aiosqlite
BROKER=127.0.0.1:4222 DATABASE=sqlite+aiosqlite:///parcels.db python nats_worker.py
"""

import asyncio
import os

import nats
import packing
from nats.js.api import ConsumerConfig
from sqlalchemy.ext.asyncio import create_async_engine

import txcore


async def main() -> None:
    """Work until the process ends, in any way."""
    broker = os.environ.get("BROKER", "127.0.0.1:4222")
    engine = create_async_engine(os.environ.get("DATABASE", "sqlite+aiosqlite:///parcels.db"))
    await packing.create_tables_async(engine)
    inbox, fence = txcore.AsyncInbox(engine), txcore.AsyncSqlFence(engine)
    await inbox.prune(keep_s=30 * 86_400)  # longer than the stream keeps messages
    client = await nats.connect(f"nats://{broker}")
    subject = os.environ.get("TOPIC", "orders.created")
    again = ConsumerConfig(ack_wait=10.0)  # after a kill its messages come again this many seconds later
    subscription = await client.jetstream().pull_subscribe(subject, durable="packing", config=again)
    async with (
        txcore.connect(f"nats://{broker}") as backend,
        txcore.Checker(backend, packing.GROUP, fence=fence),
        txcore.AsyncTransactionProducer(backend, packing.GROUP, fence=fence) as producer,
    ):
        print("ready", flush=True)
        while True:
            try:
                messages = await subscription.fetch(100, timeout=5)
            except TimeoutError:  # no message came
                continue
            for message in messages:
                await packing.pack_async(producer, engine, inbox, message, message.data.decode())
                await message.ack()  # the database has committed


asyncio.run(main())
