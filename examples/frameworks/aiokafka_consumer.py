"""aiokafka: applies each message once. Effect and inbox row in one transaction, then the offset.

pip install "txcore[asyncio]" aiokafka aiosqlite
BROKER=127.0.0.1:9092 TOPIC=orders.created python aiokafka_consumer.py
"""

import asyncio
import os

from aiokafka import AIOKafkaConsumer
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore


async def main() -> None:
    """Consume until the process ends, in any way."""
    engine = create_async_engine(os.environ.get("DATABASE", "sqlite+aiosqlite:///parcels.db"))
    inbox = txcore.AsyncInbox(engine)
    await inbox.create()
    await inbox.prune(keep_s=30 * 86_400)  # longer than the topic keeps messages
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(200))"))
    consumer = AIOKafkaConsumer(
        os.environ.get("TOPIC", "orders.created"),
        bootstrap_servers=os.environ.get("BROKER", "127.0.0.1:9092"),
        group_id="parcels",
        enable_auto_commit=False,  # the offset is committed below, after the database's transaction
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with consumer:
        print("ready", flush=True)
        async for message in consumer:
            async with engine.begin() as connection, inbox.receive(connection, message) as first:
                if first:
                    item = {"item": (message.value or b"").decode()}
                    await connection.execute(text("INSERT INTO parcels VALUES (:item)"), item)
            await consumer.commit()


asyncio.run(main())
