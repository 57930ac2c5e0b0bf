"""Failures of the database, in the fence's words: the only module that knows drivers' errors."""

from __future__ import annotations

import enum
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TEXT_MAX: Final = 300


class Cause(enum.Enum):
    """Kinds of failure that the fence treats differently."""

    DUPLICATE = "the row exists already"
    LOCKED = "a lock was not free in time"
    COLLISION = "the database aborted the transaction; a retry may help"
    READ_ONLY = "the database accepts no writes (a standby?)"
    POOL = "no connection of the pool was free in time"
    LOST = "the connection was lost or could not be made"
    NO_TABLE = "the fence table is missing, or a newer table beside it: run `txcore fence create` or your migrations"
    OLD_TABLE = "a table of the fence lacks columns; `txcore doctor --database` names them"
    COLUMN_THERE = "the column exists already"
    OTHER = "the database refused"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure's cause, the database's own code, and a text that holds no password."""

    cause: Cause
    code: str
    text: str

    @property
    def is_undone(self) -> bool:
        """Whether the database's code, also of a COMMIT, reports that it has rolled the whole transaction back."""
        return self.code in _UNDONE

    def __str__(self) -> str:
        """Return one line of text."""
        code = f" ({self.code})" if self.code else ""
        return f"{self.cause.value}{code}: {self.text}"


_UNDONE: Final = frozenset(
    {
        # PostgreSQL, "Error Codes", class 40 without 40003 (completion unknown), and constraints checked at COMMIT.
        *("40000", "40001", "40002", "40P01", "23000", "23001", "23502", "23503", "23505", "23514", "23P01"),
        # MariaDB and MySQL: a deadlock rolls the whole transaction back, also at COMMIT (Galera's certification);
        # 3101: a plugin has rolled it back at COMMIT (Group Replication). Not 1205, which undoes one statement.
        *("1213", "3101"),
    }
)
_SQLSTATES: Final = {
    "23505": Cause.DUPLICATE,
    "55P03": Cause.LOCKED,
    "57014": Cause.LOCKED,
    "40001": Cause.COLLISION,
    "40P01": Cause.COLLISION,
    "25006": Cause.READ_ONLY,
    "42P01": Cause.NO_TABLE,
    "42703": Cause.OLD_TABLE,
    "3F000": Cause.NO_TABLE,
    "57P01": Cause.LOST,
    "57P02": Cause.LOST,
    "57P03": Cause.LOST,
}
_MYSQL_NUMBERS: Final = {
    1062: Cause.DUPLICATE,
    1205: Cause.LOCKED,
    3572: Cause.LOCKED,
    1213: Cause.COLLISION,
    1020: Cause.COLLISION,
    1290: Cause.READ_ONLY,
    1792: Cause.READ_ONLY,
    1836: Cause.READ_ONLY,
    1146: Cause.NO_TABLE,
    1054: Cause.OLD_TABLE,
    1060: Cause.COLUMN_THERE,
    1053: Cause.LOST,
    1927: Cause.LOST,
}
_SQLITE_CODES: Final = {
    sqlite3.SQLITE_BUSY: Cause.LOCKED,
    sqlite3.SQLITE_LOCKED: Cause.LOCKED,
    sqlite3.SQLITE_READONLY: Cause.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Cause.LOST,
    sqlite3.SQLITE_IOERR: Cause.LOST,
}
_SQLITE_DUPLICATES: Final = {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}


def failure_of(error: BaseException, secret: str | None = None) -> Failure:
    """Return the failure that *error*, raised by SQLAlchemy or a driver, reports.

    Args:
        secret: The password in use, removed from the text if the driver repeats it.
    """
    driver_error: Any = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    arguments: Sequence[Any] = getattr(driver_error, "args", ())
    said = arguments[1] if len(arguments) > 1 and isinstance(arguments[0], int) else driver_error
    text = (str(said) or type(driver_error).__name__).splitlines()[0]
    if secret:
        text = text.replace(secret, "***")
    cause, code = _classify(driver_error)
    if cause is Cause.OTHER and _is_lost(error, driver_error):
        cause = Cause.LOST
    return Failure(cause, code, text[:_TEXT_MAX])


def _classify(error: Any) -> tuple[Cause, str]:
    if isinstance(error, PoolTimeoutError):
        return Cause.POOL, ""
    if isinstance(error, sqlite3.Error):
        return _classify_sqlite(error)
    number = error.args[0] if getattr(error, "args", ()) else None
    if isinstance(number, int):  # before the state, which pymysql has too, but coarser
        lost = number == 0 or 2000 <= number < 3000  # the client library's own numbers
        return (Cause.LOST if lost else _MYSQL_NUMBERS.get(number, Cause.OTHER)), str(number)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        if state.startswith("08"):
            return Cause.LOST, state
        return _SQLSTATES.get(state, Cause.OTHER), state
    return Cause.OTHER, ""


def _classify_sqlite(error: sqlite3.Error) -> tuple[Cause, str]:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return Cause.OTHER, ""
    if code in _SQLITE_DUPLICATES:
        return Cause.DUPLICATE, error.sqlite_errorname
    if str(error).startswith("no such table"):
        return Cause.NO_TABLE, error.sqlite_errorname
    if "no such column" in str(error) or "has no column named" in str(error):
        return Cause.OLD_TABLE, error.sqlite_errorname
    return _SQLITE_CODES.get(code & 0xFF, Cause.OTHER), error.sqlite_errorname


def _is_lost(error: BaseException, driver_error: Any) -> bool:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    # psycopg reports a broken connection as an OperationalError without a state.
    return type(driver_error).__name__ in {"OperationalError", "InterfaceError"} and not getattr(
        driver_error, "sqlstate", None
    )


def unless(cause: Cause, action: Callable[[], object]) -> bool:
    """Run *action*; return False when it failed by *cause*. Other errors of the database are raised unchanged."""
    try:
        action()
    except Exception as error:
        if failure_of(error).cause is not cause:
            raise
        return False
    return True
