"""Litestar: an order and its message, both or neither, before the answer leaves.

pip install "txcore[asyncio]" litestar uvicorn aiosqlite
BROKER=sqlite:///broker.db DATABASE=sqlite+aiosqlite:///shop.db uvicorn --factory litestar_shop:make_app
curl -d '{"item": "tea"}' -H 'content-type: application/json' http://127.0.0.1:8000/orders
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from litestar import Litestar, Request, Response, post
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore


@dataclass
class Order:
    """A customer's request."""

    item: str


def make_app(broker: str = "", database: str = "") -> Litestar:
    """Return the service, with a checker inside."""
    engine = create_async_engine(database or os.environ["DATABASE"])
    fence = txcore.AsyncSqlFence(engine)
    backend = txcore.connect(broker or os.environ["BROKER"])
    producer = txcore.AsyncTransactionProducer(backend, "shop", fence=fence)

    @asynccontextmanager
    async def opened(_: Litestar) -> AsyncIterator[None]:
        await fence.create()
        async with engine.begin() as connection:
            sql = "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"
            await connection.execute(text(sql))
        async with backend, producer, txcore.Checker(backend, "shop", fence=fence):
            yield
        await engine.dispose()

    @post("/orders")
    async def place(data: Order) -> dict[str, int]:
        async with producer.transaction(engine) as tx:  # an exception in here undoes both
            sql = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
            number = (await tx.connection.execute(sql, {"item": data.item})).scalar_one()
            tx.publish(txcore.Message("orders.created", b"%d" % number))
        return {"order": number}

    def nothing_happened(_: Request, error: Exception) -> Response:
        return Response({"error": f"nothing was ordered: {error}"}, status_code=503, headers={"retry-after": "1"})

    def outcome_unknown(_: Request, error: Exception) -> Response:
        return Response({"error": f"look whether it was ordered before you try again: {error}"}, status_code=500)

    handlers = {
        txcore.NotSentError: nothing_happened,
        txcore.HalfUnknownError: nothing_happened,
        txcore.CommitUnknownError: outcome_unknown,
    }
    return Litestar([place], lifespan=[opened], exception_handlers=handlers)
