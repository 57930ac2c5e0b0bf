"""SQLAlchemy's ORM: an order and its message in one Session, both or neither.

pip install "txcore[sql]"
python orders.py tea
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import txcore
from txcore.integrations.session import SessionPublisher


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """One order."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Shop:
    """The objects that the threads of a process share."""

    def __init__(self, engine: Engine, producer: txcore.TransactionProducer) -> None:
        self.publisher = SessionPublisher(producer)
        self.sessions = sessionmaker(engine)
        self.publisher.watch(self.sessions)

    def place_order(self, item: str) -> int:
        """Place one order; as anywhere else in the program, the Session is all that is passed around."""
        with self.sessions.begin() as session:
            order = Order(item=item)
            session.add(order)
            self.announce(session, order)
            return order.number

    def announce(self, session: Session, order: Order) -> None:
        """Notify others, if the Session commits."""
        session.flush()  # gives the order its number
        self.publisher.publish(session, txcore.Message("orders.created", b"%d" % order.number))


@contextmanager
def open_shop(broker: str, database: str) -> Iterator[Shop]:
    """Make the tables, and keep the shop open for the block."""
    engine = sqlalchemy.create_engine(database)
    fence = txcore.SqlFence(engine)
    fence.create()
    Base.metadata.create_all(engine)
    with txcore.connect(broker) as backend, txcore.TransactionProducer(backend, "shop", fence=fence) as producer:
        yield Shop(engine, producer)


if __name__ == "__main__":
    urls = os.environ.get("BROKER", "sqlite:///broker.db"), os.environ.get("DATABASE", "sqlite:///shop.db")
    with open_shop(*urls) as shop:
        print(f"order {shop.place_order(sys.argv[1] if sys.argv[1:] else 'tea')} is placed and announced")
