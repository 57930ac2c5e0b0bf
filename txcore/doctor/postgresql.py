"""The doctor's checks of a PostgreSQL server.

Source: PostgreSQL manual, "Write Ahead Log" settings, "Replication" settings, `pg_stat_replication`,
`pg_prepared_xacts`, client connection timeouts.
"""

from __future__ import annotations

from typing import Final

from txcore.backends.exposure import encryption_finding
from txcore.doctor.sql import MESSAGE_TABLE, DatabaseSubject, clock_check, message_table, rights, tables, version_check
from txcore.findings import Check, Finding, UntoldError, counted, duration, fail, ok, warn

VERSION_OLDEST: Final = "12"
VERSION_KEPT: Final = "14"
NO_STANDBYS: Final = ("pg_receivewal", "pg_basebackup")
IDLE_MAX_S: Final = 3_600


def _version(subject: DatabaseSubject) -> Finding:
    version = str(subject.ask("SHOW server_version")[0]).split()[0]
    return version_check(version, VERSION_OLDEST, VERSION_KEPT, "PostgreSQL")


def _switch(setting: str, effect: str) -> Check[DatabaseSubject]:
    """Return the check that a setting of the whole server is on; *effect* is that of one that is off."""

    def look(subject: DatabaseSubject) -> Finding:
        if subject.ask(f"SHOW {setting}")[0] == "on":
            return ok(f"{setting} is on")
        return fail(f"{setting} is off: {effect}", f"ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf();")

    return Check(f"postgresql.{setting.replace('_', '-')}", f"{setting} is on", look)


def _synchronous_commit(subject: DatabaseSubject) -> Finding:
    value, standbys = subject.ask(
        "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"
    )
    if value in {"on", "remote_apply"} or (value == "remote_write" and not standbys):
        return ok(f"synchronous_commit is {value}")
    return warn(
        f"synchronous_commit is {value}: fenced transactions turn it on for themselves, but a crash undoes others "
        "that were already answered",
        f"ALTER ROLE {subject.user} SET synchronous_commit = on;",
    )


def _standby(subject: DatabaseSubject) -> Finding:
    if subject.ask("SELECT pg_is_in_recovery()")[0]:
        return fail("this server is a standby and takes no writes", "name the primary in --database")
    names = subject.ask("SHOW synchronous_standby_names")[0]
    ignored = ", ".join(f"'{name}'" for name in NO_STANDBYS)
    rows = subject.ask_all(
        "SELECT coalesce(application_name, ''), coalesce(sync_state, '?') FROM pg_stat_replication "  # noqa: S608
        f"WHERE coalesce(application_name, '') NOT IN ({ignored})"
    )
    if not rows:
        return ok("no standby is connected")
    synchronous = [name for name, state in rows if state in {"sync", "quorum"}]
    if synchronous:
        return ok(f"{len(synchronous)} of {len(rows)} standbys are synchronous ({names})")
    if all(state == "?" for _, state in rows) and names:
        raise UntoldError("this role may not read pg_stat_replication", f"GRANT pg_read_all_stats TO {subject.user};")
    return fail(
        f"{counted(len(rows), 'standby')}, none synchronous: after a failover the producer's row and a check's "
        "tombstone may be on two primaries",
        "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf();",
    )


def _lock_timeout(subject: DatabaseSubject) -> Finding:
    lock_ms, statement_ms = (
        int(subject.ask(f"SELECT setting FROM pg_settings WHERE name = '{name}'")[0])  # noqa: S608
        for name in ("lock_timeout", "statement_timeout")
    )
    if lock_ms:
        return warn(
            f"lock_timeout is {lock_ms} ms for {subject.user}: a producer's insert that waits for a check fails",
            f"ALTER ROLE {subject.user} SET lock_timeout = 0;",
        )
    if 0 < statement_ms < 1_000:
        return warn(
            f"statement_timeout is {statement_ms} ms for {subject.user}: it may cut a producer's insert",
            f"ALTER ROLE {subject.user} SET statement_timeout = '10s';",
        )
    return ok("neither lock_timeout nor a short statement_timeout cuts a producer's insert")


def _idle_timeout(subject: DatabaseSubject) -> Finding:
    value_ms = int(subject.ask("SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'")[0])
    if value_ms and value_ms <= IDLE_MAX_S * 1000:
        return ok(f"an idle transaction is ended after {duration(value_ms / 1000)}")
    text = "idle_in_transaction_session_timeout is " + (duration(value_ms / 1000) if value_ms else "off")
    return warn(
        f"{text}: a service that hangs in its transaction keeps its half undecided",
        f"ALTER ROLE {subject.user} SET idle_in_transaction_session_timeout = '1min';",
    )


def _prepared(subject: DatabaseSubject) -> Finding:
    count, oldest_s = subject.ask(
        "SELECT count(*), coalesce(extract(epoch from max(clock_timestamp() - prepared)), 0) FROM pg_prepared_xacts"
    )
    if not count:
        return ok("no prepared transaction is left over")
    return warn(
        f"{counted(count, 'prepared transaction')}, the oldest {duration(float(oldest_s))} old: rows they hold are "
        "locked until an operator ends them",
        "SELECT gid FROM pg_prepared_xacts; then COMMIT PREPARED or ROLLBACK PREPARED each",
    )


def _encryption(subject: DatabaseSubject) -> Finding:
    return encryption_finding(
        [subject.host],
        is_encrypted=bool(subject.ask("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")[0]),
        sent="rows and messages",
        change="ssl = on in postgresql.conf, hostssl in pg_hba.conf, and ?sslmode=verify-full in the URL",
    )


CHECKS: Final = (
    Check("postgresql.version", "the server is one that gets fixes", _version),
    Check("postgresql.encryption", "nothing is sent unprotected to another machine", _encryption),
    Check("postgresql.tables", "the fence's tables are there, as this version makes them", tables),
    Check("postgresql.rights", "producer, check and prune may use them", rights, needs="postgresql.tables"),
    Check("postgresql.message-table", MESSAGE_TABLE, message_table, needs="postgresql.rights"),
    _switch("fsync", "a power failure undoes commits whose messages are out, and may break the files"),
    _switch("full_page_writes", "a power failure may leave torn pages that recovery cannot mend"),
    Check("postgresql.synchronous-commit", "synchronous_commit is on", _synchronous_commit),
    Check("postgresql.standby", "this is the primary, and its standbys, if any, are synchronous", _standby),
    Check("postgresql.lock-timeout", "no timeout cuts a producer's insert", _lock_timeout),
    Check("postgresql.idle-timeout", "a hanging service's transaction ends", _idle_timeout),
    Check("postgresql.prepared", "no prepared transaction is left over", _prepared),
    clock_check("postgresql.clock", "SELECT extract(epoch from clock_timestamp()) * 1000"),
)
