"""The state of a transaction below SQLAlchemy: the driver's report, and savepoints opened by statement.

The only module that looks inside drivers. Savepoints: PostgreSQL shows them in the row itself. MariaDB, MySQL and
SQLite do not, so statements on SQLAlchemy connections are observed on their way to the driver. Statements on a plain
driver connection are not seen.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

IDLE: Final = 0
IN_TRANSACTION: Final = 2
"""libpq's status between statements of a transaction block; with 1 answers are pending, with 3 it has failed."""
ANCHOR_PREFIX: Final = "txcore_"
_KEY: Final = "txcore_savepoints"
_STATEMENT: Final = re.compile(
    r"\s*(SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(\S+?)\s*;?\s*",
    re.IGNORECASE,
)


def is_psycopg(kind: type[Any]) -> bool:
    """Return whether *kind* is psycopg's blocking connection."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and issubclass(kind, psycopg.Connection)


def open_at_driver(driver: Any) -> bool | None:
    """Return whether the driver reports an open transaction; None when it does not know."""
    if hasattr(driver, "in_transaction"):  # sqlite3, aiosqlite
        return bool(driver.in_transaction)
    info: Any = getattr(driver, "info", None)
    if hasattr(info, "transaction_status"):  # psycopg, psycopg2
        return int(info.transaction_status) != IDLE
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    status = getattr(driver, "server_status", None)
    if isinstance(status, int):  # pymysql and its kin: SERVER_STATUS_IN_TRANS
        return bool(status & 1)
    return None


def surely_open_at_driver(driver: Any) -> bool:
    """Return whether the server's last answer reported an open transaction."""
    info: Any = getattr(driver, "info", None)
    if hasattr(info, "transaction_status"):  # psycopg, psycopg2
        return int(info.transaction_status) == IN_TRANSACTION
    return bool(open_at_driver(driver))


def autocommit_at_driver(driver: Any) -> bool | None:
    """Return whether the driver is in autocommit mode; None when it does not know."""
    mode = getattr(driver, "autocommit", None)
    if hasattr(driver, "in_transaction"):
        # Python 3.12 has `autocommit`; its legacy value -1 and older versions follow `isolation_level`.
        return mode if isinstance(mode, bool) else driver.isolation_level is None
    if isinstance(mode, bool):  # psycopg, psycopg2
        return mode
    status = getattr(driver, "server_status", None)
    if isinstance(status, int):  # pymysql and its kin: SERVER_STATUS_AUTOCOMMIT
        return bool(status & 2)
    return None


def watch_savepoints(engine: Engine) -> None:
    """Observe the statements of *engine*; a second call changes nothing."""
    if not event.contains(engine, "before_cursor_execute", _look):
        event.listen(engine, "before_cursor_execute", _look)


def open_savepoints(connection: Connection) -> tuple[str, ...]:
    """Return the names of observed savepoints that are still open in the transaction of *connection*."""
    kept = connection.info.get(_KEY)
    if kept is None or kept[0] is not connection.get_transaction():
        return ()
    return tuple(kept[1])


def _look(
    connection: Connection, _cursor: Any, statement: str, _parameters: Any, _context: Any, _executemany: Any
) -> None:
    if statement[:1] not in "sSrR \n\t\r":
        return
    found = _STATEMENT.fullmatch(statement)
    if found is None or found[2].startswith(ANCHOR_PREFIX):
        return
    verb, name = found[1][:2].upper(), found[2]
    names = list(open_savepoints(connection))
    if verb == "SA":
        names.append(name)
    elif name in names:  # the newest of that name, and all that came after it, are gone
        place = len(names) - 1 - names[::-1].index(name)
        names = names[: place if verb == "RE" else place + 1]
    connection.info[_KEY] = (connection.get_transaction(), names)


def anchor_name(transaction_id: bytes) -> str:
    """Return the name of the savepoint set right after the row, where a database knows savepoints only by name.

    The savepoint is gone when its transaction has ended (also by a statement that commits unnoticed by the program)
    and after a rollback to a savepoint set before it.
    """
    return f"{ANCHOR_PREFIX}{transaction_id.hex()}"
