"""A plain worker: applies each order once, until it gets a signal to end; any number of its processes may run.

    pip install "txcore[sql]"
    python worker.py

It consumes the SQLite broker of the other examples. For Kafka, RabbitMQ and NATS see ../consumers.
"""

import os
import signal
import threading
import time

import sqlalchemy
from sqlalchemy import text
from txcore_sqlite.consumer import SqliteConsumer

import txcore

KEEP_S = 30 * 86_400
PRUNE_EVERY_S = 3_600.0


class Ending:
    """Whether a signal has asked for the end: a plain attribute, as a signal's handler must not take a lock.

    It may run while the main thread holds that lock, and `threading.Event` has one.
    """

    is_requested = False


def prune_now_and_then(inbox: txcore.Inbox) -> None:
    """Keep the inbox small."""
    while True:
        inbox.prune(KEEP_S)
        time.sleep(PRUNE_EVERY_S)


def request_end(*_: object) -> None:
    """Handle a signal."""
    Ending.is_requested = True


def main() -> None:
    """Work until SIGTERM or Ctrl-C; a kill in the middle repeats at most the messages that were not acknowledged."""
    engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///warehouse.db"))
    inbox = txcore.Inbox(engine)
    inbox.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item TEXT NOT NULL)"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_end)
    threading.Thread(target=prune_now_and_then, args=(inbox,), daemon=True).start()
    with SqliteConsumer(os.environ.get("BROKER_FILE", "broker.db"), "orders.created", group="warehouse") as consumer:
        print("ready", flush=True)
        while not Ending.is_requested:
            messages = consumer.poll(100)
            for message in messages:
                with engine.begin() as connection, inbox.receive(connection, message) as first:
                    if first:
                        connection.execute(text("INSERT INTO parcels VALUES (:item)"), {"item": message.body.decode()})
                consumer.ack(message.position)
            if not messages:
                time.sleep(0.1)


if __name__ == "__main__":
    main()
