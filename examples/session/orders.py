"""SQLAlchemy's ORM: an order and its message in one Session, both or neither.

pip install "txcore[sql]"
python orders.py tea
"""

import os
import sys
from contextlib import ExitStack

import sqlalchemy
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

    def __init__(self, broker: str, database: str) -> None:
        self.engine = sqlalchemy.create_engine(database)
        self.fence = txcore.SqlFence(self.engine)
        self.fence.create()
        Base.metadata.create_all(self.engine)
        self.stack = ExitStack()
        self.stack.callback(self.engine.dispose)
        backend = self.stack.enter_context(txcore.connect(broker))
        producer = self.stack.enter_context(txcore.TransactionProducer(backend, "shop", fence=self.fence))
        self.publisher = SessionPublisher(producer)
        self.sessions = sessionmaker(self.engine)
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

    def close(self) -> None:
        """Close the producer, and then the broker's and the database's connections."""
        self.stack.close()


if __name__ == "__main__":
    shop = Shop(os.environ.get("BROKER", "sqlite:///broker.db"), os.environ.get("DATABASE", "sqlite:///shop.db"))
    print(f"order {shop.place_order(sys.argv[1] if sys.argv[1:] else 'tea')} is placed and announced")
    shop.close()
