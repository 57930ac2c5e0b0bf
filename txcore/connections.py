"""Types of the database connections that txcore takes, for type checkers: nothing of a database is imported.

They are texts while a program runs, so that annotations may name them without SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

__all__ = ["AsyncDatabaseConnection", "DatabaseConnection"]


class PsycopgConnection(Protocol):
    """A `psycopg.Connection`, recognised by its shape, so that its types are not needed."""

    @property
    def pgconn(self) -> Any:
        """The connection of libpq."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll back the transaction."""


DatabaseConnection: TypeAlias = "Connection | Session | scoped_session[Any] | sqlite3.Connection | PsycopgConnection"
"""A blocking connection; Django's, too, as `connection.connection`."""
AsyncDatabaseConnection: TypeAlias = "AsyncConnection | AsyncSession | async_scoped_session[Any]"
"""An asynchronous connection."""
