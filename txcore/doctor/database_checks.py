"""The doctor's examination of the database with the fence: its opening, and the checks for its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from txcore.clock import Clock, SystemClock
from txcore.doctor import mysql as doctor_mysql
from txcore.doctor import postgresql as doctor_postgresql
from txcore.doctor import sqlite as doctor_sqlite
from txcore.doctor.sql import DatabaseSubject
from txcore.errors import BackendUnavailableError, FenceMisuseError, UsageError
from txcore.findings import Check, Examination
from txcore.message_table import Mode
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE
from txcore.sqlfence.connections import family_of
from txcore.sqlfence.engines import open_engine
from txcore.sqlfence.failures import failure_of
from txcore.sqlfence.families import dialect_of
from txcore.sqlfence.schema import tables_named

CHECKS: Final[dict[str, tuple[Check[DatabaseSubject], ...]]] = {
    POSTGRESQL: doctor_postgresql.CHECKS,
    MYSQL: doctor_mysql.CHECKS,
    SQLITE: doctor_sqlite.CHECKS,
}


def database_examination(
    database: str | Engine,
    *,
    table: str = "txcore_tx",
    mode: Mode = Mode.HALF,
    clock: Clock | None = None,
    undecided: Callable[[], Mapping[bytes, bytes]] = dict,
) -> Examination[DatabaseSubject]:
    """Connect and return the checks of *database*: a URL, or a program's own engine with its settings.

    *undecided* returns the group's undecided halves, and which database each names.

    Raises:
        UsageError: not a database URL, a database without a fence, an asynchronous driver, or no such SQLite file.
        ConfigError: *table* is not a plain name.
        BackendNotInstalledError: the database's driver is missing; the text names the extra.
        BackendUnavailableError: the database cannot be reached, or refuses the credentials.
    """
    engine = database if isinstance(database, Engine) else open_engine(database, "the doctor", _options_of)
    try:
        family = family_of(engine.dialect.name)
    except FenceMisuseError as error:
        raise UsageError(str(error)) from error
    dialect = dialect_of(family, tables_named(table))
    opened = ExitStack()
    if not isinstance(database, Engine):
        opened.callback(engine.dispose)
    try:
        connection = opened.enter_context(engine.connect())
    except Exception as error:
        opened.close()
        raise BackendUnavailableError(
            f"the database cannot be used: {failure_of(error, engine.url.password)}"
        ) from error

    subject = DatabaseSubject(engine, connection, dialect, clock or SystemClock(), mode, undecided)
    return Examination(CHECKS[family], subject, opened.close)


def _options_of(url: URL) -> dict[str, Any]:
    """Return an engine's options; refuse a missing SQLite file, which a connection would make."""
    name = url.database or ""
    if url.get_backend_name() == "sqlite" and not name.startswith("file:"):
        if name in {"", ":memory:"}:
            raise UsageError("an SQLite database in memory cannot carry a fence: name a file")
        if not Path(name).is_file():
            raise UsageError(f"there is no file {name}; nothing was created")
    return {"poolclass": NullPool}
