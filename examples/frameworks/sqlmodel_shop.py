"""SQLModel: an order and its message in one Session, both or neither.

pip install "txcore[sql]" sqlmodel
python sqlmodel_shop.py
"""

import os

import sqlmodel
from sqlmodel import Field, Session, SQLModel

import txcore
from txcore.integrations.session import SessionPublisher


class Order(SQLModel, table=True):
    """One order."""

    __tablename__ = "orders"
    number: int | None = Field(default=None, primary_key=True)
    item: str


def place_order(session: Session, publisher: SessionPublisher, item: str) -> Order:
    """Place an order: others are notified if, and only if, the Session commits."""
    order = Order(item=item)
    session.add(order)
    session.flush()  # gives the order its number
    publisher.publish(session, txcore.Message.json("orders.created", order, key=str(order.number)))
    session.commit()
    return order


def main(broker: str, database: str) -> None:
    """Place one order."""
    engine = sqlmodel.create_engine(database)
    fence = txcore.SqlFence(engine)
    fence.create()
    SQLModel.metadata.create_all(engine)
    with (
        txcore.connect(broker) as backend,
        txcore.TransactionProducer(backend, "shop", fence=fence) as producer,
        Session(engine) as session,
    ):
        publisher = SessionPublisher(producer)
        publisher.watch(session)
        print(f"order {place_order(session, publisher, 'tea').number} is placed and announced")


if __name__ == "__main__":
    main(os.environ.get("BROKER", "sqlite:///broker.db"), os.environ.get("DATABASE", "sqlite:///shop.db"))
