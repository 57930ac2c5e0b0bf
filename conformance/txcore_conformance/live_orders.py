"""The service that live tests run: its database, and listeners that look into it.

A transaction committed if its id stands in `live_orders` with outcome 1. A check without a fence writes outcome 2 for
an id that is not there, so that a listener may answer ROLLBACK for what will then never commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy
from sqlalchemy import event

from txcore import HalfView, LocalTransactionState, Message, SqlFence, TransactionListener, current_transaction

NOBODY_KNOWS: Final = b"nobody knows"
"""How the body of a message begins whose transaction stays UNKNOWN for ever."""
BUSY_TIMEOUT_S: Final = 20
_COMMITTED, _NEVER = 1, 2
_INSERT: Final = "INSERT INTO live_orders (transaction_id, outcome) VALUES (:id, :outcome)"
_ID_TYPES: Final = {"sqlite": "BLOB", "postgresql": "BYTEA", "mysql": "BINARY(16)", "mariadb": "BINARY(16)"}


def id_type(engine: sqlalchemy.Engine) -> str:
    """Return the type of a column that holds transaction ids, in the words of the engine's database."""
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
        """Make the tables."""
        columns = f"transaction_id {id_type(self.engine)} PRIMARY KEY, outcome INTEGER"
        with self.engine.begin() as connection:
            connection.execute(sqlalchemy.text(f"CREATE TABLE live_orders ({columns})"))
        self.fence.create()

    def insert(self, connection: Any, transaction_id: bytes) -> None:
        """Insert an order in an open database transaction; it raises for an id that a check has decided."""
        connection.execute(sqlalchemy.text(_INSERT), {"id": transaction_id, "outcome": _COMMITTED})

    def outcome(self, transaction_id: bytes) -> LocalTransactionState:
        """Return what became of a transaction; one that is not there never will be."""
        insert = sqlalchemy.text(_INSERT + self._unless_there)
        select = sqlalchemy.text("SELECT outcome FROM live_orders WHERE transaction_id = :id")
        with self.engine.begin() as connection:
            connection.execute(insert, {"id": transaction_id, "outcome": _NEVER})
            found = connection.execute(select, {"id": transaction_id}).scalar_one()
        return LocalTransactionState.COMMIT if found == _COMMITTED else LocalTransactionState.ROLLBACK

    def committed(self) -> set[bytes]:
        """Return the ids of everything that committed."""
        select = sqlalchemy.text("SELECT transaction_id FROM live_orders WHERE outcome = 1")
        with self.engine.connect() as connection:
            return {bytes(row[0]) for row in connection.execute(select)}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Give an open database transaction, committed unless the block raises."""
        with self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


class OrderListener(TransactionListener):
    """Local transactions by *arg*: commit, rollback, silent (commits and says nothing), nobody (UNKNOWN for ever).

    With *is_fenced* each inserts the fence row in its own transaction, and the check is the fence's.
    """

    def __init__(self, orders: Orders, *, is_fenced: bool = False) -> None:
        self._orders = orders
        self._is_fenced = is_fenced

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002
        """Insert the order, or not."""
        if arg == "nobody":
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
        """Look it up; an id that is not there is closed for ever."""
        if half.messages[0].body.startswith(NOBODY_KNOWS):
            return LocalTransactionState.UNKNOWN
        return self._orders.outcome(half.transaction_id)


def _use_wal(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
