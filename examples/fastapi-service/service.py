"""FastAPI: an endpoint whose order and message are both there, or neither, before the answer leaves.

pip install "txcore[fastapi]" uvicorn aiosqlite
python service.py
curl -d '{"item": "tea"}' -H 'content-type: application/json' http://127.0.0.1:8000/orders
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore
from txcore.integrations.fastapi import transaction_of


class Order(BaseModel):
    """A customer's request."""

    item: str


def make_app(broker: str, database: str) -> FastAPI:
    """Return the service; *database* is a file of SQLite."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    fence = txcore.AsyncSqlFence(engine)
    backend = txcore.connect(broker)
    producer = txcore.AsyncTransactionProducer(backend, "shop", fence=fence)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await fence.create()
        async with engine.begin() as connection:
            sql = "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"
            await connection.execute(text(sql))
        checker = txcore.Checker(backend, "shop", fence=fence)
        async with backend, producer, checker:
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(
        order: Order, tx: Annotated[txcore.AsyncTransaction, transaction_of(producer, engine)]
    ) -> dict[str, int]:
        sql = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
        number = (await tx.connection.execute(sql, {"item": order.item})).scalar_one()
        tx.publish(txcore.Message("orders.created", b"%d" % number))
        return {"order": number}

    @app.exception_handler(txcore.NotSentError)
    @app.exception_handler(txcore.HalfUnknownError)
    async def nothing_happened(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"nothing was ordered: {error}"}, 503, {"retry-after": "1"})

    @app.exception_handler(txcore.CommitUnknownError)
    async def outcome_unknown(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"look whether it was ordered before you try again: {error}"}, 500)

    return app


if __name__ == "__main__":
    import uvicorn

    service = make_app(os.environ.get("BROKER", "sqlite:///broker.db"), os.environ.get("DATABASE", "shop.db"))
    uvicorn.run(service, port=int(os.environ.get("PORT", "8000")))
