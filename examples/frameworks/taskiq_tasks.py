"""taskiq on RabbitMQ: a task starts if, and only if, the transaction commits.

pip install "txcore[asyncio,rabbitmq]" taskiq-aio-pika aiosqlite
BROKER=amqp://guest:guest@127.0.0.1/ taskiq worker taskiq_tasks:broker
"""

import os
from typing import Annotated, Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from taskiq import AsyncTaskiqDecoratedTask, Context, TaskiqDepends, TaskiqMessage
from taskiq_aio_pika import AioPikaBroker, Queue

import txcore

GROUP = "shop"
QUEUE = os.environ.get("QUEUE", "taskiq")
broker = AioPikaBroker(os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/"), task_queues=[Queue(name=QUEUE)])
engine = create_async_engine(os.environ.get("DATABASE", "sqlite+aiosqlite:///mails.db"))
inbox = txcore.AsyncInbox(engine)


def start_if_committed(
    tx: txcore.AsyncTransaction, task: AsyncTaskiqDecoratedTask[..., Any], *args: object, number: int = 0
) -> None:
    """Start the task when the transaction commits; *number* counts the messages that it has published before."""
    task_id = f"{tx.transaction_id}:{number}"  # the message's txcore-id
    message = TaskiqMessage(task_id=task_id, task_name=task.task_name, labels={}, args=list(args), kwargs={})
    tx.publish(txcore.Message(QUEUE, broker.formatter.dumps(message).message))


@broker.task(task_name="shop.mail")
async def mail(order: int, context: Annotated[Context, TaskiqDepends()]) -> None:
    """Write the mail of an order once, however often the task is started."""
    headers = {"txcore-id": context.message.task_id, "txcore-group": GROUP}
    async with engine.begin() as connection, inbox.receive(connection, headers) as first:
        if first:
            await connection.execute(text("INSERT INTO mails VALUES (:order_number)"), {"order_number": order})
