"""The order service of compose.yaml: the order and its message are both there, or neither.

It needs no more than the checker's image. By itself:

    pip install "txcore[checker,kafka,postgresql]"
    BROKER_URL=kafka://… DATABASE_URL=postgresql+psycopg://… uvicorn --factory order_service:make_app
    curl -X POST http://127.0.0.1:8000/orders/tea
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import txcore


def make_app() -> Starlette:
    """Return the service; the environment names its broker and its database."""
    engine = sqlalchemy.create_engine(os.environ["DATABASE_URL"])
    fence = txcore.SqlFence(engine)
    backend = txcore.connect(os.environ["BROKER_URL"])
    producer = txcore.TransactionProducer(backend, "shop", fence=fence)

    def prepare_tables() -> None:
        fence.create()
        with engine.begin() as connection:
            sql = "CREATE TABLE IF NOT EXISTS orders (number SERIAL PRIMARY KEY, item TEXT NOT NULL)"
            connection.execute(text(sql))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(prepare_tables)
        async with backend:
            yield
            await run_in_threadpool(producer.close)
        engine.dispose()

    def place(request: Request) -> JSONResponse:
        try:
            with producer.transaction(engine) as tx:
                sql = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
                number = tx.connection.execute(sql, {"item": request.path_params["item"]}).scalar_one()
                tx.publish(txcore.Message.json("orders.created", {"order": number}, key=str(number)))
        except (txcore.NotSentError, txcore.HalfUnknownError) as error:
            return JSONResponse({"error": f"nothing was ordered: {error}"}, 503)
        except txcore.CommitUnknownError as error:
            return JSONResponse({"error": f"look whether it was ordered before you try again: {error}"}, 500)
        return JSONResponse({"order": number}, 201)

    def alive(_: Request) -> JSONResponse:
        return JSONResponse({"alive": True})

    return Starlette(routes=[Route("/orders/{item}", place, methods=["POST"]), Route("/", alive)], lifespan=lifespan)
