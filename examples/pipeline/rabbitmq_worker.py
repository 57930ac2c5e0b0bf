"""The step on RabbitMQ: consume, change the database, publish; the message is acknowledged after the database.

pip install "txcore[sql,rabbitmq]"
BROKER=guest:guest@127.0.0.1:5672 DATABASE=sqlite:///parcels.db python rabbitmq_worker.py
"""

import os

import packing
import pika  # type: ignore[import-untyped]
import sqlalchemy

import txcore

broker = os.environ.get("BROKER", "guest:guest@127.0.0.1:5672")
engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///parcels.db"))
packing.create_tables(engine)
inbox, fence = txcore.Inbox(engine), txcore.SqlFence(engine)
inbox.prune(keep_s=30 * 86_400)  # longer than a message may wait in the queue

connection = pika.BlockingConnection(pika.URLParameters(f"amqp://{broker}"))
channel = connection.channel()
channel.basic_qos(prefetch_count=100)
with (
    txcore.connect(f"rabbitmq://{broker}") as backend,
    txcore.Checker(backend, packing.GROUP, fence=fence),
    txcore.TransactionProducer(backend, packing.GROUP, fence=fence) as producer,
):
    print("ready", flush=True)
    for delivery in channel.consume(os.environ.get("TOPIC", "orders.created")):
        method, _, body = delivery
        packing.pack(producer, engine, inbox, delivery, body.decode())
        channel.basic_ack(method.delivery_tag)  # the database has committed
