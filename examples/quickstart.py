"""The shortest correct program: an order and its message, both or neither, and a consumer that applies it once.

    pip install "txcore[sql]"
    python quickstart.py

Everything is in two files, no server: `broker.db` is the broker, `shop.db` the database. For a real broker change the
URL and consume with its own client; the rest stays as it is.
"""

import sqlalchemy
from sqlalchemy import text
from txcore_sqlite.consumer import SqliteConsumer

import txcore

# The service's database, with the fence (is it committed?) and the inbox (was it seen?) beside its tables.
engine = sqlalchemy.create_engine("sqlite:///shop.db")
fence, inbox = txcore.SqlFence(engine), txcore.Inbox(engine)
fence.create()
inbox.create()
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item TEXT)"))

# The producer: one row and one message. An exception in the block undoes both; a crash anywhere leaves both or none.
with (
    txcore.connect("sqlite:///broker.db") as backend,
    txcore.Checker(backend, group="orders", fence=fence),  # finishes the transactions that a crash left open
    txcore.TransactionProducer(backend, group="orders", fence=fence) as producer,
    producer.transaction(engine) as tx,
):
    number = tx.connection.execute(text("INSERT INTO orders (item) VALUES ('book')")).lastrowid
    tx.publish(txcore.Message("orders.created", b"book", key=str(number).encode()))

# The consumer: delivery is at least once, the inbox makes it once.
with SqliteConsumer("broker.db", "orders.created", group="parcels") as consumer:
    for message in consumer.poll():
        with engine.begin() as connection, inbox.receive(connection, message) as first:
            if first:
                connection.execute(text("INSERT INTO parcels VALUES (:item)"), {"item": message.body.decode()})
                print(f"order {(message.key or b'').decode()}: one parcel with a {message.body.decode()}")
        consumer.ack(message.position)
