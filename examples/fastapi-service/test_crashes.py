"""The service killed at every step of a request.

pip install "txcore[fastapi,conformance]" aiosqlite httpx
python -m pytest test_crashes.py
"""

import asyncio
from collections.abc import Callable, Iterable

import httpx
import sqlalchemy
from service import Base, Order, make_app
from txcore_conformance.harness import Delivered
from txcore_conformance.scenario import Place, Scenario

import txcore


class PlaceOrder(Scenario):
    """One request to the service as it is; its checker does not start, as the kit's decides after each kill."""

    group = "shop"
    topics = ("orders.created",)
    preload = ("pytest", "httpx", "aiosqlite", "txcore.integrations.fastapi")

    def setup(self, place: Place) -> None:
        """Make the tables; on a server, drop them before that."""
        engine = sqlalchemy.create_engine(place.database)
        txcore.SqlFence(engine).create()
        Base.metadata.create_all(engine)

    def run(self, place: Place) -> None:
        """Start the service and send the request."""
        asyncio.run(self.post(place))

    async def post(self, place: Place) -> None:
        """Place an order."""
        app = make_app(place.broker, place.database.replace("sqlite:", "sqlite+aiosqlite:"))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
        ):
            (await client.post("/orders", json={"item": "tea"})).raise_for_status()

    def committed(self, place: Place) -> Iterable[int]:
        """Return the orders in the database."""
        with sqlalchemy.create_engine(place.database).connect() as connection:
            return list(connection.execute(sqlalchemy.select(Order.number)).scalars())

    def announced(self, message: Delivered) -> int:
        """Return the order of a message."""
        return int(message.body)


def test_an_order_and_its_message_are_both_there_or_neither(txcore_crash: Callable[..., object]) -> None:
    """The report of a failure names each step."""
    txcore_crash(PlaceOrder)
