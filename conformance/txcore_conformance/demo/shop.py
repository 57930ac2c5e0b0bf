"""The demo's database: the service's orders, and the consumer's rows for their messages."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec.structs
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    event,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from txcore import Inbox, SqlFence
from txcore.errors import BackendUnavailableError, UsageError
from txcore.sqlfence.engines import open_engine
from txcore.sqlfence.failures import failure_of
from txcore.sqlfence.schema import tables_named

LOCK_WAIT_S: Final = 20.0
CHECK_WAIT_S: Final = 1.0
CUSTOMERS: Final = ("Ada", "Barbara", "Edsger", "Grace", "Leslie", "Niklaus", "Radia", "Tony")


@dataclass(frozen=True, slots=True)
class Order:
    """One order; its message is exactly this, as JSON."""

    number: int
    customer: str
    amount_cents: int

    def to_json(self) -> bytes:
        """Return the body of the order's message."""
        return json.dumps(asdict(self)).encode()


def order_of(number: int, seed: int) -> Order:
    """Return the order with *number*, the same in each try."""
    chance = random.Random(seed * 1_000_003 + number)
    return Order(number, chance.choice(CUSTOMERS), chance.randint(100, 99_999))


def parse_order(body: bytes) -> Order:
    """Return the order in a message."""
    return Order(**json.loads(body))


class Shop:
    """The tables of one run, with the fence and the inbox beside them.

    Raises:
        UsageError: not a database URL, not a file, or an asynchronous driver.
        BackendNotInstalledError: the database's driver is missing; the text names the extra.
    """

    def __init__(self, url: str, name: str) -> None:
        self.engine = shop_engine(url)
        prefix = name.replace("-", "_")
        metadata = MetaData()
        self.orders = Table(
            f"{prefix}_orders",
            metadata,
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("customer", String(40), nullable=False),
            Column("amount_cents", Integer, nullable=False),
            Column("transaction_id", String(36), nullable=False),
        )
        self.applied = Table(
            f"{prefix}_applied",
            metadata,
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("customer", String(40), nullable=False),
            Column("amount_cents", Integer, nullable=False),
            Column("message_id", String(64), nullable=False),
        )
        self.fence = SqlFence(self.engine, table=f"{prefix}_tx", lock_timeout_s=CHECK_WAIT_S)
        self.inbox = Inbox(self.engine, table=f"{prefix}_inbox")
        self._metadata = metadata

    def create(self) -> None:
        """Make all tables.

        Raises:
            BackendUnavailableError: the database cannot be reached or refuses.
        """
        try:
            self._metadata.create_all(self.engine)
            self.fence.create()
            self.inbox.create()
        except SQLAlchemyError as error:
            raise BackendUnavailableError(
                f"the database cannot be used: {failure_of(error, self.engine.url.password)}"
            ) from error

    def drop(self) -> None:
        """Delete all tables of this run, those of the fence and the inbox too."""
        own = msgspec.structs.astuple(tables_named(self.fence.table))
        names = {*self._metadata.tables, *own, self.inbox.table, f"{self.inbox.table}_meta"}
        found = MetaData()
        found.reflect(self.engine, only=[name for name in inspect(self.engine).get_table_names() if name in names])
        found.drop_all(self.engine)

    def add(self, connection: Connection, order: Order, transaction: str) -> None:
        """Write an order's row."""
        connection.execute(insert(self.orders), {**asdict(order), "transaction_id": transaction})

    def apply(self, connection: Connection, order: Order, message_id: str) -> None:
        """Write the consumer's row for a message; a second row for the same order is an error."""
        connection.execute(insert(self.applied), {**asdict(order), "message_id": message_id})

    def has(self, number: int) -> bool:
        """Return whether an order is committed."""
        with self.engine.connect() as connection:
            return connection.execute(select(self.orders.c.number).filter_by(number=number)).first() is not None

    def numbers(self) -> set[int]:
        """Return the numbers of all committed orders."""
        with self.engine.connect() as connection:
            return set(connection.scalars(select(self.orders.c.number)))

    def counts(self) -> tuple[int, int]:
        """Return the number of committed orders and the number of orders that the consumer applied."""
        with self.engine.connect() as connection:
            tables = (self.orders, self.applied)
            ordered, applied = (connection.scalar(select(func.count()).select_from(table)) for table in tables)
        return int(ordered or 0), int(applied or 0)

    def rows(self) -> dict[str, Order]:
        """Return all committed orders by their transaction's id."""
        with self.engine.connect() as connection:
            return {row.transaction_id: _order(row) for row in connection.execute(select(self.orders))}

    def applied_rows(self) -> Sequence[tuple[str, Order]]:
        """Return the orders that the consumer applied, with the ids of the messages."""
        with self.engine.connect() as connection:
            return [(row.message_id, _order(row)) for row in connection.execute(select(self.applied))]

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()


def shop_engine(url: str) -> Engine:
    """Return an engine on a database that other processes can reach. See `Shop` for the errors."""
    engine = open_engine(url, "the demo", _options_of)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _use_wal)
    return engine


def _options_of(url: URL) -> dict[str, Any]:
    if url.get_backend_name() != "sqlite":
        return {"pool_size": 2}
    if url.database in {None, "", ":memory:"}:
        raise UsageError("an SQLite database in memory cannot be shared by processes: name a file")
    return {"connect_args": {"timeout": LOCK_WAIT_S}}


def sqlite_url(path: Path) -> str:
    """Return the URL of a file, for txcore and for SQLAlchemy alike."""
    return f"sqlite:///{path.absolute()}"


def _use_wal(connection: Any, _record: Any) -> None:
    """Let readers read during a write."""
    connection.execute("PRAGMA journal_mode = WAL")


def _order(row: Any) -> Order:
    return Order(row.number, row.customer, row.amount_cents)
