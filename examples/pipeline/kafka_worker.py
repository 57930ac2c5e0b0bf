"""The step on Kafka: consume, change the database, publish; the offset is committed after the database.

pip install "txcore[sql,kafka]"
BROKER=127.0.0.1:9092 DATABASE=sqlite:///parcels.db python kafka_worker.py
"""

import os

import packing
import sqlalchemy
from confluent_kafka import Consumer, KafkaException

import txcore

broker = os.environ.get("BROKER", "127.0.0.1:9092")
engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///parcels.db"))
packing.create_tables(engine)
inbox, fence = txcore.Inbox(engine), txcore.SqlFence(engine)
inbox.prune(keep_s=30 * 86_400)  # longer than the topic keeps messages

settings: dict[str, str | int | bool] = {
    "bootstrap.servers": broker,
    "group.id": "packing",
    "enable.auto.commit": False,  # the offset is committed below, after the database's transaction
    "session.timeout.ms": 10_000,  # another member takes over this long after a kill
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
consumer = Consumer(settings)
consumer.subscribe([os.environ.get("TOPIC", "orders.created")])
with (
    txcore.connect(f"kafka://{broker}") as backend,
    txcore.Checker(backend, packing.GROUP, fence=fence),
    txcore.TransactionProducer(backend, packing.GROUP, fence=fence) as producer,
):
    print("ready", flush=True)
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        packing.pack(producer, engine, inbox, message, (message.value() or b"").decode())
        consumer.commit(message=message, asynchronous=False)
