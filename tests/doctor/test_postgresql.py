"""PostgreSQL: each check is broken on a real server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from txcore_conformance import servers

import txcore
from txcore.doctor import postgresql as doctor_postgresql
from txcore.doctor.database_checks import database_examination
from txcore.findings import Level, examine


@pytest.fixture
def url(postgresql_server, execute):
    """A database with the fence's tables and a bound on idle transactions."""
    url = postgresql_server.fresh_database()
    engine = create_engine(url)
    txcore.SqlFence(engine).create()
    engine.dispose()
    execute(url, f"ALTER DATABASE {name_of(url)} SET idle_in_transaction_session_timeout = '60s'")
    return url


def name_of(url):
    return url.rpartition("/")[2]


def test_all_is_well(url):
    """A server with the durable settings gets only OK lines, and no rows remain."""
    examination = database_examination(url)
    report = examine(examination)
    examination.close()
    assert [line for line in report.lines if line.finding.level is not Level.OK] == []
    assert (len(report.lines), report.skipped) == (len(doctor_postgresql.CHECKS), ())
    engine = create_engine(url)
    assert txcore.SqlFence(engine).stats().states == {}
    engine.dispose()


@pytest.mark.breaks("postgresql.version")
def test_old_server(url, database_line, monkeypatch):
    """The doctor fails on a server older than the fence supports, and warns about one without fixes."""
    line = database_line(url)
    line("OK", "PostgreSQL 1")
    monkeypatch.setattr(doctor_postgresql, "VERSION_KEPT", "90")
    line("WARN", "gets no fixes any more", "upgrade to 90")
    monkeypatch.setattr(doctor_postgresql, "VERSION_OLDEST", "80")
    line("FAIL", "older than 80")


@pytest.mark.breaks("postgresql.tables")
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE txcore_tx", ["txcore_tx does not exist", "txcore fence create"]),
        ("DROP TABLE txcore_tx_meta", ["txcore_tx_meta does not exist", "txcore fence create"]),
        ("ALTER TABLE txcore_tx DROP COLUMN checks", ["lacks checks"]),
        ("ALTER TABLE txcore_tx DROP CONSTRAINT txcore_tx_pkey", ["primary key"]),
        ("ALTER TABLE txcore_tx ALTER transaction_id TYPE text USING transaction_id::text", ["is TEXT, not UUID"]),
        ("DELETE FROM txcore_tx_meta", ["has 0 rows"]),
        ("UPDATE txcore_tx_meta SET schema_version = 7", ["schema version 7"]),
    ],
)
def test_tables(url, database_line, execute, statement, words):
    """The doctor fails on a missing, foreign or changed table, and names the difference."""
    line = database_line(url)
    line("OK")
    execute(url, statement)
    line("FAIL", *words)


@pytest.mark.breaks("postgresql.rights")
def test_missing_right(url, database_line, execute):
    """The doctor names the refused right with its GRANT."""
    role = f"service_{name_of(url)}"
    execute(url, f"CREATE ROLE {role} LOGIN")
    execute(url, f"GRANT SELECT, INSERT ON txcore_tx TO {role}")
    execute(url, f"GRANT SELECT, UPDATE ON txcore_tx_meta TO {role}")
    line = database_line(url.replace("txcore@", f"{role}@"))
    line("FAIL", "a producer's withdrawal is refused", "permission denied", "UPDATE, DELETE ON txcore_tx; GRANT", role)
    execute(url, f"GRANT UPDATE, DELETE ON txcore_tx TO {role}")
    line("OK")
    execute(url, f"REVOKE ALL ON txcore_tx_meta FROM {role}")
    line("FAIL", "reading the horizon is refused")


@pytest.fixture(scope="module")
def careless_url():
    """A server without fsync and full_page_writes."""
    try:
        server = servers.postgresql()
    except servers.ServerUnavailableError as error:
        pytest.skip(str(error))
    yield server.url
    server.remove()


@pytest.mark.breaks("postgresql.fsync")
def test_fsync(url, careless_url, database_line):
    """The doctor fails on a server that does not sync, because it can lose commits."""
    database_line(url)("OK")
    database_line(careless_url)("FAIL", "fsync is off", "ALTER SYSTEM SET fsync = on")


@pytest.mark.breaks("postgresql.full-page-writes")
def test_full_page_writes(url, careless_url, database_line):
    """The doctor fails on a server that does not repair torn pages."""
    database_line(url)("OK")
    database_line(careless_url)("FAIL", "full_page_writes is off", "ALTER SYSTEM SET full_page_writes = on")


@pytest.mark.breaks("postgresql.synchronous-commit")
def test_synchronous_commit(url, database_line, execute):
    """The doctor warns, because the fence turns the setting on for its own transactions."""
    line = database_line(url)
    line("OK")
    execute(url, f"ALTER DATABASE {name_of(url)} SET synchronous_commit = off")
    line("WARN", "synchronous_commit is off", "ALTER ROLE txcore SET synchronous_commit = on")


@pytest.mark.breaks("postgresql.standby")
def test_asynchronous_standby(url, postgresql_server, database_line, tmp_path, eventually, execute):
    """The doctor fails on an asynchronous standby, because a failover to it could lose a decision."""
    line = database_line(url)
    line("OK", "no standby")
    program = next(Path("/usr/lib/postgresql").glob("*/bin/pg_receivewal"), None)
    if program is None:
        pytest.skip("pg_receivewal is not installed")
    port = url.rpartition(":")[2].partition("/")[0]
    place = f"host=127.0.0.1 port={port} user=txcore application_name=standby"
    receiver = subprocess.Popen([program, "-D", tmp_path, "-d", place], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _level(url, "postgresql.standby") is Level.FAIL)
        line("FAIL", "1 standby, none synchronous", "synchronous_standby_names")
    finally:
        receiver.kill()
        receiver.wait()
    eventually(lambda: _level(url, "postgresql.standby") is Level.OK)


@pytest.mark.breaks("postgresql.lock-timeout")
def test_lock_timeout(url, database_line, execute):
    """The doctor warns about a time-out that may end a producer's wait for a check."""
    line = database_line(url)
    line("OK")
    execute(url, f"ALTER DATABASE {name_of(url)} SET statement_timeout = '500ms'")
    line("WARN", "statement_timeout is 500 ms")
    execute(url, f"ALTER DATABASE {name_of(url)} SET lock_timeout = '1s'")
    line("WARN", "lock_timeout is 1000 ms", "SET lock_timeout = 0")


@pytest.mark.breaks("postgresql.idle-timeout")
def test_idle_timeout(url, database_line, execute):
    """The doctor warns if a hanging transaction keeps its connection for hours or for ever."""
    line = database_line(url)
    line("OK", "60 s")
    execute(url, f"ALTER DATABASE {name_of(url)} SET idle_in_transaction_session_timeout = 0")
    line("WARN", "is off", "idle_in_transaction_session_timeout = '1min'")
    execute(url, f"ALTER DATABASE {name_of(url)} SET idle_in_transaction_session_timeout = '5h'")
    line("WARN", "is 5 h")


@pytest.mark.breaks("postgresql.prepared")
def test_prepared_transaction(url, database_line, execute):
    """The doctor warns about a prepared transaction, which holds its rows."""
    line = database_line(url)
    line("OK")
    execute(url, f"BEGIN; CREATE TABLE held (x int); PREPARE TRANSACTION 'left-{name_of(url)}'")
    try:
        line("WARN", "1 prepared transaction,", "ROLLBACK PREPARED")
    finally:
        execute(url, f"ROLLBACK PREPARED 'left-{name_of(url)}'")


@pytest.mark.breaks("postgresql.clock")
@pytest.mark.parametrize(("shift_s", "level"), [(0.2, "OK"), (5, "WARN"), (-5, "WARN"), (600, "FAIL")])
def test_clock(url, database_line, wrong_clock, shift_s, level):
    """The doctor compares the server's clock with this machine's, and accepts small differences."""
    database_line(url, clock=wrong_clock(shift_s))(level)


def _level(url, name):
    examination = database_examination(url)
    try:
        return next(line.finding.level for line in examine(examination).lines if line.name == name)
    finally:
        examination.close()


@pytest.mark.breaks("postgresql.message-table")
def test_message_table(url, expect_message_table):
    """The check of the message table holds for PostgreSQL."""
    expect_message_table(url)
