"""What the warehouse does on either broker: one parcel for each order, whichever broker delivers it and how often.

An order may come from both brokers: a customer repeats it while the shop moves, and RocketMQ's check finds the row that
the other side wrote. Their messages have no id in common, so the inbox is by the order's own number.
"""

import os

import sqlalchemy
from ordering import number_of
from sqlalchemy import text

engine = sqlalchemy.create_engine(os.environ["DATABASE"])


def create_tables() -> None:
    """Make the tables if they are missing."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS received (number INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (number INTEGER NOT NULL)"))


def pack(body: bytes) -> None:
    """Apply a message: its effect and its inbox row in one transaction. Then the caller acknowledges it."""
    number = {"number": number_of(body.decode())}
    with engine.begin() as connection:
        taken = connection.execute(text("INSERT INTO received VALUES (:number) ON CONFLICT DO NOTHING"), number)
        if taken.rowcount:
            connection.execute(text("INSERT INTO parcels VALUES (:number)"), number)
    print(f"{'packed' if taken.rowcount else 'repeated'} {body.decode()}", flush=True)
