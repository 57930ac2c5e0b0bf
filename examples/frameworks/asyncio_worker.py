"""A plain asyncio worker: it takes each due invoice once, marks it as sent, and announces it, both or neither.

pip install "txcore[asyncio]" aiosqlite
python asyncio_worker.py
"""

import asyncio
import os
import signal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import txcore

IDLE_S = float(os.environ.get("IDLE_S", "1"))


async def send_one(producer: txcore.AsyncTransactionProducer, engine: AsyncEngine) -> bool:
    """Send one invoice; False if none is due. On PostgreSQL add FOR UPDATE SKIP LOCKED for several workers."""
    async with producer.transaction(engine) as tx:
        due = "SELECT min(number) FROM invoices WHERE sent = 0"
        sql = text(f"UPDATE invoices SET sent = 1 WHERE number = ({due}) RETURNING number")
        number = (await tx.connection.execute(sql)).scalar_one_or_none()
        if number is not None:
            tx.publish(txcore.Message("invoices.sent", b"%d" % number))
    return number is not None


async def work(broker: str, database: str, is_ending: asyncio.Event) -> None:
    """Send invoices until the end is asked for."""
    engine = create_async_engine(database)
    fence = txcore.AsyncSqlFence(engine)
    await fence.create()
    async with engine.begin() as connection:
        sql = "CREATE TABLE IF NOT EXISTS invoices (number INTEGER PRIMARY KEY, sent INTEGER NOT NULL DEFAULT 0)"
        await connection.execute(text(sql))
    async with (
        txcore.connect(broker) as backend,
        txcore.Checker(backend, "shop", fence=fence),
        txcore.AsyncTransactionProducer(backend, "shop", fence=fence) as producer,
    ):
        while not is_ending.is_set():
            try:
                is_idle = not await send_one(producer, engine)
            except txcore.NotSentError:  # rolled back, so the invoice is still due
                is_idle = True
            if is_idle:
                await asyncio.wait([asyncio.create_task(is_ending.wait())], timeout=IDLE_S)
    await engine.dispose()


async def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    is_ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, is_ending.set)
    broker = os.environ.get("BROKER", "sqlite:///broker.db")
    await work(broker, os.environ.get("DATABASE", "sqlite+aiosqlite:///shop.db"), is_ending)


if __name__ == "__main__":
    asyncio.run(main())
