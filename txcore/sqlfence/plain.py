"""The border over plain driver connections: sqlite3.Connection and psycopg.Connection."""

from __future__ import annotations

import functools
import re
import sqlite3
from typing import Any

from txcore.sqlfence.border import POSTGRESQL, SQLITE, Mark, Row, Values
from txcore.sqlfence.drivers import autocommit_at_driver, open_at_driver, surely_open_at_driver


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

    def begin(self) -> None:
        """Leave it to the driver, which begins with the first statement."""

    quick_rows = rows
    quick_change = change

    def outside(self, sql: str) -> list[Row]:
        """Run *sql*; the driver begins transactions only for statements that write rows."""
        return self.rows(sql, {})

    def open_at_driver(self) -> bool | None:
        """Return SQLite's own state."""
        return self._connection.in_transaction

    def is_surely_open(self) -> bool:
        """Return SQLite's own state."""
        return self._connection.in_transaction

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and nothing was begun."""
        return bool(autocommit_at_driver(self._connection)) and not self._connection.in_transaction

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

    def begin(self) -> None:
        """Leave it to the driver, which begins with the first statement."""

    def quick_rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* without looking whether it has rows."""
        found: list[Row] = self._cursor().execute(_percent_style(sql), values).fetchall()
        return found

    quick_change = change

    def outside(self, sql: str) -> list[Row]:
        """Run *sql* like any other."""
        return self.rows(sql, {})

    def open_at_driver(self) -> bool | None:
        """Return the protocol's own transaction status."""
        return open_at_driver(self._connection)

    def is_surely_open(self) -> bool:
        """Return whether the server's last answer said so."""
        return surely_open_at_driver(self._connection)

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and nothing was begun.

        Statements queued in a pipeline have no answer yet; leaving an inner pipeline waits for them. Without a BEGIN
        the server commits them there.
        """
        connection = self._connection
        if not connection.autocommit:
            return False
        if connection.pgconn.pipeline_status:
            with connection.pipeline():
                pass
        return not self.is_surely_open()

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


@functools.lru_cache(maxsize=512)
def _percent_style(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)
