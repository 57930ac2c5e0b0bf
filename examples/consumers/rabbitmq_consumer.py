"""A consumer of RabbitMQ that applies each message once: effect and inbox row in one transaction, then the ack.

pip install "txcore[sql,rabbitmq]"
BROKER=amqp://guest:guest@127.0.0.1/ TOPIC=orders.created DATABASE=sqlite:///parcels.db python rabbitmq_consumer.py
"""

import os

import pika  # type: ignore[import-untyped]
import sqlalchemy
from sqlalchemy import text

import txcore

engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///parcels.db"))
inbox = txcore.Inbox(engine)
inbox.create()
inbox.prune(keep_s=30 * 86_400)  # longer than a message may wait in the queue
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(200))"))

queue = os.environ.get("TOPIC", "orders.created")
broker = pika.BlockingConnection(pika.URLParameters(os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/")))
channel = broker.channel()
channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})  # as `txcore topics create` makes it
channel.basic_qos(prefetch_count=100)
print("ready", flush=True)
for delivery in channel.consume(queue):
    method, properties, body = delivery
    with engine.begin() as connection, inbox.receive(connection, delivery) as first:
        if first:
            connection.execute(text("INSERT INTO parcels VALUES (:item)"), {"item": body.decode()})
    channel.basic_ack(method.delivery_tag)  # the database has committed
