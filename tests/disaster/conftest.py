"""An order service whose broker, database and consumers are restored to earlier points, as docs/disaster.md tries it.

Every process of the shop ends before a file is copied or restored, as the page orders.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from txcore_conformance import servers
from txcore_conformance.kit import FAST, decide_all, hasty
from txcore_conformance.required import obtained
from txcore_sqlite.consumer import SqliteConsumer, read_topic

import txcore
from txcore.fence import FenceAnswer
from txcore.ids import TransactionId
from txcore.sqlfence import SqlFence

GROUP, TOPIC = "shop", "orders.created"
TIMEOUT_S = 60.0


@dataclass
class Service:
    """The processes of the shop, while they run."""

    backend: Any
    engine: Engine
    fence: SqlFence

    def producer(self, **options: Any) -> txcore.TransactionProducer:
        """Return a producer whose halves are checked at once."""
        policy = txcore.CheckPolicy(immunity_s=0.05)
        options = {"fence": self.fence, "policy": policy} | options
        return txcore.TransactionProducer(hasty(self.backend), GROUP, **options)

    def order(self, item: str, *, dies: bool = False, **options: Any) -> bytes:
        """Place an order and return its transaction's id; the service may die between the commit and the message."""
        transaction = self.producer(**options).begin()
        transaction.publish(txcore.Message(TOPIC, item.encode(), item.encode()))
        with self.engine.connect() as connection:
            connection.execute(text("INSERT INTO orders (item) VALUES (:item)"), {"item": item})
            transaction.prepare(connection)
            connection.commit()
        if not dies:
            transaction.commit()
        return transaction.transaction_id

    def check(self, **options: Any) -> None:
        """Let a checker decide every half."""
        options = {"fence": self.fence, "limits": FAST} | options
        decide_all(txcore.Checker(self.backend, GROUP, **options), self.backend, GROUP, TIMEOUT_S)

    def relay(self) -> int:
        """Let a relay send what waits in the message table, and return the number of messages sent."""
        with closing_relay(txcore.Relay(self.backend, GROUP, self.engine)) as relay:
            return relay.run_once().sent

    def drop(self, identity: bytes) -> None:
        """Let a relay park a message whose topic is missing, and drop it as an operator."""
        limits = txcore.RelayLimits(tries_max=1)
        with closing_relay(txcore.Relay(self.backend, GROUP, self.engine, limits=limits)) as relay:
            assert relay.run_once().parked == 1
            assert relay.drop(TransactionId(identity), "a test", "anna") == 1

    def undo(self, item: str, identity: bytes) -> None:
        """Turn a committed order into one that was rolled back and checked, as a crash before the commit leaves it."""
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM orders WHERE item = :item"), {"item": item})
            connection.execute(text("UPDATE txcore_tx SET state = 2 WHERE transaction_id = :id"), {"id": identity})

    def prune(self) -> None:
        """Delete the rows of all transactions whose end is in the log."""
        finished = self.operator().finished(lambda _: True)
        SqlFence(self.engine, statement_timeout_s=0.1).prune(b"\xff" * 16, finished.intersection, wait_s=0.2)

    def row(self, identity: bytes) -> FenceAnswer:
        """Return the answer of the fence's row, without a tombstone."""
        return self.fence.peek([identity])[identity].answer

    def operator(self) -> txcore.Operator:
        """Return an operator of the group."""
        return txcore.Operator(self.backend, GROUP, by="anna")

    def orders(self) -> set[str]:
        """Return the orders in the database."""
        with self.engine.connect() as connection:
            return set(connection.execute(text("SELECT item FROM orders")).scalars())


@contextmanager
def closing_relay(relay: txcore.Relay) -> Iterator[txcore.Relay]:
    """Stop a relay at the end of the block."""
    try:
        yield relay
    finally:
        relay.stop()


@dataclass
class Shop:
    """The files of the shop: broker.db, shop.db unless its database is a server, and mail.db of its consumer."""

    folder: Path
    database: str
    options: str = ""

    def __post_init__(self) -> None:
        self.broker = self.folder / "broker.db"
        with self.running() as service, service.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (item varchar(64) PRIMARY KEY)"))
        with self.running() as service:
            service.fence.create()
            service.backend.ensure_group(GROUP, 2).result(TIMEOUT_S)

    @contextmanager
    def running(self, database: str = "") -> Iterator[Service]:
        """Start the service's processes; they end with the block."""
        engine = create_engine(database or self.database)
        try:
            with txcore.connect(f"sqlite:///{self.broker}?{self.options}") as backend:
                yield Service(backend, engine, SqlFence(engine))
        finally:
            engine.dispose()

    def messages(self) -> list[str]:
        """Return the messages in the topic, as its consumers see them."""
        return [message.body.decode() for message in read_topic(self.broker, TOPIC)]

    def ids(self) -> list[str]:
        """Return the ids of these messages."""
        return [str(message.headers["txcore-id"]) for message in read_topic(self.broker, TOPIC)]

    def delete_topic(self) -> None:
        """Delete the empty topic, as an administrator by mistake does."""
        with closing(sqlite3.connect(self.broker)) as connection, connection:
            connection.execute("DELETE FROM topic WHERE name = ?", (TOPIC,))

    def receive(self, group: str = "mail") -> None:
        """Let the consumer apply each first delivery, with its inbox, and acknowledge."""
        engine = create_engine(f"sqlite:///{self.folder}/mail.db")
        inbox = txcore.Inbox(engine)
        inbox.create()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS mail (item varchar(64))"))
        with SqliteConsumer(self.broker, TOPIC, group) as consumer:
            for message in consumer.poll():
                with engine.begin() as connection, inbox.receive(connection, message) as is_first:
                    if is_first:
                        connection.execute(text("INSERT INTO mail VALUES (:item)"), {"item": message.body.decode()})
                consumer.ack(message.position)
        engine.dispose()

    def mails(self) -> list[str]:
        """Return the effects of the consumer, sorted."""
        with closing(sqlite3.connect(self.folder / "mail.db")) as connection:
            return sorted(item for (item,) in connection.execute("SELECT item FROM mail"))

    def copy(self, name: str) -> Path:
        """Return a copy of a file, as SQLite's online backup makes it."""
        kept = self.folder / f"{name}.kept"
        kept.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.folder / name)) as source, closing(sqlite3.connect(kept)) as target:
            source.backup(target)
        return kept

    def restore(self, name: str, *tables: str) -> None:
        """Restore a file from its copy; with *tables*, only these."""
        path, kept = self.folder / name, self.folder / f"{name}.kept"
        if not tables:
            self.lose(name)
            path.write_bytes(kept.read_bytes())
            return
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ATTACH ? AS kept", (str(kept),))
            with connection:
                for table in tables:
                    connection.execute(f"DELETE FROM main.{table}")
                    connection.execute(f"INSERT INTO main.{table} SELECT * FROM kept.{table}")

    def lose(self, name: str) -> None:
        """Delete a file, with its write-ahead log."""
        for path in self.folder.glob(f"{name}*"):
            if path.suffix != ".kept":
                path.unlink()


@pytest.fixture
def shop(tmp_path):
    """A shop on two SQLite files."""
    return Shop(tmp_path, f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def strict_shop(tmp_path):
    """A shop whose broker makes no topic by itself."""
    return Shop(tmp_path, f"sqlite:///{tmp_path}/shop.db", "auto_create=false")


@pytest.fixture
def shop_on(tmp_path):
    """Return a function that makes a shop on another database."""
    return lambda database: Shop(tmp_path, database)


@pytest.fixture(scope="session")
def postgresql():
    """A PostgreSQL server for several tests."""
    server = obtained("postgresql", servers.postgresql)
    yield server
    server.remove()
