"""The dependency ends its transaction before the response is sent."""

import asyncio
from typing import Annotated

import httpx
import pytest
import sqlalchemy
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import txcore
from txcore.integrations.fastapi import transaction_of
from txcore.memory import Fate, Faults, MemoryBackend, MemoryBroker


class Refusing(Faults):
    """Refuses halves while `is_on` is set."""

    is_on = False

    def fate(self, what, transaction_ids):
        return Fate.REFUSED if self.is_on and what == "half" else Fate.DONE


class Service:
    def __init__(self, path):
        self.engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        txcore.SqlFence(self.engine).create()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (name TEXT)"))
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        self.faults = Refusing()
        self.broker = MemoryBroker(faults=self.faults)
        fence = txcore.AsyncSqlFence(engine)
        producer = txcore.AsyncTransactionProducer(MemoryBackend(self.broker), "shop", fence=fence)
        app = FastAPI()

        @app.post("/orders/{name}", status_code=201)
        async def place(name: str, tx: Annotated[txcore.AsyncTransaction, transaction_of(producer, engine)]):
            await tx.connection.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})
            tx.publish(txcore.Message("orders", name.encode()))
            if name == "unicorn":
                raise HTTPException(422, "there are none")

        @app.exception_handler(txcore.NotSentError)
        async def not_sent(request, error):
            return JSONResponse({"orders": self.orders}, 503)

        self.app = app

    def order(self, name):
        """Post an order, and return status and body of the answer."""

        async def post():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.post(f"/orders/{name}")

        answer = asyncio.run(post())
        return answer.status_code, answer.json()

    @property
    def orders(self):
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT name FROM orders")).scalars())

    @property
    def messages(self):
        return [each.body.decode() for each in self.broker.topics.get("orders", [])]


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path / "shop.db")
    yield made
    made.engine.dispose()


def test_answered_request_is_committed_and_sent(service):
    """A client that gets 201 has its order and its message."""
    assert 201 == service.order("tea")[0]
    assert ["tea"] == service.orders == service.messages


def test_an_http_exception_rolls_back(service):
    """An HTTPException leaves neither order nor message."""
    assert 422 == service.order("unicorn")[0]
    assert [] == service.orders == service.messages


def test_a_transaction_that_fails_at_its_end_is_no_success(service):
    """The client must not get 201; the application's handler answers, and nothing is committed."""
    service.faults.is_on = True
    assert (503, {"orders": []}) == service.order("tea")
    assert [] == service.messages
