"""Borders over drivers' own connections, and the one over sqlite3's; `psycopg3` has the one over psycopg's.

Each is its own writer.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from txcore.sqlfence.border import SQLITE, Mark, Row, Values
from txcore.sqlfence.writers import sqlite_autocommit

if TYPE_CHECKING:
    from txcore.sqlfence.identity import Database


class PlainBorder:
    """The part that the borders over drivers' own connections share: the fence never owns one, and marks none."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def home(self) -> Any:
        """The connection."""
        return self._connection

    def begin(self) -> None:
        """Do nothing: the driver begins with the first statement."""

    def has_known_savepoint(self) -> bool:
        """Return False: the driver does not report those opened by hand; on PostgreSQL the insert finds them itself."""
        return False

    def commit(self) -> None:
        """Commit."""
        self._connection.commit()

    def close(self) -> None:
        """Close."""
        self._connection.close()

    def mark(self, transaction_id: bytes, database: Database, *, owned: bool) -> None:
        """Store nothing: the connection has no place for a mark."""

    def marked(self) -> Mark | None:
        """Return None."""
        return None

    def idle(self) -> None:
        """Return None: a driver's connection may be back in its pool and in use by another thread."""


class SqliteBorder(PlainBorder):
    """The border over a plain sqlite3.Connection."""

    family = SQLITE
    _connection: sqlite3.Connection

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.memory: dict[str, Any] = {}  # of this border: a sqlite3.Connection has none, and a query is cheap

    def writer(self) -> SqliteBorder:
        """Return this border."""
        return self

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* and return its rows as tuples, with any row factory of the connection."""
        with closing(self._cursor()) as cursor:
            return [tuple(row) for row in cursor.execute(sql, dict(values))]

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return the number of rows."""
        with closing(self._cursor()) as cursor:
            return cursor.execute(sql, dict(values)).rowcount

    quick_rows = rows
    quick_change = change

    def open_at_driver(self) -> bool:
        """Return SQLite's own state."""
        return self._connection.in_transaction

    is_surely_open = open_at_driver

    def is_autocommit(self) -> bool:
        """Return the mode of the driver."""
        return sqlite_autocommit(self._connection)

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and nothing was begun."""
        return self.is_autocommit() and not self._connection.in_transaction

    def is_open(self) -> bool:
        """Return whether any transaction is open; a closed connection has none."""
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:
            return False

    def rollback(self) -> None:
        """Roll back, also a transaction begun by hand under autocommit."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor
