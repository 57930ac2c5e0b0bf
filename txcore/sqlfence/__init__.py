"""The fence on SQL: `SqlFence` and `AsyncSqlFence` for PostgreSQL, MariaDB / MySQL and SQLite, through SQLAlchemy 2.

`import txcore` does not need this package; importing it needs the extra `sql`.
"""

from __future__ import annotations

from txcore.errors import BackendNotInstalledError

try:
    import sqlalchemy as _sqlalchemy
except ImportError as error:
    if error.name != "sqlalchemy":
        raise
    raise BackendNotInstalledError("SqlFence", "SQLAlchemy", "sql") from error

from txcore.sqlfence.async_fence import AsyncSqlFence
from txcore.sqlfence.dialects import FenceRow
from txcore.sqlfence.fence import SqlFence
from txcore.sqlfence.fence_table import FenceStats
from txcore.sqlfence.prune import PruneResult

__all__ = ["AsyncSqlFence", "FenceRow", "FenceStats", "PruneResult", "SqlFence"]

del _sqlalchemy
