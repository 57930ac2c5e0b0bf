"""aio-pika: applies each message once. Effect and inbox row in one transaction, then the ack.

pip install "txcore[asyncio]" aio-pika aiosqlite
BROKER=amqp://guest:guest@127.0.0.1/ TOPIC=orders.created python aio_pika_consumer.py
"""

import asyncio
import os

import aio_pika
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore


async def main() -> None:
    """Consume until the process ends, in any way."""
    engine = create_async_engine(os.environ.get("DATABASE", "sqlite+aiosqlite:///parcels.db"))
    inbox = txcore.AsyncInbox(engine)
    await inbox.create()
    await inbox.prune(keep_s=30 * 86_400)  # longer than a message may wait in the queue
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(200))"))
    broker = await aio_pika.connect(os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/"))
    async with broker, broker.channel() as channel:
        await channel.set_qos(prefetch_count=100)
        topic, kind = os.environ.get("TOPIC", "orders.created"), {"x-queue-type": "quorum"}
        queue = await channel.declare_queue(topic, durable=True, arguments=kind)  # as `txcore topics create` makes it
        print("ready", flush=True)
        async with queue.iterator() as messages:
            async for message in messages:
                async with engine.begin() as connection, inbox.receive(connection, message) as first:
                    if first:
                        item = {"item": message.body.decode()}
                        await connection.execute(text("INSERT INTO parcels VALUES (:item)"), item)
                await message.ack()  # the database has committed


asyncio.run(main())
