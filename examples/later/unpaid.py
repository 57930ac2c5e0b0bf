"""Close an order unless it is paid in time: the timer is a delayed message, which the payment cancels.

    pip install "txcore[sql]"
    python unpaid.py

Everything is in two files, no server: `broker.db` is the broker, `shop.db` the database. The shop waits two seconds here,
so that you can watch it; a real one has `timedelta(minutes=30)`.
"""

import time
from datetime import UTC, datetime, timedelta

import sqlalchemy
from sqlalchemy import Engine, text
from txcore_sqlite.consumer import SqliteConsumer

import txcore

TO_PAY_IN = timedelta(seconds=3)
CREATE = "CREATE TABLE IF NOT EXISTS orders (item TEXT, state TEXT, timer TEXT)"
INSERT = text("INSERT INTO orders VALUES (:item, 'open', :timer)")
PAY = text("UPDATE orders SET state = 'paid' WHERE item = :item AND state = 'open'")
CLOSE = text("UPDATE orders SET state = 'closed' WHERE item = :item AND state = 'open'")
TIMER = text("SELECT timer FROM orders WHERE item = :item")


def place(producer: txcore.TransactionProducer, engine: Engine, item: str) -> None:
    """Place an order with the message that closes it; both are committed, or neither."""
    with producer.transaction(engine) as tx:
        tx.connection.execute(INSERT, {"item": item, "timer": str(tx.transaction_id)})
        tx.publish(txcore.Message("orders.unpaid", item.encode(), deliver_at=datetime.now(UTC) + TO_PAY_IN))


def pay(producer: txcore.TransactionProducer, engine: Engine, item: str) -> txcore.CancelState:
    """Take the payment and cancel the timer in one transaction: the message never comes if, and only if, it commits."""
    with engine.begin() as connection:
        timer = connection.execute(TIMER, {"item": item}).scalar_one()
        state = producer.cancel(timer, connection)
        if state is txcore.CancelState.CANCELLED:
            connection.execute(PAY, {"item": item})
        return state  # TOO_LATE: the order is being closed, so the payment is refused


def close_unpaid(consumer: SqliteConsumer, engine: Engine, inbox: txcore.Inbox) -> list[str]:
    """Close the orders whose time is over; returns those of this look."""
    closed = []
    for message in consumer.poll():
        item = message.body.decode()
        with engine.begin() as connection, inbox.receive(connection, message) as is_first:
            if is_first:
                connection.execute(CLOSE, {"item": item})
                closed.append(item)
        consumer.ack(message.position)
    return closed


def main() -> None:
    """Place two orders, pay one of them, and wait for the time of the other one."""
    engine = sqlalchemy.create_engine("sqlite:///shop.db")
    fence, inbox = txcore.SqlFence(engine), txcore.Inbox(engine)
    fence.create()
    inbox.create()
    with engine.begin() as connection:
        connection.execute(text(CREATE))
    with (
        txcore.connect("sqlite:///broker.db") as backend,
        txcore.TransactionProducer(backend, "orders", fence=fence) as producer,
        txcore.Relay(backend, "orders", engine),  # sends what is due; `txcore checker` is one as well
        SqliteConsumer("broker.db", "orders.unpaid", group="closing") as consumer,
    ):
        place(producer, engine, "book")
        place(producer, engine, "pen")
        print("payment for the book:", pay(producer, engine, "book").value)
        closed: list[str] = []
        while not closed:
            time.sleep(0.1)
            closed = close_unpaid(consumer, engine, inbox)
        print("closed unpaid:", *closed)
        print("payment for the pen:", pay(producer, engine, "pen").value)


if __name__ == "__main__":
    main()
