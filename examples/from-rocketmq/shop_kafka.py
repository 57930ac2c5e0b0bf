"""The shop as it will be: the same order and its message, with txcore on Kafka.

pip install "txcore[kafka,postgresql]"
BROKER=kafka://127.0.0.1:9092 DATABASE=postgresql+psycopg://me@127.0.0.1/shop python shop_kafka.py
"""

import os

import sqlalchemy
from ordering import TOPIC, RefusedError, create_table, serve, write_order

import txcore
from txcore import ListenerTransaction, LocalTransactionState, Message

engine = sqlalchemy.create_engine(os.environ["DATABASE"])
create_table(engine)


class OrderListener(txcore.TransactionListener):
    """The listener of RocketMQ, with a fence instead of a check."""

    def execute(self, transaction: ListenerTransaction, message: Message, arg: str) -> LocalTransactionState:  # noqa: ARG002
        """Write the order."""
        try:
            with engine.begin() as connection:
                transaction.fence(connection)
                write_order(connection, arg)
        except RefusedError:
            return LocalTransactionState.ROLLBACK
        return LocalTransactionState.COMMIT


backend = txcore.connect(os.environ.get("BROKER", "kafka://127.0.0.1:9092"))
producer = txcore.TransactionProducer(
    backend, "shop", fence=txcore.SqlFence(engine), listener=OrderListener(), listener_fences=True
)


def place(order: str) -> bool:
    """Place an order; False if it is refused."""
    message = Message(TOPIC, order.encode(), key=order.split(maxsplit=1)[0].encode())
    result = producer.send_message_in_transaction(message, order)
    return result.local_transaction_state is LocalTransactionState.COMMIT


with backend, producer:
    serve(place)
