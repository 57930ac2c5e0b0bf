"""MariaDB: each check is broken on a real server, and repaired."""

from __future__ import annotations

import struct

import pymysql
import pytest
from sqlalchemy import create_engine, make_url
from txcore_conformance import servers

import txcore
from txcore.doctor import mysql as doctor_mysql
from txcore.doctor.database_checks import database_examination
from txcore.findings import Level, examine


@pytest.fixture
def url(mariadb_server):
    """A database with the fence's tables."""
    url = mariadb_server.fresh_database()
    engine = create_engine(url)
    txcore.SqlFence(engine).create()
    engine.dispose()
    return url


def name_of(url):
    return url.rpartition("/")[2]


def test_all_is_well(url):
    """A server with the durable settings gets only OK lines, and no rows remain."""
    examination = database_examination(url)
    report = examine(examination)
    examination.close()
    assert [line for line in report.lines if line.finding.level is not Level.OK] == []
    assert (len(report.lines), report.skipped) == (len(doctor_mysql.CHECKS), ())
    engine = create_engine(url)
    assert txcore.SqlFence(engine).stats().states == {}
    engine.dispose()


@pytest.mark.breaks("mysql.version")
def test_old_server(url, database_line, monkeypatch):
    """The doctor fails on a server older than the fence supports."""
    line = database_line(url)
    line("OK", "MariaDB")
    monkeypatch.setattr(doctor_mysql, "MARIADB_OLDEST", "90")
    line("FAIL", "older than 90")


@pytest.mark.breaks("mysql.tables")
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE txcore_tx", ["txcore_tx does not exist", "txcore fence create"]),
        ("ALTER TABLE txcore_tx DROP COLUMN checks", ["lacks checks"]),
        ("ALTER TABLE txcore_tx MODIFY transaction_id BINARY(15) NOT NULL", ["is BINARY(15), not BINARY(16)"]),
        ("ALTER TABLE txcore_tx MODIFY transaction_id VARBINARY(40) NOT NULL", ["not BINARY(16)", "collide"]),
        ("ALTER TABLE txcore_tx DROP PRIMARY KEY, ADD PRIMARY KEY (transaction_id, state)", ["primary key"]),
    ],
)
def test_tables(url, database_line, execute, statement, words):
    """The doctor fails on a missing and on a changed table, and names the difference."""
    line = database_line(url)
    line("OK")
    execute(url, statement)
    line("FAIL", *words)


@pytest.mark.breaks("mysql.engine")
def test_engine(url, database_line, execute):
    """The doctor fails on a table engine without transactions, whose rows would survive a rollback."""
    line = database_line(url)
    line("OK")
    execute(url, "ALTER TABLE txcore_tx ENGINE=MyISAM")
    line("FAIL", "txcore_tx has engine MyISAM", "ALTER TABLE txcore_tx ENGINE=InnoDB")


@pytest.mark.breaks("mysql.rights")
def test_missing_right(url, database_line, execute):
    """The doctor names the refused right with its GRANT."""
    name = name_of(url)
    user = f"s{name[-12:]}"
    execute(url, f"CREATE USER {user}@'%'")
    execute(url, f"GRANT SELECT, INSERT ON {name}.* TO {user}@'%'")
    line = database_line(url.replace("root@", f"{user}@"))
    line("FAIL", "is refused", "denied", "GRANT SELECT, INSERT, UPDATE, DELETE ON txcore_tx", user)
    execute(url, f"GRANT UPDATE, DELETE ON {name}.* TO {user}@'%'")
    line("OK")


@pytest.mark.breaks("mysql.flush")
def test_flush(url, database_line, execute):
    """The doctor fails if a crash can undo commits."""
    line = database_line(url)
    line("OK")
    execute(url, "SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        line("FAIL", "innodb_flush_log_at_trx_commit is 2", "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    finally:
        execute(url, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.breaks("mysql.flush-method")
def test_flush_method(url, database_line):
    """The doctor fails on a server that never syncs its files."""
    database_line(url)("OK")
    try:
        careless = servers.mariadb(**{"innodb-flush-method": "nosync", "innodb-doublewrite": "ON"})
    except servers.ServerUnavailableError as error:
        pytest.skip(str(error))
    try:
        database_line(careless.url)("FAIL", "innodb_flush_method is nosync", "innodb_flush_method = O_DIRECT")
    finally:
        careless.remove()


@pytest.mark.breaks("mysql.binary-log")
def test_binary_log(url, database_line, execute):
    """The doctor fails if the binary log is not synced, because recovery rolls back the transactions that it lost."""
    line = database_line(url)
    line("OK", "sync_binlog is 1")
    execute(url, "SET GLOBAL sync_binlog = 0")
    try:
        line("FAIL", "sync_binlog is 0", "SET GLOBAL sync_binlog = 1")
    finally:
        execute(url, "SET GLOBAL sync_binlog = 1")


@pytest.mark.breaks("mysql.primary")
def test_replica(url, database_line, execute):
    """The doctor fails on a replica, which accepts no writes."""
    line = database_line(url)
    line("OK", "0 replicas")
    execute(url, "SET GLOBAL read_only = 1")
    try:
        line("FAIL", "is a replica", "name the primary")
    finally:
        execute(url, "SET GLOBAL read_only = 0")


@pytest.mark.breaks("mysql.primary")
def test_asynchronous_replica(url, database_line, execute, eventually):
    """The doctor fails on an asynchronous replica, because a failover to it could lose a decision."""
    line = database_line(url)
    place = make_url(url)
    replica = pymysql.connect(host=place.host, port=place.port, user=place.username)
    # The first packet of a replica: COM_REGISTER_SLAVE with id, empty names, port, rank, primary's id.
    replica._execute_command(0x15, struct.pack("<IBBBHII", 77, 0, 0, 0, 3306, 0, 0))
    replica._read_ok_packet()
    try:
        line("FAIL", "1 replica, none semi-synchronous", "rpl_semi_sync_master_enabled")
        execute(url, "SET GLOBAL rpl_semi_sync_master_enabled = 1")
        line("OK", "semi-synchronous")
    finally:
        execute(url, "SET GLOBAL rpl_semi_sync_master_enabled = 0")
        replica.close()


@pytest.mark.breaks("mysql.idle-timeout")
def test_idle_timeout(url, database_line, execute):
    """The doctor warns if a hanging transaction keeps its connection for hours."""
    line = database_line(url)
    line("OK", "60 s")
    execute(url, "SET GLOBAL idle_write_transaction_timeout = 0")
    try:
        line("WARN", "ended after 8 h", "SET GLOBAL idle_write_transaction_timeout = 60")
    finally:
        execute(url, "SET GLOBAL idle_write_transaction_timeout = 60")


@pytest.mark.breaks("mysql.clock")
@pytest.mark.parametrize(("shift_s", "level"), [(0.2, "OK"), (5, "WARN"), (-600, "FAIL")])
def test_clock(url, database_line, wrong_clock, shift_s, level):
    """The doctor compares the server's clock with this machine's, and accepts small differences."""
    database_line(url, clock=wrong_clock(shift_s))(level)


@pytest.mark.breaks("mysql.message-table")
def test_message_table(url, expect_message_table):
    """The check of the message table holds for MariaDB."""
    expect_message_table(url)
