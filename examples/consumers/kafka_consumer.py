"""A consumer of Kafka that applies each message once: effect and inbox row in one transaction, then the offset.

pip install "txcore[sql,kafka]"
BROKER=127.0.0.1:9092 TOPIC=orders.created DATABASE=sqlite:///parcels.db python kafka_consumer.py
"""

import os
from contextlib import closing

import sqlalchemy
from confluent_kafka import Consumer, KafkaException
from sqlalchemy import text

import txcore

engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///parcels.db"))
inbox = txcore.Inbox(engine)
inbox.create()
inbox.prune(keep_s=30 * 86_400)  # longer than the topic keeps messages
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(200))"))

settings: dict[str, str | int | bool] = {
    "bootstrap.servers": os.environ.get("BROKER", "127.0.0.1:9092"),
    "group.id": "parcels",
    "enable.auto.commit": False,  # the offset is committed below, after the database's transaction
    "session.timeout.ms": 10_000,  # another member takes over this long after a kill
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
with closing(Consumer(settings)) as consumer:
    consumer.subscribe([os.environ.get("TOPIC", "orders.created")])
    print("ready", flush=True)
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        with engine.begin() as connection, inbox.receive(connection, message) as first:
            if first:
                item = {"item": (message.value() or b"").decode()}
                connection.execute(text("INSERT INTO parcels VALUES (:item)"), item)
        consumer.commit(message=message, asynchronous=False)
