"""The shadow run beside faststream-outbox: its row as before, and txcore's message, in one AsyncSession.

pip install "txcore[asyncio,kafka,postgresql]" faststream-outbox
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

import txcore
from txcore.integrations.async_session import AsyncSessionPublisher

metadata = MetaData()
table = make_outbox_table(metadata, table_name="outbox")
ORDERS = text("CREATE TABLE IF NOT EXISTS orders (number SERIAL PRIMARY KEY, item TEXT NOT NULL)")
INSERT = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")


class Shop:
    """The service during the shadow run."""

    def __init__(self, engine: AsyncEngine, producer: txcore.AsyncTransactionProducer) -> None:
        self._outbox = OutboxBroker(engine, outbox_table=table)
        self._publisher, self._sessions = AsyncSessionPublisher(producer), async_sessionmaker(engine)
        self._publisher.watch(self._sessions)

    async def place(self, item: str) -> None:
        """Place an order: both announcements are of this transaction, or neither."""
        async with self._sessions.begin() as session:
            number = (await session.execute(INSERT, {"item": item})).scalar_one()
            body = b"%d" % number
            await self._outbox.publish(body, queue="orders", session=session)  # as before
            self._publisher.publish(session, txcore.Message("shadow.orders", body))


@asynccontextmanager
async def open_shop(engine: AsyncEngine, broker: str) -> AsyncIterator[Shop]:
    """Make the tables, and keep the shop open for the block."""
    fence = txcore.AsyncSqlFence(engine)
    await fence.create()
    async with engine.begin() as connection:
        await connection.execute(ORDERS)
        await connection.run_sync(metadata.create_all)
    backend = txcore.connect(broker)
    producer = txcore.AsyncTransactionProducer(backend, "shop", fence=fence)
    async with backend, producer, txcore.Checker(backend, "shop", fence=fence):
        yield Shop(engine, producer)
