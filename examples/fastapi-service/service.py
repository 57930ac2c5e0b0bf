"""FastAPI: an endpoint whose order and message are both there, or neither, before the answer leaves.

pip install "txcore[fastapi]" uvicorn aiosqlite    # on servers: "txcore[fastapi,kafka,postgresql]" uvicorn
python service.py
curl -d '{"item": "tea"}' -H 'content-type: application/json' http://127.0.0.1:8000/orders
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import txcore
from txcore.integrations.async_session import AsyncSessionPublisher
from txcore.integrations.fastapi import transaction_of


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """One order."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    """A customer's request."""

    item: str


def make_app(broker: str, database: str) -> FastAPI:
    """Return the service on the URLs of a broker and of a database with its asynchronous driver."""
    engine = create_async_engine(database)
    fence = txcore.AsyncSqlFence(engine)
    backend = txcore.connect(broker)
    producer = txcore.AsyncTransactionProducer(backend, "shop", fence=fence)
    publisher, sessions = AsyncSessionPublisher(producer), async_sessionmaker(engine)
    publisher.watch(sessions)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await fence.create()
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        checker = txcore.Checker(backend, "shop", fence=fence)
        async with backend, producer, checker:
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(
        order: NewOrder, tx: Annotated[txcore.AsyncTransaction, transaction_of(producer, engine)]
    ) -> dict[str, int]:
        sql = insert(Order).values(item=order.item).returning(Order.number)
        number = (await tx.connection.execute(sql)).scalar_one()
        tx.publish(txcore.Message("orders.created", b"%d" % number))
        return {"order": number}

    @app.post("/orders/{number}/payment")
    async def pay(number: int) -> dict[str, bool]:
        async with sessions.begin() as session:  # commits as the block ends: before the response leaves
            order = await session.get(Order, number, with_for_update=True)
            if order is None or order.is_paid:
                raise HTTPException(409, "there is no such unpaid order")
            order.is_paid = True
            publisher.publish(session, txcore.Message("orders.paid", b"%d" % number))
        return {"paid": True}

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

    broker = os.environ.get("BROKER", "sqlite:///broker.db")
    database = os.environ.get("DATABASE", "sqlite+aiosqlite:///shop.db")
    uvicorn.run(make_app(broker, database), port=int(os.environ.get("PORT", "8000")))
