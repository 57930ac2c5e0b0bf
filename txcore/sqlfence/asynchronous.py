"""SQLAlchemy's asynchronous classes, or classes without instances where it has none.

Since 2.1, SQLAlchemy no longer installs greenlet by itself, and refuses to import its asyncio package without it:
then no program can have an asynchronous engine, and the synchronous ones must continue to work.

Source: SQLAlchemy documentation, "Asyncio Platform Installation Notes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
else:
    try:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
    except ImportError:

        class AsyncEngine:
            """Replaces each of SQLAlchemy's asynchronous classes."""

        AsyncConnection = AsyncSession = async_scoped_session = AsyncEngine


HAS_ASYNCIO: Final = AsyncEngine.__module__ != __name__

__all__ = ["HAS_ASYNCIO", "AsyncConnection", "AsyncEngine", "AsyncSession", "async_scoped_session"]
