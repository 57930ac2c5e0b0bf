"""Every kind of connection that may carry a fence row or an inbox row, as one border.

SQLAlchemy's Connection and Session, both also asynchronous, sqlite3.Connection and psycopg.Connection. An
asynchronous connection is served by running the same blocking border inside SQLAlchemy's `run_sync`.
"""

from __future__ import annotations

import functools
import operator
import sqlite3
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import UnboundExecutionError

from txcore.errors import FenceMisuseError
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border, Mark, Row, Values, Writer
from txcore.sqlfence.kinds import (
    async_connections,
    async_scoped_sessions,
    async_sessions,
    is_async_engine,
    scoped_sessions,
    sessions,
)
from txcore.sqlfence.plain import SqliteBorder
from txcore.sqlfence.savepoints import open_savepoints
from txcore.sqlfence.writers import DriverWriter, is_psycopg, writer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session

    from txcore.connections import AsyncDatabaseConnection
    from txcore.sqlfence.identity import Database

T = TypeVar("T")

_FAMILIES: Final = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}
_MARK: Final = "_txcore_fence_mark"
_WRITER: Final = "txcore_writer"


class _Ended:
    """In a mark, replaces an ended transaction, which would keep its connection in a cycle of references."""

    is_active = False


class SqlAlchemyBorder:
    """The border over a Connection; that over a Session extends it."""

    def __init__(self, connection: Connection, engine: Engine | AsyncEngine | None) -> None:
        self._holder: Connection | Session = connection
        self._used: Connection | None = connection
        self._engine = engine

    @property
    def family(self) -> str:
        """The family of the dialect."""
        return family_of(self._connection().dialect.name)

    @property
    def home(self) -> Any:
        """The engine."""
        return self._connection().engine

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run *sql*; begins SQLAlchemy's transaction when none is begun."""
        result = self._connection().execute(text(sql), dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []

    def change(self, sql: str, values: Values) -> int:
        """Run *sql* and return the number of rows."""
        return int(self._connection().execute(text(sql), dict(values)).rowcount)

    def begin(self) -> None:
        """Begin like SQLAlchemy's first statement."""
        connection = self._used or self._connection()
        if not connection.in_transaction():
            connection.begin()

    def writer(self) -> Writer:
        """Return the writer in the `info` of the driver's connection, which a reconnection empties."""
        connection = self._used or self._connection()
        pooled = connection.connection
        writer: DriverWriter | None = pooled.info.get(_WRITER)
        if writer is None or writer.dbapi is not pooled.dbapi_connection:
            writer = pooled.info[_WRITER] = writer_of(connection, self.family)
        return writer

    def commits_each_statement(self) -> bool:
        """Return whether autocommit is on and no transaction was opened by hand."""
        writer = self.writer()
        autocommit = writer.is_autocommit()
        if autocommit is None:
            autocommit = self._connection().get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        if not autocommit or writer.open_at_driver():
            return False
        # SQLAlchemy's recipe for SQLite turns the driver's transactions off and begins them by an event.
        self.rows("SELECT 1", {})
        return not writer.open_at_driver()

    def has_known_savepoint(self) -> bool:
        """Return whether begin_nested() or an observed statement has left a savepoint open."""
        connection = self._used or self._connection()
        return (
            self._holder.in_nested_transaction()
            or (connection is not self._holder and connection.in_nested_transaction())
            or bool(open_savepoints(connection))
        )

    def is_open(self) -> bool:
        """Return whether the marked transaction is active; a later one on the same connection does not count."""
        mark = self.marked()
        if mark is None or mark.transaction is None:
            return self._holder.in_transaction()
        is_active = bool(mark.transaction.is_active)
        if not is_active:
            mark.transaction = _Ended
        return is_active

    def commit(self) -> None:
        """Commit SQLAlchemy's transaction."""
        self._holder.commit()

    def rollback(self) -> None:
        """Roll back to the root; a transaction begun by hand under autocommit is rolled back by hand."""
        self._holder.rollback()
        # The writer would reconnect an invalidated Connection, which has nothing to roll back.
        holder = self._holder
        if isinstance(holder, Connection) and not (holder.closed or holder.invalidated):
            writer = self.writer()
            if writer.open_at_driver():
                writer.quick_change("ROLLBACK", {})

    def close(self) -> None:
        """Return the connection to its pool."""
        self._holder.close()
        mark = self.marked()
        if mark is not None:
            mark.transaction = _Ended

    def mark(self, transaction_id: bytes, database: Database, *, owned: bool) -> None:
        """Keep the mark on the object itself: `info` belongs to the pooled connection, which may change under it."""
        carrier = weakref.ref(self._used or self._connection())
        setattr(self._holder, _MARK, Mark(transaction_id, self._holder.get_transaction(), owned, carrier, database))

    def marked(self) -> Mark | None:
        """Return the mark."""
        mark: Mark | None = getattr(self._holder, _MARK, None)
        return mark

    def idle(self) -> SqlAlchemyBorder | None:
        """Return the border over the marked Connection, unless it was returned to its pool or is in use."""
        mark = self.marked()
        carrier: Connection | None = mark.carrier() if mark is not None else None
        if carrier is None or carrier.closed or carrier.invalidated or carrier.in_transaction():
            return None
        border = SqlAlchemyBorder(carrier, self._engine)
        return border if border.writer().open_at_driver() is False else None

    def _connection(self) -> Connection:
        """Return the Connection in use; methods of a producer's path look at `_used` first, which costs no call."""
        assert self._used is not None
        return self._used


class SessionBorder(SqlAlchemyBorder):
    """The border over a Session and the Connection that it works on.

    The Connection is asked for only when it is needed: a Session whose flush has failed returns none any more, but can
    still be rolled back.
    """

    def __init__(self, session: Session, engine: Engine | AsyncEngine | None) -> None:
        self._holder = session
        self._used = None
        self._engine = engine

    def _connection(self) -> Connection:
        if self._used is not None:
            return self._used
        session: Any = self._holder
        try:
            self._used = session.connection()
        except UnboundExecutionError:  # bound per mapper: use the fence's database
            engine = self._engine.sync_engine if is_async_engine(self._engine) else self._engine
            self._used = session.connection(bind_arguments={"bind": engine})
        return self._used


def family_of(dialect_name: str) -> str:
    """Return the family of a SQLAlchemy dialect.

    Raises:
        FenceMisuseError: the fence does not support it.
    """
    family = _FAMILIES.get(dialect_name)
    if family is None:
        raise FenceMisuseError(f"the fence knows postgresql, mysql, mariadb and sqlite, not {dialect_name!r}")
    return family


def border_of(connection: Any, engine: Any = None) -> Border:
    """Return the border over a blocking connection.

    Args:
        engine: The fence's database, for a Session that is not bound to a single database.

    Raises:
        FenceMisuseError: an asynchronous or unknown kind of connection, or of a database without a fence.
    """
    kind: Any = type(connection)  # mypy does not know that classes are hashable
    return _maker_of(kind)(connection, engine)


@functools.lru_cache(maxsize=64)
def _maker_of(kind: type[Any]) -> Callable[[Any, Any], Border]:
    """Return the function that makes the border of a connection of this class and its engine; one lookup per class."""
    if issubclass(kind, scoped_sessions()):
        return lambda connection, engine: SessionBorder(connection(), engine)
    if issubclass(kind, Connection):
        return SqlAlchemyBorder
    if issubclass(kind, sessions()):
        return SessionBorder
    if issubclass(kind, sqlite3.Connection):
        return lambda connection, _: SqliteBorder(connection)
    if is_psycopg(kind):
        from txcore.sqlfence.psycopg3 import PsycopgBorder  # noqa: PLC0415 - needs psycopg

        return lambda connection, _: PsycopgBorder(connection)
    if issubclass(kind, async_connections()):
        raise FenceMisuseError(
            "SqlFence and Inbox take blocking connections, "
            f"not an {kind.__qualname__}: use AsyncSqlFence and AsyncInbox with that"
        )
    raise FenceMisuseError(
        "the fence takes a SQLAlchemy Connection or Session, a sqlite3.Connection or a psycopg.Connection, "
        f"not a {kind.__module__}.{kind.__qualname__}"
    )


def is_async(connection: Any) -> bool:
    """Return whether *connection* is one of SQLAlchemy's asynchronous kinds."""
    kind: Any = type(connection)
    return _is_async_kind(kind)


@functools.lru_cache(maxsize=64)
def _is_async_kind(kind: type[Any]) -> bool:
    return issubclass(kind, async_connections())


async def on_border(
    connection: AsyncDatabaseConnection, action: Callable[[Border], T], engine: AsyncEngine | None = None
) -> T:
    """Run *action* on the border over an asynchronous connection.

    Raises:
        FenceMisuseError: *connection* is not an asynchronous one.
    """
    taken: Any = connection  # a scoped session declares no type of its run_sync
    if not is_async(taken):
        kind = type(taken)
        raise FenceMisuseError(
            "AsyncSqlFence and AsyncInbox take SQLAlchemy's AsyncConnection and AsyncSession, "
            f"not a {kind.__module__}.{kind.__qualname__}: use SqlFence and Inbox with that"
        )
    return cast("T", await taken.run_sync(lambda inner: action(border_of(inner, engine))))


async def on_idle(connection: Any, action: Callable[[Border], T]) -> T | None:
    """Run *action* on the connection that carried the row, if its holder has kept it and it has no open transaction.

    Returns None where that is not certain. Waits for nothing when the connection is a blocking one.
    """
    inner = inner_of(connection)
    border = border_of(inner).idle() if inner is not None else None
    if border is None or not is_async(connection):
        return None if border is None else action(border)
    return cast("T", await connection.run_sync(lambda _: action(border)))


def is_open(connection: Any) -> bool:
    """Return whether the transaction that carries the row is open, without waiting, for every kind."""
    inner = inner_of(connection)
    return inner is not None and border_of(inner).is_open()


def mark_of(connection: Any) -> Mark | None:
    """Return the mark on a SQLAlchemy Connection or Session, without waiting, for every kind."""
    mark: Mark | None = getattr(connection, _MARK, None)
    return mark or getattr(inner_of(connection), _MARK, None)


def inner_of(connection: Any) -> Any:
    """Return the blocking object in an asynchronous kind (None if not connected), or the object itself."""
    kind: Any = type(connection)
    return _opener_of(kind)(connection)


@functools.lru_cache(maxsize=64)
def _opener_of(kind: type[Any]) -> Callable[[Any], Any]:
    """Return the function from a connection of this class to the blocking object in it."""
    if issubclass(kind, async_scoped_sessions()):
        return lambda connection: connection().sync_session
    if issubclass(kind, async_sessions()):
        return operator.attrgetter("sync_session")
    if issubclass(kind, async_connections()):
        return operator.attrgetter("sync_connection")
    return lambda connection: connection
