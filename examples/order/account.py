"""Order per key: consumers hear of the changes of an account in the order of the commits, whatever dies in between.

    pip install "txcore[sql]"
    python account.py

Everything is in two files, no server: `broker.db` is the broker, `shop.db` the database.
"""

import time

import sqlalchemy
from sqlalchemy import Engine, text
from txcore_sqlite.consumer import SqliteConsumer

import txcore

CREATE = "CREATE TABLE IF NOT EXISTS accounts (account TEXT PRIMARY KEY, cents INTEGER)"
INSERT = text("INSERT OR IGNORE INTO accounts VALUES (:account, 0)")
UPDATE = text("UPDATE accounts SET cents = :cents WHERE account = :account")


def move(producer: txcore.TransactionProducer, engine: Engine, account: str, cents: int) -> None:
    """Change the balance of an account; consumers hear of its changes in the order of the commits."""
    with producer.transaction(engine) as tx:
        tx.connection.execute(UPDATE, {"account": account, "cents": cents})  # locks the row before the half is stored
        tx.publish(txcore.Message.json("balances", {"account": account, "cents": cents}, order_key=account))


def main() -> None:
    """Change two accounts several times, then let a checker publish all of it."""
    engine = sqlalchemy.create_engine("sqlite:///shop.db")
    fence = txcore.SqlFence(engine)
    fence.create()
    with engine.begin() as connection:
        connection.execute(text(CREATE))
        connection.execute(INSERT, [{"account": "anna"}, {"account": "ben"}])
    with (
        txcore.connect("sqlite:///broker.db") as backend,
        txcore.TransactionProducer(backend, "accounts", fence=fence, release="owner") as producer,
        SqliteConsumer("broker.db", "balances", group="printer") as consumer,
    ):
        for cents in (100, 250, 75):
            move(producer, engine, "anna", cents)
            move(producer, engine, "ben", cents * 2)
        with txcore.Checker(backend, "accounts", fence=fence):
            found: list[str] = []
            while len(found) < 6:
                time.sleep(0.05)
                found += [message.body.decode() for message in consumer.poll()]
        for account in ("anna", "ben"):
            print(account, *(body for body in found if account in body))


if __name__ == "__main__":
    main()
