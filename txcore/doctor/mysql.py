"""The doctor's checks of a MariaDB or MySQL server.

Source: MariaDB documentation of InnoDB system variables, "Group commit for the binary log" (a transaction that the
binary log lost is rolled back by recovery), semisynchronous replication.
"""

from __future__ import annotations

from typing import Any, Final

from txcore.backends.exposure import encryption_finding
from txcore.doctor.sql import MESSAGE_TABLE, DatabaseSubject, clock_check, message_table, rights, tables, version_check
from txcore.findings import Check, Finding, UntoldError, counted, duration, fail, ok, warn

MARIADB_OLDEST: Final = "10.6"
MARIADB_KEPT: Final = "10.11"
MYSQL_OLDEST: Final = "8.0"
MYSQL_KEPT: Final = "8.4"
IDLE_MAX_S: Final = 3_600
NO_SYNC_METHODS: Final = frozenset({"nosync", "littlesync"})


def _variables(subject: DatabaseSubject, *names: str) -> list[Any]:
    """Return global variables; None for one that this server does not have."""
    listed = ", ".join(f"'{name}'" for name in names)
    found = {
        str(row[0]).lower(): row[1]
        for row in subject.ask_all(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    }
    return [found.get(name) for name in names]


def _version(subject: DatabaseSubject) -> Finding:
    version = str(subject.ask("SELECT VERSION()")[0])
    number = version.partition("-")[0]
    if "mariadb" in version.lower():
        return version_check(number, MARIADB_OLDEST, MARIADB_KEPT, "MariaDB")
    return version_check(number, MYSQL_OLDEST, MYSQL_KEPT, "MySQL")


def _engine(subject: DatabaseSubject) -> Finding:
    names = (subject.dialect.tables.fence, subject.dialect.tables.meta)
    others = []
    for name in names:
        schema, _, table = name.rpartition(".")
        place = f"'{schema}'" if schema else "DATABASE()"
        rows = subject.ask_all(
            f"SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {place} AND TABLE_NAME = '{table}'"  # noqa: S608
        )
        if rows and str(rows[0][0]).lower() != "innodb":
            others.append((name, rows[0][0]))
    if others:
        name, engine = others[0]
        text = f"table {name} has engine {engine}, which has no transactions: a rolled back row would stay"
        return fail(text, "; ".join(f"ALTER TABLE {name} ENGINE=InnoDB" for name, _ in others))
    return ok("both tables have engine InnoDB")


def _flush(subject: DatabaseSubject) -> Finding:
    (value,) = _variables(subject, "innodb_flush_log_at_trx_commit")
    if str(value) == "1":
        return ok("innodb_flush_log_at_trx_commit is 1")
    text = f"innodb_flush_log_at_trx_commit is {value}: a crash undoes commits whose messages are out; producers refuse"
    return fail(text, "SET GLOBAL innodb_flush_log_at_trx_commit = 1; and the same line under [mysqld]")


def _flush_method(subject: DatabaseSubject) -> Finding:
    method, doublewrite = _variables(subject, "innodb_flush_method", "innodb_doublewrite")
    if str(method).lower() in NO_SYNC_METHODS:
        text = f"innodb_flush_method is {method}: a power failure undoes commits whose messages are out"
        return fail(text, "innodb_flush_method = O_DIRECT under [mysqld], and restart")
    if str(doublewrite).lower() in {"off", "0"}:
        text = "innodb_doublewrite is off: a power failure may leave torn pages that recovery cannot mend"
        return fail(text, "innodb_doublewrite = ON under [mysqld], and restart")
    return ok(f"innodb_flush_method is {method}, innodb_doublewrite is {doublewrite}")


def _binary_log(subject: DatabaseSubject) -> Finding:
    is_on, synced = _variables(subject, "log_bin", "sync_binlog")
    if str(is_on).lower() in {"off", "0"}:
        return ok("no binary log is written, so recovery does not depend on it")
    if str(synced) == "1":
        return ok("sync_binlog is 1")
    text = f"sync_binlog is {synced}: recovery after a power failure rolls back commits that the binary log lost"
    return fail(text, "SET GLOBAL sync_binlog = 1; and the same line under [mysqld]")


def _primary(subject: DatabaseSubject) -> Finding:
    (read_only,) = _variables(subject, "read_only")
    if str(read_only).lower() not in {"off", "0"}:
        return fail(f"read_only is {read_only}: this server is a replica", "name the primary in --database")
    names = ("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled")
    is_semi = any(str(value).lower() in {"on", "1"} for value in _variables(subject, *names))
    rows = subject.ask_all("SHOW GLOBAL STATUS LIKE 'Slaves_connected'") or subject.ask_all(
        "SELECT 'replicas', COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%%'"
    )
    count = int(rows[0][1])
    if count and not is_semi:
        return fail(
            f"{counted(count, 'replica')}, none semi-synchronous: after a failover the producer's row and a check's "
            "tombstone may be on two primaries",
            "SET GLOBAL rpl_semi_sync_master_enabled = ON; on each replica rpl_semi_sync_slave_enabled = ON",
        )
    return ok(f"this is the primary, with {counted(count, 'replica')}" + (", semi-synchronous" if count else ""))


def _idle_timeout(subject: DatabaseSubject) -> Finding:
    write_s, idle_s, wait_s = _variables(
        subject, "idle_write_transaction_timeout", "idle_transaction_timeout", "wait_timeout"
    )
    limits = [int(value) for value in (write_s, idle_s, wait_s) if value is not None and int(value)]
    if not limits:
        raise UntoldError("the server shows no timeout")
    if min(limits) <= IDLE_MAX_S:
        return ok(f"an idle transaction is ended after {duration(min(limits))}")
    name = "wait_timeout" if write_s is None else "idle_write_transaction_timeout"
    return warn(
        f"an idle transaction is ended after {duration(min(limits))}: a service that hangs in it keeps its half "
        "undecided for so long",
        f"SET GLOBAL {name} = 60; and the same line under [mysqld]",
    )


def _encryption(subject: DatabaseSubject) -> Finding:
    return encryption_finding(
        [subject.host],
        is_encrypted=bool(subject.ask("SHOW STATUS LIKE 'Ssl_cipher'")[1]),
        sent="rows and messages",
        change="ssl_cert and ssl_key in the server's configuration, and ?ssl_ca=FILE in the URL",
    )


CHECKS: Final = (
    Check("mysql.version", "the server is one that gets fixes", _version),
    Check("mysql.encryption", "nothing is sent unprotected to another machine", _encryption),
    Check("mysql.tables", "the fence's tables are there, as this version makes them", tables),
    Check("mysql.engine", "their engine is InnoDB", _engine, needs="mysql.tables"),
    Check("mysql.rights", "producer, check and prune may use them", rights, needs="mysql.tables"),
    Check("mysql.message-table", MESSAGE_TABLE, message_table, needs="mysql.rights"),
    Check("mysql.flush", "innodb_flush_log_at_trx_commit is 1", _flush),
    Check("mysql.flush-method", "InnoDB syncs its files and writes pages twice", _flush_method),
    Check("mysql.binary-log", "sync_binlog is 1 where a binary log is written", _binary_log),
    Check("mysql.primary", "this is the primary, and its replicas, if any, are semi-synchronous", _primary),
    Check("mysql.idle-timeout", "a hanging service's transaction ends", _idle_timeout),
    clock_check("mysql.clock", "SELECT UNIX_TIMESTAMP(NOW(3)) * 1000"),
)
