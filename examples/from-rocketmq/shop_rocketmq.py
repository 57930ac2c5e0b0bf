"""The shop as it was: an order and its message, with a transactional message of RocketMQ.

pip install rocketmq-python-client "sqlalchemy>=2" "psycopg[binary]"
ROCKETMQ=127.0.0.1:8081 DATABASE=postgresql+psycopg://me@127.0.0.1/shop python shop_rocketmq.py

Without orders it only answers RocketMQ's checks, which some process must do until RocketMQ has no half left.
"""

import os

import sqlalchemy
from ordering import TOPIC, RefusedError, create_table, is_ordered, serve, write_order
from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker, TransactionResolution

engine = sqlalchemy.create_engine(os.environ["DATABASE"])
create_table(engine)


class OrderCheck(TransactionChecker):
    """The check: the order is there, or it is not."""

    def check(self, message: Message) -> TransactionResolution:
        """Answer for a half whose producer said nothing."""
        order = message.body.decode()
        with engine.connect() as connection:
            is_there = is_ordered(connection, order)
        print(f"checked {order}: {'commit' if is_there else 'rollback'}", flush=True)
        return TransactionResolution.COMMIT if is_there else TransactionResolution.ROLLBACK


configuration = ClientConfiguration(os.environ.get("ROCKETMQ", "127.0.0.1:8081"), Credentials(), request_timeout=10)
producer = Producer(configuration, (TOPIC,), checker=OrderCheck())


def place(order: str) -> bool:
    """Place an order; False if it is refused."""
    message = Message()
    message.topic, message.body, message.keys = TOPIC, order.encode(), order.split(maxsplit=1)[0]
    transaction = producer.begin_transaction()
    producer.send(message, transaction)
    try:
        with engine.begin() as connection:
            write_order(connection, order)
    except RefusedError:
        transaction.rollback()
        return False
    transaction.commit()
    return True


producer.startup()
serve(place)
producer.shutdown()
