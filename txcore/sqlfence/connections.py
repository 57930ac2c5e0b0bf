"""One border over every kind of connection that may carry a fence row or an inbox row.

SQLAlchemy's Connection and Session, both also asynchronous, sqlite3.Connection and psycopg.Connection. The border
runs statements with `:name` parameters, knows what the driver says of the transaction, and ends it. It decides
nothing and translates no errors. An asynchronous connection is served by running the same synchronous border
inside SQLAlchemy's `run_sync`.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from txcore.errors import FenceMisuseError

T = TypeVar("T")
Row = tuple[Any, ...]
Values = Mapping[str, Any]

POSTGRESQL: Final = "postgresql"
MYSQL: Final = "mysql"
SQLITE: Final = "sqlite"
_FAMILIES: Final = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}
_MARK: Final = "txcore_fence"


@dataclass(slots=True)
class Mark:
    """What is remembered about a connection that carries a fence row.

    Attributes:
        transaction_id: Whose row it is.
        transaction: The library's own object of the transaction the row went into; None where there is none.
        owned: True when the fence opened the connection and must close it.
    """

    transaction_id: bytes
    transaction: Any
    owned: bool


class Border(Protocol):
    """What the fence asks of a connection. One thread at a time, as the connection itself."""

    @property
    def family(self) -> str:
        """The database's family: postgresql, mysql or sqlite."""

    @property
    def home(self) -> Any:
        """The engine behind the connection, or the connection itself: what lives as long as its settings."""

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* and return its rows; an empty list when it has none."""

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return how many rows it inserted, matched or deleted."""

    def outside(self, sql: str) -> list[Row]:
        """Run *sql* past the library's transaction, so that it does not begin one (SQLite's PRAGMA)."""

    def open_at_driver(self) -> bool | None:
        """Return whether the driver reports an open transaction; None when it cannot say."""

    def commits_each_statement(self) -> bool:
        """Return whether a statement run now would be committed by itself."""

    def has_known_savepoint(self) -> bool:
        """Return whether the library itself has opened a savepoint on this connection."""

    def is_open(self) -> bool:
        """Return whether the transaction is open: the marked one, if there is a mark, else any."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll back the whole transaction, savepoints included."""

    def close(self) -> None:
        """Give the connection back."""

    def mark(self, transaction_id: bytes, *, owned: bool) -> None:
        """Remember that the open transaction carries the row of *transaction_id*."""

    def marked(self) -> Mark | None:
        """Return the mark, if there is one for this connection."""


class SqlAlchemyBorder:
    """The border over a Connection, or over a Session and the Connection it works on."""

    def __init__(self, connection: Connection, session: Session | None = None) -> None:
        self._connection = connection
        self._session = session
        family = _FAMILIES.get(connection.dialect.name)
        if family is None:
            raise FenceMisuseError(
                f"the fence knows postgresql, mysql, mariadb and sqlite, not {connection.dialect.name!r}"
            )
        self.family = family

    @property
    def home(self) -> Any:
        """The engine."""
        return self._connection.engine

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql*; begins SQLAlchemy's transaction when none is begun."""
        result = self._connection.execute(text(sql), dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return the number of rows."""
        return int(self._connection.execute(text(sql), dict(values)).rowcount)

    def outside(self, sql: str) -> list[Row]:
        """Run *sql* on a cursor of the driver, so that SQLAlchemy begins nothing."""
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
        finally:
            cursor.close()

    def open_at_driver(self) -> bool | None:
        """Return what the driver connection says."""
        return _open_at_driver(self._driver())

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and no transaction was opened by hand."""
        autocommit = _autocommit_at_driver(self._driver())
        if autocommit is None:
            options = self._connection.get_execution_options()
            autocommit = options.get("isolation_level") == "AUTOCOMMIT"
        return bool(autocommit) and not self.open_at_driver()

    def has_known_savepoint(self) -> bool:
        """Return whether begin_nested() is open on the Session or on its Connection."""
        nested = self._session is not None and self._session.in_nested_transaction()
        return nested or self._connection.in_nested_transaction()

    def is_open(self) -> bool:
        """Return whether the marked transaction is active; a later one on the same connection does not count."""
        if self._session is None and self._connection.closed:
            return False
        mark = self.marked()
        if mark is not None and mark.transaction is not None:
            return bool(mark.transaction.is_active)
        return (self._session or self._connection).in_transaction()

    def commit(self) -> None:
        """Commit what SQLAlchemy has begun."""
        (self._session or self._connection).commit()

    def rollback(self) -> None:
        """Roll back to the root; begun by hand under autocommit, by hand as well."""
        (self._session or self._connection).rollback()
        if not self._connection.closed and self.open_at_driver():
            self.outside("ROLLBACK")

    def close(self) -> None:
        """Close the Connection; a Session is left to its owner."""
        self._connection.close()

    def mark(self, transaction_id: bytes, *, owned: bool) -> None:
        """Keep the mark in the documented `info` dictionary of the Session or the Connection."""
        holder = self._session or self._connection
        holder.info[_MARK] = (holder, Mark(transaction_id, holder.get_transaction(), owned))

    def marked(self) -> Mark | None:
        """Return the mark; the pooled `info` may still hold that of an earlier user, which is not ours."""
        holder = self._session or self._connection
        if self._session is None and self._connection.closed:
            return None
        kept = holder.info.get(_MARK)
        return kept[1] if kept is not None and kept[0] is holder else None

    def _driver(self) -> Any:
        return self._connection.connection.driver_connection


class SqliteBorder:
    """The border over a plain sqlite3.Connection."""

    family = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def home(self) -> Any:
        """The connection: a file's settings belong to it."""
        return self._connection

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* and return its rows as tuples, whatever the connection's row factory is."""
        cursor = self._cursor()
        try:
            return [tuple(row) for row in cursor.execute(sql, dict(values))]
        finally:
            cursor.close()

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return the number of rows."""
        cursor = self._cursor()
        try:
            return cursor.execute(sql, dict(values)).rowcount
        finally:
            cursor.close()

    def outside(self, sql: str) -> list[Row]:
        """Run *sql*; the driver begins transactions only for statements that write rows."""
        return self.rows(sql, {})

    def open_at_driver(self) -> bool | None:
        """Return SQLite's own state."""
        return self._connection.in_transaction

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and nothing was begun."""
        return bool(_autocommit_at_driver(self._connection)) and not self._connection.in_transaction

    def has_known_savepoint(self) -> bool:
        """Return False: sqlite3 opens none by itself and cannot tell of those opened by hand."""
        return False

    def is_open(self) -> bool:
        """Return whether any transaction is open; a closed connection has none."""
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:
            return False

    def commit(self) -> None:
        """Commit."""
        self._connection.commit()

    def rollback(self) -> None:
        """Roll back, also what was begun by hand under autocommit."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close."""
        self._connection.close()

    def mark(self, transaction_id: bytes, *, owned: bool) -> None:
        """Keep nothing: the connection has no place for it and is never ours."""

    def marked(self) -> Mark | None:
        """Return None."""
        return None

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor


class PsycopgBorder:
    """The border over a plain psycopg.Connection."""

    family = POSTGRESQL

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def home(self) -> Any:
        """The connection."""
        return self._connection

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* and return its rows as tuples, whatever the connection's row factory is."""
        with self._cursor() as cursor:
            cursor.execute(_percent_style(sql), dict(values))
            return list(cursor.fetchall()) if cursor.description else []

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return the number of rows."""
        with self._cursor() as cursor:
            cursor.execute(_percent_style(sql), dict(values))
            return int(cursor.rowcount)

    def outside(self, sql: str) -> list[Row]:
        """Run *sql* like any other."""
        return self.rows(sql, {})

    def open_at_driver(self) -> bool | None:
        """Return the protocol's own transaction status."""
        return _open_at_driver(self._connection)

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and nothing was begun."""
        return bool(self._connection.autocommit) and not self.open_at_driver()

    def has_known_savepoint(self) -> bool:
        """Return False: the statement itself finds savepoints on PostgreSQL."""
        return False

    def is_open(self) -> bool:
        """Return whether any transaction is open; a closed connection has none."""
        return not self._connection.closed and bool(self.open_at_driver())

    def commit(self) -> None:
        """Commit."""
        self._connection.commit()

    def rollback(self) -> None:
        """Roll back by statement, because a `with connection.transaction()` block forbids the method."""
        if self.is_open():
            with self._cursor() as cursor:
                cursor.execute("ROLLBACK")

    def close(self) -> None:
        """Close."""
        self._connection.close()

    def mark(self, transaction_id: bytes, *, owned: bool) -> None:
        """Keep nothing: the connection is never ours."""

    def marked(self) -> Mark | None:
        """Return None."""
        return None

    def _cursor(self) -> Any:
        from psycopg.rows import tuple_row  # noqa: PLC0415 - only here is psycopg known to be installed

        return self._connection.cursor(row_factory=tuple_row)


def border_of(connection: Any, engine: Any = None) -> Border:
    """Return the border over a synchronous connection.

    Args:
        engine: Where a Session that is bound to no single database finds the fence's one.

    Raises:
        FenceMisuseError: no known kind of connection, or of a database without a fence.
    """
    if isinstance(connection, scoped_session):
        connection = connection()
    if isinstance(connection, Session):
        try:
            bound = connection.connection()
        except UnboundExecutionError:
            bound = connection.connection(bind_arguments={"bind": engine})
        return SqlAlchemyBorder(bound, connection)
    if isinstance(connection, Connection):
        return SqlAlchemyBorder(connection)
    if isinstance(connection, sqlite3.Connection):
        return SqliteBorder(connection)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return PsycopgBorder(connection)
    raise FenceMisuseError(
        "the fence takes a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession, a sqlite3.Connection "
        f"or a psycopg.Connection, not a {type(connection).__module__}.{type(connection).__qualname__}"
    )


def is_async(connection: Any) -> bool:
    """Return whether *connection* is one of SQLAlchemy's asynchronous kinds."""
    return isinstance(connection, AsyncConnection | AsyncSession | async_scoped_session)


def on_border(connection: Any, action: Callable[[Border], T], engine: Any = None) -> T | Awaitable[T]:
    """Run *action* on the border over *connection*; an awaitable when it is an asynchronous one."""
    if not is_async(connection):
        return action(border_of(connection, engine))
    awaitable: Awaitable[T] = connection.run_sync(lambda inner: action(border_of(inner, engine)))
    return awaitable


def is_open(connection: Any) -> bool:
    """Return whether the transaction that carries the row is open, without waiting, for every kind."""
    if isinstance(connection, async_scoped_session):
        connection = connection()
    if isinstance(connection, AsyncSession):
        connection = connection.sync_session
    elif isinstance(connection, AsyncConnection):
        connection = connection.sync_connection
    if isinstance(connection, scoped_session):
        connection = connection()
    if connection is None:
        return False
    if isinstance(connection, Session):
        kept = connection.info.get(_MARK)
        if kept is not None and kept[0] is connection and kept[1].transaction is not None:
            return bool(kept[1].transaction.is_active)
        return connection.in_transaction()
    return border_of(connection).is_open()


@functools.lru_cache(maxsize=512)
def _percent_style(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


def _open_at_driver(driver: Any) -> bool | None:
    if hasattr(driver, "in_transaction"):  # sqlite3, aiosqlite
        return bool(driver.in_transaction)
    info = getattr(driver, "info", None)
    if hasattr(info, "transaction_status"):  # psycopg, psycopg2: 0 is idle
        return int(info.transaction_status) != 0
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    status = getattr(driver, "server_status", None)
    if isinstance(status, int):  # pymysql and its kin: SERVER_STATUS_IN_TRANS
        return bool(status & 1)
    return None


def _autocommit_at_driver(driver: Any) -> bool | None:
    mode = getattr(driver, "autocommit", None)
    if hasattr(driver, "in_transaction"):
        # Python 3.12 has `autocommit`; its legacy value -1 and older versions go by `isolation_level`.
        return mode if isinstance(mode, bool) else driver.isolation_level is None
    if isinstance(mode, bool):  # psycopg, psycopg2
        return mode
    status = getattr(driver, "server_status", None)
    if isinstance(status, int):  # pymysql and its kin: SERVER_STATUS_AUTOCOMMIT
        return bool(status & 2)
    return None
