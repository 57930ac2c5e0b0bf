"""The border over a plain psycopg.Connection, the writer on one, and a faster path for statements that are run often.

Imported only if psycopg itself is imported.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Generator
from typing import Any, Final

from psycopg import errors, generators
from psycopg.rows import tuple_row

from txcore.sqlfence.border import POSTGRESQL, Row, Values
from txcore.sqlfence.plain import PlainBorder
from txcore.sqlfence.writers import IDLE, IN_TRANSACTION, CursorWriter

_COMMAND_OK: Final = 1
_TUPLES_OK: Final = 2
_memories: Final[weakref.WeakKeyDictionary[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()


class PsycopgWriter(CursorWriter):
    """The writer on psycopg.Connection."""

    def quick_rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* as the statement that psycopg has prepared, if it has."""
        rows = prepared_rows(self._driver, sql, values)
        return super().quick_rows(sql, values) if rows is None else rows

    def open_at_driver(self) -> bool:
        """Return the protocol's own transaction status."""
        return bool(self._driver.pgconn.transaction_status != IDLE)

    def is_surely_open(self) -> bool:
        """Return whether the server's last answer reported an open transaction."""
        return bool(self._driver.pgconn.transaction_status == IN_TRANSACTION)

    def is_autocommit(self) -> bool:
        """Return the mode of the driver."""
        return bool(self._driver.autocommit)


class PsycopgBorder(PlainBorder):
    """The border over a plain psycopg.Connection."""

    family = POSTGRESQL

    @property
    def memory(self) -> dict[str, Any]:
        """A dictionary of the connection's own."""
        return _memories.setdefault(self._connection, {})

    def writer(self) -> PsycopgBorder:
        """Return this border."""
        return self

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* and return its rows as tuples, with any row factory of the connection."""
        with self._cursor() as cursor:
            cursor.execute(_percent_style(sql), dict(values))
            self._await_pipeline()
            return list(cursor.fetchall()) if cursor.description else []

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return the number of rows."""
        with self._cursor() as cursor:
            cursor.execute(_percent_style(sql), dict(values))
            return int(cursor.rowcount)

    def quick_rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql* as the statement that psycopg has prepared, if it has."""
        rows = prepared_rows(self._connection, sql, values)
        return self._cursor().execute(_percent_style(sql), values).fetchall() if rows is None else rows

    quick_change = change

    def open_at_driver(self) -> bool:
        """Return the protocol's own transaction status."""
        return bool(self._connection.pgconn.transaction_status != IDLE)

    def is_surely_open(self) -> bool:
        """Return whether the server's last answer reported an open transaction."""
        return bool(self._connection.pgconn.transaction_status == IN_TRANSACTION)

    def is_autocommit(self) -> bool:
        """Return the mode of the driver."""
        return bool(self._connection.autocommit)

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and nothing was begun.

        Statements queued in a pipeline have no answer yet; leaving an inner pipeline waits for them. Without a BEGIN
        the server commits them there.
        """
        if not self._connection.autocommit:
            return False
        self._await_pipeline()
        return not self.open_at_driver()

    def is_open(self) -> bool:
        """Return whether any transaction is open; a closed connection has none."""
        return not self._connection.closed and bool(self.open_at_driver())

    def rollback(self) -> None:
        """Roll back by statement, because a `with connection.transaction()` block forbids the method."""
        if self.is_open():
            with self._cursor() as cursor:
                cursor.execute("ROLLBACK")

    def _await_pipeline(self) -> None:
        """Wait for the answers to all statements, if the program has them in a pipeline."""
        if self._connection.pgconn.pipeline_status:
            with self._connection.pipeline():
                pass

    def _cursor(self) -> Any:
        return self._connection.cursor(row_factory=tuple_row)


def prepared_rows(connection: Any, sql: str, values: Values) -> list[Row] | None:
    """Return the rows of *sql*, all of their columns text, if psycopg has prepared it; a third of a cursor's cost.

    Most of the cost of a short statement is making a cursor, adapting its parameters and reading its result. psycopg
    prepares frequent statements on the server; from then on this function sends them by their prepared name, with
    psycopg's own waiting, and in one round trip with the BEGIN that psycopg sends first. psycopg alone prepares,
    forgets and deallocates (after a ROLLBACK or DISCARD ALL, and never where the program has disabled preparing).
    Where psycopg has no name, the function returns None and the caller uses a cursor.

    Args:
        connection: A psycopg.Connection.
        values: Strings.

    Raises:
        psycopg.Error: as from a cursor.
    """
    pgconn = connection.pgconn
    is_open = pgconn.transaction_status == IN_TRANSACTION
    if connection.prepare_threshold is None or pgconn.pipeline_status:
        return None
    if not is_open and (connection.autocommit or pgconn.transaction_status != IDLE):
        return None
    statement, names = _numbered(sql)
    try:  # parameters have no type of their own, as psycopg sends strings
        name = connection._prepared._names.get((statement, (0,) * len(names)))  # noqa: SLF001 - see above
        begin = b"" if is_open else connection._get_tx_start_command()  # noqa: SLF001
    except AttributeError:  # a psycopg that keeps them elsewhere
        return None
    if name is None:
        return None
    try:
        parameters = [values[each].encode("ascii") for each in names]
    except UnicodeEncodeError:
        return None
    with connection.lock:
        try:
            result = connection.wait(_answer(pgconn, begin, name, parameters))
        except BaseException:
            connection.close()  # the number of pending answers is unknown
            raise
    if result.status != _TUPLES_OK:
        raise errors.error_from_result(result, encoding=connection.info.encoding)
    columns = range(result.nfields)
    return [tuple([str(result.get_value(row, column), "ascii") for column in columns]) for row in range(result.ntuples)]


def _answer(pgconn: Any, begin: bytes, name: bytes, parameters: list[bytes]) -> Generator[Any, Any, Any]:
    """Run one prepared statement, after *begin*, if any, in the same round trip; returns its result."""
    if not begin:
        pgconn.send_query_prepared(name, parameters)
        (result,) = yield from generators.execute(pgconn)
        return result
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(begin, None)
    pgconn.send_query_prepared(name, parameters)
    pgconn.pipeline_sync()
    (begun,) = yield from generators.execute(pgconn)
    (result,) = yield from generators.fetch_many(pgconn)
    yield from generators.fetch_many(pgconn)  # the answer to the sync
    pgconn.exit_pipeline_mode()
    return result if begun.status == _COMMAND_OK else begun


@functools.lru_cache(maxsize=64)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Return *sql* with numbered parameters, as psycopg names it, and their names in that order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return re.sub(r":(\w+)", number, sql).encode(), tuple(names)


@functools.lru_cache(maxsize=512)
def _percent_style(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)
