"""The scenarios: one order, placed in both ways, and the reading of both sides after a kill.

pip install "txcore[sql,conformance]"
python -m pytest                                          # the bug is found, and its correction passes
python -m pytest --txcore-crash crashes:WithABug          # one of them, without a test
"""

import json
from collections.abc import Iterable

import shop
from txcore_conformance.harness import Delivered
from txcore_conformance.scenario import Place, Scenario

import txcore


class PlaceOrder(Scenario):
    """An order and its message."""

    group = "shop"
    topics = (shop.TOPIC,)
    place_order = staticmethod(shop.place_order)

    def setup(self, place: Place) -> None:
        """Make the tables."""
        shop.create_tables(shop.open_engine(place.database))

    def run(self, place: Place) -> None:
        """Place one order as the service does."""
        engine = shop.open_engine(place.database)
        fence = txcore.SqlFence(engine)
        with (
            txcore.connect(place.broker) as backend,
            txcore.TransactionProducer(backend, self.group, fence=fence) as producer,
        ):
            self.place_order(producer, engine, "tea")

    def committed(self, place: Place) -> Iterable[str]:
        """Name the orders in the database."""
        return [f"order {number}" for number in shop.order_numbers(shop.open_engine(place.database))]

    def announced(self, message: Delivered) -> str:
        """Name the order of a message."""
        return f"order {json.loads(message.body)['order']}"


class WithABug(PlaceOrder):
    """The same, with the message after the database's transaction instead of inside it."""

    place_order = staticmethod(shop.place_order_with_a_bug)
