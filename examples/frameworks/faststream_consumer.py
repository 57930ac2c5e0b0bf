"""FastStream on RabbitMQ: applies each message once. Effect and inbox row in one transaction, then the ack.

pip install "txcore[asyncio]" "faststream[rabbit]" aiosqlite
BROKER=amqp://guest:guest@127.0.0.1/ TOPIC=orders.created python faststream_consumer.py
"""

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.rabbit import QueueType, RabbitBroker, RabbitMessage, RabbitQueue
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore

engine = create_async_engine(os.environ.get("DATABASE", "sqlite+aiosqlite:///parcels.db"))
inbox = txcore.AsyncInbox(engine)
broker = RabbitBroker(os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/"))
app = FastStream(broker)
topic = os.environ.get("TOPIC", "orders.created")
queue = RabbitQueue(topic, queue_type=QueueType.QUORUM, durable=True)  # as `txcore topics create` makes it


@broker.subscriber(queue, ack_policy=AckPolicy.NACK_ON_ERROR)
async def ship(message: RabbitMessage) -> None:
    """Apply the message; FastStream acknowledges it after this function, so after the database's commit."""
    async with engine.begin() as connection, inbox.receive(connection, message) as first:
        if first:
            item = {"item": message.body.decode()}
            await connection.execute(text("INSERT INTO parcels VALUES (:item)"), item)


@app.on_startup
async def create_tables() -> None:
    """Make the tables; prune with a time that is longer than a message may wait in the queue."""
    await inbox.create()
    await inbox.prune(keep_s=30 * 86_400)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(200))"))


@app.after_startup
async def ready() -> None:
    """Report that messages are consumed."""
    print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
