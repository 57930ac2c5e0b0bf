"""The statements for a family of databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txcore.sqlfence.border import MYSQL, POSTGRESQL
from txcore.sqlfence.connections import family_of
from txcore.sqlfence.mysql import MySQL
from txcore.sqlfence.postgresql import PostgreSQL
from txcore.sqlfence.sqlite import SQLite

if TYPE_CHECKING:
    from txcore.sqlfence.dialects import Dialect
    from txcore.sqlfence.schema import Tables


def dialect_of(name: str, tables: Tables, statement_timeout_s: float = 10.0) -> Dialect:
    """Return the statements for the database of a SQLAlchemy dialect's *name*.

    Args:
        statement_timeout_s: Longest time of a producer's insert on PostgreSQL.

    Raises:
        FenceMisuseError: a database that the fence does not support.
    """
    family = family_of(name)
    if family == POSTGRESQL:
        return PostgreSQL(tables, statement_timeout_s)
    return MySQL(tables) if family == MYSQL else SQLite(tables)
