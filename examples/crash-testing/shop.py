"""A shop that announces its orders, once with a bug that no ordinary test finds."""

import json

import sqlalchemy
from sqlalchemy import Connection, Engine, text

import txcore

TOPIC = "orders.created"


def create_tables(engine: Engine) -> None:
    """Make the shop's table and those of the fence."""
    txcore.SqlFence(engine).create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL)"))


def place_order(producer: txcore.TransactionProducer, engine: Engine, item: str) -> None:
    """Write the order and announce it."""
    with producer.transaction(engine) as tx:
        tx.publish(created(insert(tx.connection, item), item))


def place_order_with_a_bug(producer: txcore.TransactionProducer, engine: Engine, item: str) -> None:
    """Write the order, then announce it in a transaction of its own: a crash between the two loses the message."""
    with engine.begin() as connection:
        number = insert(connection, item)
    with producer.transaction(engine) as tx:
        tx.publish(created(number, item))


def insert(connection: Connection, item: str) -> int:
    """Write an order and return its number."""
    sql = text("INSERT INTO orders (item) VALUES (:item) RETURNING number")
    return int(connection.execute(sql, {"item": item}).scalar_one())


def created(number: int, item: str) -> txcore.Message:
    """Return the message of an order."""
    return txcore.Message(TOPIC, json.dumps({"order": number, "item": item}).encode(), key=b"%d" % number)


def order_numbers(engine: Engine) -> list[int]:
    """Return the numbers of all orders."""
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT number FROM orders")).scalars())


def open_engine(url: str) -> Engine:
    """Return an engine on the shop's database."""
    return sqlalchemy.create_engine(url)
