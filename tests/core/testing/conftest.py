"""A service on SQLite, in the styles of txcore, for the tests of the kit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sqlalchemy

import txcore
from txcore.testing import pytest as fixtures

txcore_kit, txcore_backend, txcore_clock = fixtures.txcore_kit, fixtures.txcore_backend, fixtures.txcore_clock


@pytest.fixture
def kit(txcore_kit):
    """The kit of this test."""
    return txcore_kit


class Shop(SimpleNamespace):
    """A database with orders, a fence, and ways to place one."""

    def insert(self, connection, item="tea"):
        sql = sqlalchemy.text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
        return connection.execute(sql, {"item": item}).scalar_one()

    def place(self, producer, item="tea"):
        """Place an order in the database style."""
        with producer.transaction(self.engine) as tx:
            number = self.insert(tx.connection, item)
            tx.publish(txcore.Message.json("orders.created", {"order": number, "item": item}, key=str(number)))
        return tx

    def place_by_hand(self, producer, item="tea"):
        """Place an order in the primitive style."""
        transaction = producer.begin()
        with self.engine.begin() as connection:
            number = self.insert(connection, item)
            transaction.publish(txcore.Message.json("orders.created", {"order": number, "item": item}))
            transaction.prepare(connection)
        return transaction.commit()

    def orders(self):
        """Return the items of the database."""
        with self.engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text("SELECT item FROM orders")).scalars())


@pytest.fixture
def shop(tmp_path):
    """A shop on a SQLite file."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT)"))
    yield Shop(engine=engine, fence=fence, url=f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    engine.dispose()
