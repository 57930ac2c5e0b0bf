"""`txcore doctor` on a broker file: checks from outside, which neither create nor change the file.

Source: SQLite documentation, "Write-Ahead Logging" (no network file system; a long reader keeps the log from being
reset), PRAGMA synchronous, PRAGMA quick_check.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.findings import (
    Check,
    Examination,
    Finding,
    Request,
    UntoldError,
    counted,
    fail,
    ok,
    shortened,
    size,
    version_of,
    warn,
)
from txcore_sqlite.options import Address, Options
from txcore_sqlite.store import APPLICATION_ID, JOURNAL_BYTES_MAX, SCHEMA_VERSION

VERSION_OLDEST: Final = "3.35"
"""The oldest version of SQLite with RETURNING, which the backend uses."""
NETWORK_TYPES: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs", "afs"}
)
MEMORY_TYPES: Final = frozenset({"tmpfs", "ramfs"})
FREE_FAIL: Final = 100_000_000
FREE_WARN: Final = 1_000_000_000
FULL_SHARE: Final = 0.8
CHECKED_BYTES_MAX: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SqliteSubject:
    """One broker file; opened for each question, never created."""

    path: Path
    options: Options
    request: Request
    mounts: Path = Path("/proc/mounts")

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """Return the first row of a query.

        Raises:
            UntoldError: SQLite refuses.
        """
        try:
            with closing(self.connect()) as connection:
                return list(connection.execute(sql, values).fetchone() or ())
        except sqlite3.Error as error:
            raise UntoldError(f"SQLite: {error}") from error

    def connect(self) -> sqlite3.Connection:
        """Open the file without creating it."""
        timeout_s = self.options.busy_timeout_s
        return sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, timeout=timeout_s, isolation_level=None)


def sqlite_examination(address: Address, request: Request) -> Examination[SqliteSubject]:
    """Return the checks of the file at *address*, without creating it.

    Raises:
        ConfigError: there is no such file, it is or it is another application's.
        BackendUnavailableError: it cannot be read.
    """
    path, options = address
    subject = SqliteSubject(path, options, request)
    if not path.is_file():
        raise ConfigError(f"there is no broker file {path}; nothing was created", key="url")
    try:
        (application,), (version,) = subject.ask("PRAGMA application_id"), subject.ask("PRAGMA user_version")
    except UntoldError as error:
        raise BackendUnavailableError(f"{path} cannot be read: {error}") from error
    if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
        raise ConfigError(f"{path} is no broker file of this txcore", key="url")
    return Examination(CHECKS, subject, lambda: None)


def _version(_subject: SqliteSubject) -> Finding:
    version = sqlite3.sqlite_version
    if version_of(version) < version_of(VERSION_OLDEST):
        return fail(f"SQLite {version} is older than {VERSION_OLDEST}", "a Python that is built with a newer SQLite")
    return ok(f"SQLite {version}")


def _synchronous(subject: SqliteSubject) -> Finding:
    if subject.options.synchronous == "FULL":
        return ok("each transaction waits for the disk (synchronous=FULL)")
    text = f"synchronous={subject.options.synchronous}: a power failure loses halves that were acknowledged"
    return fail(text, "synchronous=FULL in the backend's URL, of all processes")


def _journal(subject: SqliteSubject) -> Finding:
    (mode,) = subject.ask("PRAGMA journal_mode")
    if mode == "wal":
        return ok("journal_mode is wal")
    text = f"journal_mode is {mode}: it was changed from wal; readers block the writer"
    return fail(text, f"sqlite3 {subject.path} 'PRAGMA journal_mode = WAL', with all processes stopped")


def _file_system(subject: SqliteSubject) -> Finding:
    kind, point = _mount(subject)
    if kind in NETWORK_TYPES:
        text = f"{point} is a {kind} file system: SQLite's locks and shared memory do not work there"
        return fail(text, "a file on a local disk")
    if kind in MEMORY_TYPES:
        return fail(f"{point} is {kind}: a restart of the machine loses everything", "a file on a local disk")
    return ok(f"the file is on {kind}")


def _mount(subject: SqliteSubject) -> tuple[str, str]:
    """Return type and mount point of the file system that holds the file."""
    try:
        lines = subject.mounts.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UntoldError(f"{subject.mounts} cannot be read: {error.strerror}") from error
    best = ("", "")
    for line in lines:
        _, point, kind, *_ = line.split()
        point = point.encode().decode("unicode_escape")  # blanks are written as \040
        if subject.path.resolve().is_relative_to(point) and len(point) >= len(best[1]):
            best = (kind, point)
    return best


def _access(subject: SqliteSubject) -> Finding:
    for place in (subject.path, subject.path.parent):
        if not os.access(place, os.W_OK):
            text = f"{place} is not writable for this user: the write-ahead log is beside the file"
            return fail(text, f"chmod u+w {place}, or chown it")
    return ok("file and folder are writable")


def _lock(subject: SqliteSubject) -> Finding:
    wait_s = subject.options.busy_timeout_s
    try:
        with closing(subject.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        text = f"the write lock was not to be had within {wait_s:g} s ({error}): work is refused meanwhile"
        return fail(text, f"find the process that holds it: fuser {subject.path}; a longer busy_timeout_s in the URL")
    return ok("the write lock is free")


def _integrity(subject: SqliteSubject) -> Finding:
    length = subject.path.stat().st_size
    if length > CHECKED_BYTES_MAX:
        change = f"sqlite3 {subject.path} 'PRAGMA quick_check'"
        raise UntoldError(f"the file has {size(length)}, which takes long to read", change)
    try:
        with closing(subject.connect()) as connection:
            rows = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        rows = [str(error)]
    if rows == ["ok"]:
        return ok("the file is sound (quick_check)")
    change = f"stop everything, copy the file, then: sqlite3 {subject.path} .recover"
    return fail(f"the file is damaged: {shortened(rows)}", change)


def _disk(subject: SqliteSubject) -> Finding:
    free = shutil.disk_usage(subject.path.parent).free
    text = f"{size(free)} are free on its disk"
    if free < FREE_FAIL:
        return fail(f"{text}: halves will be refused soon", "free disk space")
    if free < FREE_WARN:
        return warn(f"{text}, and the file never shrinks", "free disk space, or a page_count_max in the URL")
    return ok(text)


def _log_size(subject: SqliteSubject) -> Finding:
    log = subject.path.with_name(subject.path.name + "-wal")
    length = log.stat().st_size if log.exists() else 0
    if length > 2 * JOURNAL_BYTES_MAX:
        text = f"the write-ahead log has {size(length)}: a long reader keeps it from being reset"
        return warn(text, f"end the reader: fuser {log}")
    return ok(f"the write-ahead log has {size(length)}")


def _room(subject: SqliteSubject) -> Finding:
    bound = subject.options.page_count_max
    (pages,) = subject.ask("PRAGMA page_count")
    if bound and pages > FULL_SHARE * bound:
        text = f"{pages} of {bound} pages are used: at the bound halves and ops are refused"
        return warn(text, f"page_count_max={2 * bound} in the backend's URL")
    return ok(f"{pages} pages are used, of {bound or 'unbounded'}")


def _targets(subject: SqliteSubject) -> Finding:
    if not subject.request.targets:
        raise UntoldError("no target was named", "--target TOPIC, once for each")
    with closing(subject.connect()) as connection:
        known = {name for (name,) in connection.execute("SELECT name FROM topic")}
    missing = [topic for topic in subject.request.targets if topic not in known]
    if not missing:
        return ok(f"{counted(len(subject.request.targets), 'target')} found")
    text = f"targets do not exist: {shortened(missing)}"
    if subject.options.auto_create:
        return warn(f"{text}; a misspelt one will be made as well", "auto_create=false in the URL, once all are there")
    return fail(text, f'txcore.connect(URL).create_topic("{missing[0]}")')


CHECKS: Final = (
    Check("sqlite.version", "the library is new enough", _version),
    Check("sqlite.synchronous", "each transaction waits for the disk", _synchronous),
    Check("sqlite.journal", "journal_mode is WAL", _journal),
    Check("sqlite.file-system", "the file is on a local disk", _file_system),
    Check("sqlite.access", "file and folder are writable", _access),
    Check("sqlite.lock", "the write lock can be had in time", _lock),
    Check("sqlite.integrity", "the file is sound", _integrity),
    Check("sqlite.disk", "the disk has room", _disk),
    Check("sqlite.log-size", "the write-ahead log is reset now and then", _log_size),
    Check("sqlite.room", "page_count_max is not near", _room),
    Check("sqlite.targets", "targets exist", _targets),
)
