"""A plain worker: applies each order once, until it gets a signal to end; any number of its processes may run.

    pip install "txcore[sql]"
    python worker.py

It consumes the SQLite broker of the other examples. For Kafka, RabbitMQ and NATS see ../consumers.
"""

import os
import signal
import threading

import sqlalchemy
from sqlalchemy import text
from txcore_sqlite.consumer import SqliteConsumer

import txcore

KEEP_S = 30 * 86_400
PRUNE_EVERY_S = 3_600.0


def prune_now_and_then(inbox: txcore.Inbox, is_ending: threading.Event) -> None:
    """Keep the inbox small."""
    while not is_ending.is_set():
        inbox.prune(KEEP_S)
        is_ending.wait(PRUNE_EVERY_S)


def main() -> None:
    """Work until SIGTERM or Ctrl-C; a kill in the middle repeats at most the messages that were not acknowledged."""
    engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///warehouse.db"))
    inbox = txcore.Inbox(engine)
    inbox.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item TEXT NOT NULL)"))
    is_ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ending.set())
    pruning = threading.Thread(target=prune_now_and_then, args=(inbox, is_ending))
    pruning.start()
    with SqliteConsumer(os.environ.get("BROKER_FILE", "broker.db"), "orders.created", group="warehouse") as consumer:
        print("ready", flush=True)
        while not is_ending.is_set():
            messages = consumer.poll(100)
            for message in messages:
                with engine.begin() as connection, inbox.receive(connection, message) as first:
                    if first:
                        connection.execute(text("INSERT INTO parcels VALUES (:item)"), {"item": message.body.decode()})
                consumer.ack(message.position)
            if not messages:
                is_ending.wait(0.1)
    pruning.join()


if __name__ == "__main__":
    main()
