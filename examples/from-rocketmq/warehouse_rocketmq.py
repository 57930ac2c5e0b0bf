"""The warehouse's consumer of RocketMQ; it runs until RocketMQ has nothing left.

pip install rocketmq-python-client "sqlalchemy>=2" "psycopg[binary]"
ROCKETMQ=127.0.0.1:8081 DATABASE=postgresql+psycopg://me@127.0.0.1/warehouse python warehouse_rocketmq.py
"""

import os
import time

from ordering import TOPIC
from parcels import create_tables, pack
from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer
from rocketmq.v5.exception import ClientException

AT_ONCE = 16
INVISIBLE_S = 15

create_tables()
configuration = ClientConfiguration(os.environ.get("ROCKETMQ", "127.0.0.1:8081"), Credentials(), request_timeout=10)
consumer = SimpleConsumer(configuration, "warehouse", {TOPIC: FilterExpression()}, await_duration=5)
consumer.startup()
print("ready", flush=True)
while True:
    try:
        messages = consumer.receive(AT_ONCE, INVISIBLE_S)
    except ClientException as error:  # the proxy refuses a consumer for a moment after its start
        print(f"again, after: {error}", flush=True)
        time.sleep(1)
        continue
    for message in messages:
        pack(message.body)
        consumer.ack(message)
