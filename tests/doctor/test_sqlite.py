"""The SQLite broker: each check is broken on a real file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import txcore_sqlite.doctor as sqlite_doctor

import txcore
from txcore.errors import ConfigError
from txcore.findings import Level, Request, UntoldError, examine
from txcore.registry import open_doctor

GROUP = "orders"


@pytest.fixture
def path(tmp_path, make_group):
    path = tmp_path / "broker.db"
    make_group(f"sqlite:///{path}", GROUP, 2)
    backend = txcore.connect(f"sqlite:///{path}")
    backend.create_topic("mail")
    backend.close().result(5)
    return path


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


def test_all_is_well(url, path):
    """Each line is OK, and the doctor does not change the file."""
    before = path.read_bytes()
    report = examine(open_doctor(url, Request(GROUP, ("mail",))))
    assert [line for line in report.lines if line.finding.level is not Level.OK] == []
    assert len(report.lines) == len(sqlite_doctor.CHECKS)
    assert before == path.read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 100])
def test_file_of_another_kind_is_reported_and_left_alone(tmp_path, content):
    """The doctor neither creates nor changes such a file."""
    path = tmp_path / "other.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Exception, match=r"no broker file|cannot be read") as caught:
        open_doctor(f"sqlite:///{path}", Request(GROUP))
    assert isinstance(caught.value, txcore.TxcoreError)
    assert path.exists() == (content is not None)
    assert content is None or path.read_bytes() == content


def test_another_applications_file_is_refused(tmp_path):
    """The error names the file."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
    with pytest.raises(ConfigError, match=r"shop\.db is no broker file"):
        open_doctor(f"sqlite:///{tmp_path}/shop.db", Request(GROUP))


@pytest.mark.breaks("sqlite.version")
def test_old_library(url, broker_line, monkeypatch):
    """The doctor fails on a library older than the backend supports."""
    line = broker_line(url, GROUP)
    line("OK")
    monkeypatch.setattr(sqlite_doctor, "VERSION_OLDEST", "90")
    line("FAIL", "older than 90")


@pytest.mark.breaks("sqlite.synchronous")
def test_synchronous(url, broker_line):
    """The doctor fails if the URL chooses NORMAL."""
    broker_line(url, GROUP)("OK")
    broker_line(f"{url}?synchronous=NORMAL", GROUP)("FAIL", "a power failure loses halves", "synchronous=FULL")


@pytest.mark.breaks("sqlite.journal")
def test_journal(url, path, broker_line):
    """The doctor fails if another program changed the file's journal mode."""
    line = broker_line(url, GROUP)
    line("OK")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    line("FAIL", "journal_mode is delete", "PRAGMA journal_mode = WAL")


@pytest.mark.breaks("sqlite.file-system")
@pytest.mark.parametrize(
    ("kind", "level", "words"), [("nfs4", "FAIL", "locks"), ("tmpfs", "FAIL", "restart"), ("xfs", "OK", "xfs")]
)
def test_file_system(url, path, tmp_path, kind, level, words):
    """The doctor uses the longest mount point that holds the file; the test writes a table of mounts."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {path.parent} {kind} rw 0 0\n/dev/b {path.parent}2 ext4 rw 0 0\n"
    )
    subject = replace(open_doctor(url, Request(GROUP)).subject, mounts=mounts)
    check = next(check for check in sqlite_doctor.CHECKS if check.name == "sqlite.file-system")
    finding = check.look(subject)
    assert (finding.level, words in finding.text) == (level, True), finding
    with pytest.raises(UntoldError, match="cannot be read"):
        check.look(replace(subject, mounts=tmp_path / "none"))


@pytest.mark.breaks("sqlite.access")
def test_access(url, path, broker_line, monkeypatch):
    """The doctor fails if the folder is not writable, because the log is next to the file."""
    line = broker_line(url, GROUP)
    line("OK")
    path.parent.chmod(0o500)
    if os.geteuid() == 0:  # root may write everywhere, so judge by the mode bits
        monkeypatch.setattr(sqlite_doctor.os, "access", lambda place, _mode: bool(place.stat().st_mode & 0o200))
    try:
        line("FAIL", f"{path.parent} is not writable")
    finally:
        path.parent.chmod(0o700)


@pytest.mark.breaks("sqlite.lock")
def test_lock(url, path, broker_line):
    """The doctor fails if another program's transaction stays open."""
    line = broker_line(f"{url}?busy_timeout_s=0.05", GROUP)
    line("OK")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        line("FAIL", "not to be had within 0.05 s", "fuser")


@pytest.mark.breaks("sqlite.integrity")
def test_integrity(url, path, broker_line, monkeypatch):
    """The doctor fails on damaged bytes, and does not read a large file."""
    line = broker_line(url, GROUP)
    line("OK")
    monkeypatch.setattr(sqlite_doctor, "CHECKED_BYTES_MAX", 1)
    line("WARN", "not known", "takes long", "quick_check")
    monkeypatch.undo()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    line("FAIL", "damaged", ".recover")


@pytest.mark.breaks("sqlite.disk")
def test_disk(url, broker_line, monkeypatch):
    """The doctor warns about a disk that is nearly full, and later fails; the test raises the limits instead."""
    line = broker_line(url, GROUP)
    line("OK", "are free")
    monkeypatch.setattr(sqlite_doctor, "FREE_WARN", 1 << 60)
    line("WARN", "never shrinks")
    monkeypatch.setattr(sqlite_doctor, "FREE_FAIL", 1 << 60)
    line("FAIL", "refused soon")


@pytest.mark.breaks("sqlite.log-size")
def test_log_size(url, path, broker_line, monkeypatch):
    """The doctor warns about a large log, which grows while a reader stays."""
    monkeypatch.setattr(sqlite_doctor, "JOURNAL_BYTES_MAX", 20_000)
    line = broker_line(url, GROUP)
    line("OK")
    with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(path)) as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM topic").fetchone()
        for number in range(20):
            writer.execute("INSERT INTO topic (name) VALUES (?)", (f"t{number}",))
            writer.commit()
        line("WARN", "long reader", "fuser")


@pytest.mark.breaks("sqlite.room")
def test_room(url, broker_line):
    """The doctor warns if the file is near the bound of the URL."""
    broker_line(url, GROUP)("OK")
    broker_line(f"{url}?page_count_max=22", GROUP)("WARN", "of 22 pages are used", "page_count_max=44")


@pytest.mark.breaks("sqlite.targets")
def test_targets(url, broker_line):
    """The doctor warns about missing targets, or fails if the broker would refuse them; it requires a name."""
    broker_line(url, GROUP, targets=("mail",))("OK")
    broker_line(url, GROUP, targets=("mail", "lost"))("WARN", "targets do not exist: lost", "auto_create=false")
    broker_line(f"{url}?auto_create=false", GROUP, targets=("lost",))("FAIL", 'create_topic("lost")')
    broker_line(url, GROUP)("WARN", "no target was named", "--target")
