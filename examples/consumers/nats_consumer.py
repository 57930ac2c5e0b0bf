"""A consumer of NATS that applies each message once: effect and inbox row in one transaction, then the ack.

pip install "txcore[asyncio,nats]" aiosqlite
BROKER=nats://127.0.0.1:4222 TOPIC=orders.created DATABASE=sqlite+aiosqlite:///parcels.db python nats_consumer.py
"""

import asyncio
import os

import nats
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore

engine = create_async_engine(os.environ.get("DATABASE", "sqlite+aiosqlite:///parcels.db"))
inbox = txcore.AsyncInbox(engine)


async def main() -> None:
    """Consume until the process ends, in any way."""
    await inbox.create()
    await inbox.prune(keep_s=30 * 86_400)  # longer than the stream keeps messages
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(200))"))
    subject = os.environ.get("TOPIC", "orders.created")
    client = await nats.connect(os.environ.get("BROKER", "nats://127.0.0.1:4222"))
    stream = client.jetstream()
    await stream.add_stream(name=subject.replace(".", "-"), subjects=[subject])
    subscription = await stream.pull_subscribe(subject, durable="parcels")
    print("ready", flush=True)
    while True:
        try:
            messages = await subscription.fetch(100, timeout=5)
        except TimeoutError:  # no message came
            continue
        for message in messages:
            async with engine.begin() as connection, inbox.receive(connection, message) as first:
                if first:
                    item = {"item": message.data.decode()}
                    await connection.execute(text("INSERT INTO parcels VALUES (:item)"), item)
            await message.ack()  # the database has committed


asyncio.run(main())
