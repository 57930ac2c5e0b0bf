"""The warehouse's consumer of Kafka, with the same handler.

pip install confluent-kafka "sqlalchemy>=2" "psycopg[binary]"
BROKER=127.0.0.1:9092 DATABASE=postgresql+psycopg://me@127.0.0.1/warehouse python warehouse_kafka.py
"""

import os
from contextlib import closing

from confluent_kafka import Consumer, KafkaException
from ordering import TOPIC
from parcels import create_tables, pack

create_tables()
settings: dict[str, str | int | bool] = {
    "bootstrap.servers": os.environ.get("BROKER", "127.0.0.1:9092"),
    "group.id": "warehouse",
    "enable.auto.commit": False,  # the offset is committed below, after the database's transaction
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
with closing(Consumer(settings)) as consumer:
    consumer.subscribe([TOPIC])
    print("ready", flush=True)
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        pack(message.value() or b"")
        consumer.commit(message=message, asynchronous=False)
