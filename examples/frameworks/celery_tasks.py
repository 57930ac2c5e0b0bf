"""Celery on RabbitMQ: a task starts if, and only if, the transaction commits.

pip install "txcore[sql,rabbitmq]" celery
BROKER=amqp://guest:guest@127.0.0.1/ celery --app celery_tasks worker
"""

import json
import os

import sqlalchemy
from celery import Celery, Task
from sqlalchemy import text

import txcore

app = Celery("shop", broker=os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/"))
app.conf.task_default_queue = os.environ.get("QUEUE", "celery")
engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///mails.db"))
inbox = txcore.Inbox(engine)


def start_if_committed(tx: txcore.Transaction, task: Task, *args: object, number: int = 0) -> None:
    """Start the task when the transaction commits; *number* counts the messages that it has published before."""
    headers = {
        "task": task.name,
        "id": f"{tx.transaction_id}:{number}",  # the message's txcore-id
        "lang": "py",
        "content-type": "application/json",
        "content-encoding": "utf-8",
    }
    body = json.dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    tx.publish(txcore.Message(app.conf.task_default_queue, body.encode(), headers=headers))


@app.task(bind=True, name="shop.mail", acks_late=True, reject_on_worker_lost=True)
def mail(self: Task, order: int) -> None:
    """Write the mail of an order once, however often the task is started."""
    with engine.begin() as connection, inbox.receive(connection, self.request) as first:
        if first:
            connection.execute(text("INSERT INTO mails VALUES (:order_number)"), {"order_number": order})
