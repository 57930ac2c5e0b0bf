"""The writer under SQLAlchemy: one driver's connection, on which a producer's statements run.

SQLAlchemy's own execution costs several times as much. The only module that looks inside drivers. What stays the same
while the driver's connection lives is learned once: how it runs a statement, and which attributes report its
transaction. The state itself is asked each time.
"""

from __future__ import annotations

import functools
import sqlite3
import sys
from typing import Any, Final

from sqlalchemy import Connection, text

from txcore.sqlfence.border import SQLITE, Row, Values

IDLE: Final = 0
IN_TRANSACTION: Final = 2
"""libpq's status between statements of a transaction block; with 1 answers are pending, with 3 it has failed."""

_IS_LEGACY: Final = not hasattr(sqlite3.Connection, "autocommit")
"""Whether this Python's sqlite3 is in autocommit mode if it has no isolation level, and never else."""


class SqliteWriter:
    """The writer on a sqlite3.Connection."""

    family = SQLITE

    def __init__(self, dbapi: sqlite3.Connection) -> None:
        self.dbapi = dbapi
        self.memory: dict[str, Any] = {}
        self._execute = dbapi.execute

    def quick_rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql*."""
        return self._execute(sql, values).fetchall()

    def quick_change(self, sql: str, values: Values) -> int:
        """Run *sql*."""
        return self._execute(sql, values).rowcount

    def open_at_driver(self) -> bool:
        """Return SQLite's own state."""
        return self.dbapi.in_transaction

    is_surely_open = open_at_driver

    def is_autocommit(self) -> bool:
        """Return the mode of the driver."""
        return self.dbapi.isolation_level is None if _IS_LEGACY else sqlite_autocommit(self.dbapi)


class CursorWriter:
    """The writer on the cursors of any driver; a subclass for each way to report the transaction."""

    def __init__(self, dbapi: Any, driver: Any, dialect: Any, family: str) -> None:
        self.dbapi = dbapi
        self.family = family
        self.memory: dict[str, Any] = {}
        self._driver = driver
        self._dialect = dialect

    def quick_rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* on a cursor."""
        cursor = self._executed(sql, values)
        try:
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def quick_change(self, sql: str, values: Values) -> int:
        """Run *sql* on a cursor."""
        cursor = self._executed(sql, values)
        try:
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def open_at_driver(self) -> bool | None:
        """Return None: the driver does not report it."""
        return None

    def is_surely_open(self) -> bool:
        """Return whether the driver reports an open transaction."""
        return bool(self.open_at_driver())

    def is_autocommit(self) -> bool | None:
        """Return the driver's attribute, if it has one."""
        mode = getattr(self._driver, "autocommit", None)
        return mode if isinstance(mode, bool) else None

    def _executed(self, sql: str, values: Values) -> Any:
        """Return the cursor on which *sql* has run."""
        cursor = self.dbapi.cursor()
        try:
            if values:
                statement, places = _rendered(sql, self._dialect)
                cursor.execute(statement, [values[place] for place in places] if places else values)
            else:
                cursor.execute(sql)
        except BaseException:
            cursor.close()
            raise
        return cursor


class _InTransactionWriter(CursorWriter):
    """Of aiosqlite and MySQL Connector."""

    def open_at_driver(self) -> bool:
        return bool(self._driver.in_transaction)

    def is_autocommit(self) -> bool:
        return sqlite_autocommit(self._driver)


class LibpqWriter(CursorWriter):
    """The writer on psycopg, psycopg2 and the like."""

    def open_at_driver(self) -> bool:
        """Return the protocol's own transaction status."""
        return int(self._driver.info.transaction_status) != IDLE

    def is_surely_open(self) -> bool:
        """Return whether the server's last answer reported an open transaction."""
        return int(self._driver.info.transaction_status) == IN_TRANSACTION


class _AsyncpgWriter(CursorWriter):
    def open_at_driver(self) -> bool:
        return bool(self._driver.is_in_transaction())


class _StatusWriter(CursorWriter):
    """Of PyMySQL and the like: the server's flags SERVER_STATUS_IN_TRANS and SERVER_STATUS_AUTOCOMMIT."""

    def open_at_driver(self) -> bool:
        return bool(self._driver.server_status & 1)

    def is_autocommit(self) -> bool:
        mode = super().is_autocommit()
        return bool(self._driver.server_status & 2) if mode is None else mode


DriverWriter = SqliteWriter | CursorWriter


def writer_of(connection: Connection, family: str) -> DriverWriter:
    """Return a new writer on the driver's connection that *connection* has now."""
    dbapi, dialect = connection.connection.dbapi_connection, connection.dialect
    driver: Any = dialect.get_driver_connection(dbapi) if dbapi is not None else None
    if isinstance(driver, sqlite3.Connection):
        return SqliteWriter(driver)
    return _class_for(driver)(dbapi, driver, dialect, family)


def _class_for(driver: Any) -> type[CursorWriter]:
    if is_psycopg(type(driver)):
        from txcore.sqlfence.psycopg3 import PsycopgWriter  # noqa: PLC0415 - needs psycopg

        return PsycopgWriter
    if hasattr(driver, "in_transaction"):
        return _InTransactionWriter
    if hasattr(getattr(driver, "info", None), "transaction_status"):
        return LibpqWriter
    if hasattr(driver, "is_in_transaction"):
        return _AsyncpgWriter
    return _StatusWriter if isinstance(getattr(driver, "server_status", None), int) else CursorWriter


def is_psycopg(kind: type[Any]) -> bool:
    """Return whether *kind* is psycopg's blocking connection."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and issubclass(kind, psycopg.Connection)


def sqlite_autocommit(driver: Any) -> bool:
    """Return whether a connection of sqlite3 or aiosqlite is in autocommit mode.

    Python 3.12 has `autocommit`; its legacy value -1 and older versions follow `isolation_level`.
    """
    mode = getattr(driver, "autocommit", None)
    return mode if isinstance(mode, bool) else driver.isolation_level is None


@functools.lru_cache(maxsize=64)
def _rendered(sql: str, dialect: Any) -> tuple[str, tuple[str, ...]]:
    """Return *sql* in the driver's style, and the parameters' names in their order where the style has no names."""
    compiled = text(sql).compile(dialect=dialect)
    return str(compiled), tuple(compiled.positiontup or ())
