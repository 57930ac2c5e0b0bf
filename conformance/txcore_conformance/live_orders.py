"""The service that live tests run: its database, and listeners that read it.

A transaction committed if its id is in `live_orders` with outcome 1. A check without a fence writes outcome 2 for a
missing id, so that a listener may answer ROLLBACK for a transaction that then never commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy
from sqlalchemy import event

from txcore import HalfView, LocalTransactionState, Message, SqlFence, TransactionListener, current_transaction

NEVER_KNOWN: Final = b"never known"
"""First bytes of the body of a message whose transaction stays UNKNOWN, unless an operator notes that it committed."""
BUSY_TIMEOUT_S: Final = 20
_COMMITTED, _NEVER = 1, 2
_INSERT: Final = "INSERT INTO live_orders (transaction_id, outcome) VALUES (:id, :outcome)"
_ID_TYPES: Final = {"sqlite": "BLOB", "postgresql": "BYTEA", "mysql": "BINARY(16)", "mariadb": "BINARY(16)"}


def id_type(engine: sqlalchemy.Engine) -> str:
    """Return the type of a column of transaction ids in the engine's database."""
    return _ID_TYPES[engine.dialect.name]


class Deliberate(Exception):  # noqa: N818 - no error: how the block of a test ends
    """Raised to leave a database block."""


class Orders:
    """The local database (SQLite, PostgreSQL or MariaDB) and its fence."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = {"pool_pre_ping": True}
        if url.startswith("sqlite"):
            options["connect_args"] = {"timeout": BUSY_TIMEOUT_S}
        self.engine = sqlalchemy.create_engine(url, **options)
        if url.startswith("sqlite"):
            event.listen(self.engine, "connect", _use_wal)
        self.fence = SqlFence(self.engine)
        is_mysql = self.engine.dialect.name in {"mysql", "mariadb"}
        self._unless_there = (
            " ON DUPLICATE KEY UPDATE outcome = outcome" if is_mysql else " ON CONFLICT (transaction_id) DO NOTHING"
        )

    def create(self) -> None:
        """Create the tables."""
        columns = f"transaction_id {id_type(self.engine)} PRIMARY KEY, outcome INTEGER"
        with self.engine.begin() as connection:
            connection.execute(sqlalchemy.text(f"CREATE TABLE live_orders ({columns})"))
        self.fence.create()

    def insert(self, connection: Any, transaction_id: bytes) -> None:
        """Insert an order in an open database transaction; it raises for an id that a check has decided."""
        connection.execute(sqlalchemy.text(_INSERT), {"id": transaction_id, "outcome": _COMMITTED})

    def outcome(self, transaction_id: bytes) -> LocalTransactionState:
        """Return the outcome of a transaction; a missing one can never commit after this call."""
        insert = sqlalchemy.text(_INSERT + self._unless_there)
        select = sqlalchemy.text("SELECT outcome FROM live_orders WHERE transaction_id = :id")
        with self.engine.begin() as connection:
            connection.execute(insert, {"id": transaction_id, "outcome": _NEVER})
            found = connection.execute(select, {"id": transaction_id}).scalar_one()
        return LocalTransactionState.COMMIT if found == _COMMITTED else LocalTransactionState.ROLLBACK

    def commit(self, transaction_id: bytes) -> None:
        """Note that a transaction has committed, whose outcome the service did not know; it may be noted already."""
        with self.engine.begin() as connection:
            insert = sqlalchemy.text(_INSERT + self._unless_there)
            connection.execute(insert, {"id": transaction_id, "outcome": _COMMITTED})

    def has(self, transaction_id: bytes) -> bool:
        """Return whether a transaction has committed; a missing one may commit later."""
        select = sqlalchemy.text("SELECT 1 FROM live_orders WHERE transaction_id = :id AND outcome = 1")
        with self.engine.connect() as connection:
            return connection.execute(select, {"id": transaction_id}).first() is not None

    def committed(self) -> set[bytes]:
        """Return the ids of all committed transactions."""
        select = sqlalchemy.text("SELECT transaction_id FROM live_orders WHERE outcome = 1")
        with self.engine.connect() as connection:
            return {bytes(row[0]) for row in connection.execute(select)}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Provide an open database transaction, which commits unless the block raises."""
        with self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


class OrderListener(TransactionListener):
    """Local transactions by *arg*: commit, rollback, silent (commits, returns UNKNOWN), unknown (stays UNKNOWN).

    With *is_fenced* each inserts the fence row in its own transaction, and the check is the fence's.
    """

    def __init__(self, orders: Orders, *, is_fenced: bool = False) -> None:
        self._orders = orders
        self._is_fenced = is_fenced

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        """Insert the order, by *arg*."""
        if arg == "unknown":
            return LocalTransactionState.UNKNOWN
        if arg == "rollback" and not self._is_fenced:
            return LocalTransactionState.ROLLBACK
        transaction = current_transaction()
        with contextlib.suppress(Deliberate), self._orders.transaction() as connection:
            if self._is_fenced:
                transaction.fence(connection)
            self._orders.insert(connection, transaction.transaction_id)
            if arg == "rollback":
                raise Deliberate
        if arg == "rollback":
            return LocalTransactionState.ROLLBACK
        return LocalTransactionState.UNKNOWN if arg == "silent" else LocalTransactionState.COMMIT

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Look up the id; a missing id is closed for ever, but for those of transactions that stay UNKNOWN."""
        if half.messages[0].body.startswith(NEVER_KNOWN):
            is_known = self._orders.has(half.transaction_id)
            return LocalTransactionState.COMMIT if is_known else LocalTransactionState.UNKNOWN
        return self._orders.outcome(half.transaction_id)


def _use_wal(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
