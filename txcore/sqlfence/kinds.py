"""Classes of SQLAlchemy's packages that not each program needs: its ORM, and its asyncio package.

An object of a class exists only after the class's package was loaded, so that `isinstance` needs no import. The ORM is
a fifth of the time that it takes to import a fence. The asyncio package cannot be imported where greenlet is missing,
which SQLAlchemy no longer installs by itself since 2.1.

Source: SQLAlchemy documentation, "Asyncio Platform Installation Notes".
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Kinds = tuple[type[Any], ...]
"""Classes for `isinstance`; none where their package is not loaded."""


def sessions() -> Kinds:
    """Return the ORM's Session."""
    return _loaded("sqlalchemy.orm", "Session")


def scoped_sessions() -> Kinds:
    """Return the ORM's scoped_session."""
    return _loaded("sqlalchemy.orm", "scoped_session")


def async_sessions() -> Kinds:
    """Return the AsyncSession."""
    return _loaded("sqlalchemy.ext.asyncio", "AsyncSession")


def async_scoped_sessions() -> Kinds:
    """Return the async_scoped_session."""
    return _loaded("sqlalchemy.ext.asyncio", "async_scoped_session")


def async_connections() -> Kinds:
    """Return every asynchronous class that carries rows."""
    return _loaded("sqlalchemy.ext.asyncio", "AsyncConnection") + async_sessions() + async_scoped_sessions()


def is_async_engine(engine: object) -> TypeGuard[AsyncEngine]:
    """Return whether *engine* is an AsyncEngine."""
    return isinstance(engine, _loaded("sqlalchemy.ext.asyncio", "AsyncEngine"))


def has_asyncio() -> bool:
    """Return whether SQLAlchemy's asyncio package can be imported."""
    return find_spec("greenlet") is not None


def _loaded(package: str, name: str) -> Kinds:
    kind = getattr(sys.modules.get(package), name, None)
    return () if kind is None else (kind,)
