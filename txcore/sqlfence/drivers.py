"""The transaction's state in a driver's own connection: the only module that looks inside drivers."""

from __future__ import annotations

import sys
from typing import Any, Final

IDLE: Final = 0
IN_TRANSACTION: Final = 2
"""libpq's status between statements of a transaction block; with 1 answers are pending, with 3 it has failed."""


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
