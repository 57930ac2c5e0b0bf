"""An SQLite database with a fence: each check is broken on a real file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool

import txcore
from txcore.doctor import sql as doctor_sql
from txcore.doctor import sqlite as doctor_sqlite
from txcore.doctor.database_checks import database_examination
from txcore.findings import Level, examine


@pytest.fixture
def path(tmp_path):
    """A file with the fence's tables, in WAL mode."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    engine = create_engine(f"sqlite:///{path}")
    txcore.SqlFence(engine).create()
    engine.dispose()
    return path


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
def engine_with(url):
    """A program's own engine that sets a pragma on each connection."""
    engines = []

    def make(pragma):
        engine = create_engine(url, poolclass=NullPool)
        event.listen(engine, "connect", lambda connection, _record: connection.execute(f"PRAGMA {pragma}"))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.dispose()


def test_all_is_well(url, path):
    """Each line is OK, and the doctor does not change the file."""
    before = path.read_bytes()
    examination = database_examination(url)
    report = examine(examination)
    examination.close()
    assert [line for line in report.lines if line.finding.level is not Level.OK] == []
    assert (len(report.lines), report.skipped) == (len(doctor_sqlite.CHECKS), ())
    assert before == path.read_bytes()


@pytest.mark.breaks("sqlite-fence.version")
def test_old_library(url, database_line, monkeypatch):
    """The doctor fails on a library older than the fence supports."""
    line = database_line(url)
    line("OK")
    monkeypatch.setattr(doctor_sqlite, "VERSION_OLDEST", "90")
    line("FAIL", "older than 90")


@pytest.mark.breaks("sqlite-fence.tables")
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE txcore_tx", ["txcore_tx does not exist", "txcore fence create"]),
        ("DROP TABLE txcore_tx_meta", ["txcore_tx_meta does not exist"]),
        ("ALTER TABLE txcore_tx DROP COLUMN checks", ["lacks checks"]),
        ("INSERT INTO txcore_tx_meta (schema_version, pruned_below) VALUES (1, x'00')", None),
        ("UPDATE txcore_tx_meta SET schema_version = 7", ["schema version 7"]),
    ],
)
def test_tables(url, database_line, execute, statement, words):
    """The doctor fails on a missing and on a changed table, and names the difference."""
    line = database_line(url)
    line("OK")
    if words is None:  # the database itself refuses a second row
        with pytest.raises(Exception, match="CHECK constraint"):
            execute(url, statement)
        return
    execute(url, statement)
    line("FAIL", *words)


@pytest.mark.breaks("sqlite-fence.rights")
def test_locked_and_read_only(url, path, database_line, monkeypatch):
    """The doctor warns about another program's open transaction, and fails on a trigger that refuses."""
    monkeypatch.setattr(doctor_sql, "LOCK_TIMEOUT_S", 0.05)
    line = database_line(url)
    line("OK")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        line("WARN", "is refused", "a lock was not free")
        holder.execute("ROLLBACK")
        holder.execute("CREATE TRIGGER no BEFORE DELETE ON txcore_tx BEGIN SELECT raise(ABORT, 'kept for ever'); END")
    line("FAIL", "a producer's withdrawal is refused", "kept for ever")


@pytest.mark.breaks("sqlite-fence.rights")
def test_read_only_database(database_line, engine_with):
    """The doctor fails on a connection that may only read."""
    database_line(engine_with("query_only = ON"))("FAIL", "accepts no writes", "primary server")


@pytest.mark.breaks("sqlite-fence.journal")
def test_journal(url, path, database_line, engine_with):
    """The doctor warns about a file without WAL, and fails on a journal in memory."""
    line = database_line(url)
    line("OK")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    line("WARN", "journal_mode is delete", "PRAGMA journal_mode = WAL")
    database_line(engine_with("journal_mode = MEMORY"))("FAIL", "journal_mode is memory")


@pytest.mark.breaks("sqlite-fence.synchronous")
def test_synchronous(url, database_line, engine_with):
    """The doctor fails if the program's own engine can lose commits."""
    database_line(url)("OK")
    database_line(engine_with("synchronous = NORMAL"))("FAIL", "synchronous is NORMAL", "PRAGMA synchronous = FULL")


@pytest.mark.breaks("sqlite-fence.locking")
def test_locking(url, database_line, engine_with):
    """The doctor fails on an engine that locks the file for itself."""
    database_line(url)("OK")
    database_line(engine_with("locking_mode = EXCLUSIVE"))("FAIL", "locking_mode is exclusive")


@pytest.mark.breaks("sqlite-fence.folder")
def test_folder(url, path, database_line, monkeypatch):
    """The doctor fails if the folder is not writable, because the journal is next to the file."""
    line = database_line(url)
    line("OK")
    path.parent.chmod(0o500)
    if os.geteuid() == 0:  # root may write everywhere, so judge by the mode bits
        monkeypatch.setattr(doctor_sqlite.os, "access", lambda place, _mode: bool(place.stat().st_mode & 0o200))
    try:
        line("FAIL", f"{path.parent} is not writable", "chmod u+w")
    finally:
        path.parent.chmod(0o700)


@pytest.mark.breaks("sqlite-fence.message-table")
def test_message_table(url, expect_message_table):
    """The check of the message table holds for SQLite."""
    expect_message_table(url)
