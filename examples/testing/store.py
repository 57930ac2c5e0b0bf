"""A shop whose orders are announced."""

import sqlalchemy
from sqlalchemy import Engine, text

import txcore

GROUP = "shop"
TOPIC = "orders.created"


def create_tables(engine: Engine) -> txcore.SqlFence:
    """Make the shop's table and those of the fence, which is returned."""
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"))
    return fence


def place_order(producer: txcore.TransactionProducer, engine: Engine, item: str) -> int:
    """Write the order and announce it, both or neither."""
    with producer.transaction(engine) as tx:
        insert = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
        number = int(tx.connection.execute(insert, {"item": item}).scalar_one())
        tx.publish(txcore.Message.json(TOPIC, {"order": number, "item": item}, key=str(number)))
    return number


def items(engine: Engine) -> list[str]:
    """Return the items of all orders."""
    with engine.connect() as connection:
        return list(connection.execute(sqlalchemy.text("SELECT item FROM orders ORDER BY number")).scalars())
