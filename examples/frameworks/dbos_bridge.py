"""DBOS: a bridge from RabbitMQ starts one workflow for each message; its id is the `txcore-id`.

pip install dbos pika
BROKER=amqp://guest:guest@127.0.0.1/ TOPIC=orders.created DATABASE=sqlite:///mails.db python dbos_bridge.py
"""

import os

import pika
import sqlalchemy
from dbos import DBOS, DBOSConfig, SetWorkflowID
from sqlalchemy import text

engine = sqlalchemy.create_engine(os.environ.get("DATABASE", "sqlite:///mails.db"))
config: DBOSConfig = {"name": "shop", "system_database_url": os.environ.get("DBOS_DATABASE", "sqlite:///dbos.db")}


@DBOS.step()
def write_mail(order: int) -> None:
    """Write the mail; DBOS may repeat a step that was killed, so the statement may be repeated too."""
    with engine.begin() as connection:
        sql = "INSERT INTO mails SELECT :number WHERE NOT EXISTS (SELECT 1 FROM mails WHERE number = :number)"
        connection.execute(text(sql), {"number": order})


@DBOS.workflow()
def mail_order(order: int) -> None:
    """Do the work that an order causes."""
    write_mail(order)


def main() -> None:
    """Start a workflow for each message; for an id that was started before, DBOS starts nothing."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS mails (number INTEGER)"))
    DBOS(config=config)
    DBOS.launch()
    broker = pika.BlockingConnection(pika.URLParameters(os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/")))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=100)
    print("ready", flush=True)
    for method, properties, body in channel.consume(os.environ.get("TOPIC", "orders.created")):
        with SetWorkflowID(properties.headers["txcore-id"]):
            DBOS.start_workflow(mail_order, int(body))
        channel.basic_ack(method.delivery_tag)  # DBOS has the workflow


if __name__ == "__main__":
    main()
