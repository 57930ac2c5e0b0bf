"""Let the checker publish: the producer's call ends once its decision is stored, and a checker in the same process sends.

    pip install "txcore[sql]"
    python embedded.py

Everything is in two files, no server: `broker.db` is the broker, `shop.db` the database.
"""

import time

import sqlalchemy
from sqlalchemy import Engine, text
from txcore_sqlite.consumer import SqliteConsumer

import txcore

CREATE = "CREATE TABLE IF NOT EXISTS orders (item TEXT)"
INSERT = text("INSERT INTO orders VALUES (:item)")


def place(producer: txcore.TransactionProducer, engine: Engine, item: str) -> txcore.EndResult | None:
    """Place an order; its message is published by the partition's owner, in a moment."""
    with producer.transaction(engine) as tx:
        tx.connection.execute(INSERT, {"item": item})
        tx.publish(txcore.Message("orders.created", item.encode()))
    return tx.result


def main() -> None:
    """Place an order without a checker, then start one."""
    engine = sqlalchemy.create_engine("sqlite:///shop.db")
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(text(CREATE))
    with (
        txcore.connect("sqlite:///broker.db") as backend,
        txcore.TransactionProducer(backend, "orders", fence=fence, release="owner") as producer,
        SqliteConsumer("broker.db", "orders.created", group="printer") as consumer,
    ):
        result = place(producer, engine, "book")
        print("end:", result.state.value if result else None)
        print("visible without a checker:", [message.body.decode() for message in consumer.poll()])
        with txcore.Checker(backend, "orders", fence=fence):  # the one line that a small service needs
            found: list[str] = []
            while not found:
                time.sleep(0.05)
                found = [message.body.decode() for message in consumer.poll()]
        print("published by the owner:", *found)


if __name__ == "__main__":
    main()
