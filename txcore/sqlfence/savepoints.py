"""Savepoints opened by statement, as SQLAlchemy's own report does not contain them.

PostgreSQL shows in a row whether it was written in a savepoint. MariaDB, MySQL and SQLite do not, so statements on
SQLAlchemy connections are observed on their way to the driver. Statements on a plain driver connection are not seen.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

ANCHOR_PREFIX: Final = "txcore_"
"""Start of the names of the fence's own savepoints, which are not reported."""
_KEY: Final = "txcore_savepoints"
_STATEMENT: Final = re.compile(
    r"\s*(SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(\S+?)\s*;?\s*",
    re.IGNORECASE,
)


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
