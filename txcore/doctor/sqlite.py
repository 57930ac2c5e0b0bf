"""The doctor's checks of an SQLite database with a fence.

Source: SQLite documentation of PRAGMA synchronous and journal_mode, "Write-Ahead Logging", and PRAGMA locking_mode.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from txcore.doctor.sql import MESSAGE_TABLE, DatabaseSubject, message_table, rights, tables, version_check
from txcore.findings import Check, Finding, fail, ok, warn

VERSION_OLDEST: Final = "3.24"
VERSION_KEPT: Final = "3.31"
FULL: Final = 2
NAMES: Final = ("OFF", "NORMAL", "FULL", "EXTRA")


def _version(subject: DatabaseSubject) -> Finding:
    return version_check(str(subject.ask("SELECT sqlite_version()")[0]), VERSION_OLDEST, VERSION_KEPT, "SQLite")


def _journal(subject: DatabaseSubject) -> Finding:
    mode = str(subject.ask("PRAGMA journal_mode")[0]).lower()
    if mode == "wal":
        return ok("journal_mode is wal")
    if mode in {"off", "memory"}:
        return fail(f"journal_mode is {mode}: a crash would break the file", "PRAGMA journal_mode = WAL;")
    return warn(
        f"journal_mode is {mode}: readers block writers, and checks wait for both", "PRAGMA journal_mode = WAL;"
    )


def _synchronous(subject: DatabaseSubject) -> Finding:
    value = int(subject.ask("PRAGMA synchronous")[0])
    if value >= FULL:
        return ok(f"synchronous is {NAMES[min(value, len(NAMES) - 1)]} on a new connection")
    return fail(
        f"synchronous is {NAMES[value]} on a new connection: a power failure undoes commits whose messages are out; "
        "the fence's own transactions set FULL, your own connections are refused",
        "PRAGMA synchronous = FULL; when a connection is made",
    )


def _locking(subject: DatabaseSubject) -> Finding:
    mode = str(subject.ask("PRAGMA locking_mode")[0]).lower()
    if mode == "normal":
        return ok("locking_mode is normal: checks and other processes reach the file")
    text = f"locking_mode is {mode} on a new connection: no other process, so no check, reaches the file"
    return fail(text, "PRAGMA locking_mode = NORMAL; when a connection is made")


def _folder(subject: DatabaseSubject) -> Finding:
    path = Path(str(subject.ask("SELECT file FROM pragma_database_list WHERE name = 'main'")[0]))
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            return fail(f"{place} is not writable for this user: nothing can be fenced", f"chmod u+w {place}")
    return ok("file and folder are writable")


CHECKS: Final = (
    Check("sqlite-fence.version", "the library is new enough", _version),
    Check("sqlite-fence.tables", "the fence's tables are there, as this version makes them", tables),
    Check("sqlite-fence.rights", "producer, check and prune may use them", rights, needs="sqlite-fence.tables"),
    Check("sqlite-fence.message-table", MESSAGE_TABLE, message_table, needs="sqlite-fence.rights"),
    Check("sqlite-fence.journal", "journal_mode is WAL", _journal),
    Check("sqlite-fence.synchronous", "synchronous is FULL", _synchronous),
    Check("sqlite-fence.locking", "locking_mode is normal", _locking),
    Check("sqlite-fence.folder", "file and folder are writable", _folder),
)
