"""The doctor's checks that hold for every database: the fence's tables, the right to use them, the clock.

The statements of producer, check and prune are tried in one transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import NoSuchTableError

from txcore.clock import Clock, system_randomness
from txcore.errors import TxcoreError
from txcore.findings import Check, Finding, UntoldError, fail, ok, skewed, version_of, warn
from txcore.ids import IdFactory, id_text
from txcore.message_table import Mode, Refused, TableRow
from txcore.outbox.slots import UNSEEN_S, Slots
from txcore.sqlfence import identity, later
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.connections import border_of, family_of
from txcore.sqlfence.dialects import Dialect
from txcore.sqlfence.failures import Cause, failure_of
from txcore.sqlfence.messages import enqueue
from txcore.sqlfence.runners import own_border
from txcore.sqlfence.schema import LOWEST_ID, SCHEMA_VERSION

Steps = Sequence[tuple[str, Callable[[Border], object]]]
GROUP: Final = "txcore-doctor"
LOCK_TIMEOUT_S: Final = 2.0
MESSAGE_TABLE: Final = "the message table is there and may be used, where the mode needs it"
ID_TYPES: Final = {POSTGRESQL: "UUID", MYSQL: "BINARY(16)", SQLITE: "BLOB"}
"""Each kind's name for the type of the id column."""
COLUMNS: Final = {
    "fence": ("transaction_id", "state", "producer_group", "created", "checks"),
    "meta": ("singleton", "schema_version", "pruned_below"),
}


@dataclass(frozen=True, slots=True)
class DatabaseSubject:
    """One database, queried on one connection; every write is rolled back."""

    engine: Engine
    connection: Connection
    dialect: Dialect
    clock: Clock
    mode: Mode = Mode.HALF  #: of the group's producers
    undecided: Callable[[], Mapping[bytes, bytes]] = dict  #: the group's undecided halves: which database each names

    def ask(self, sql: str) -> tuple[Any, ...]:
        """Return the first row of a query.

        Raises:
            UntoldError: the database refuses, or there is no row.
        """
        rows = self.ask_all(sql)
        if not rows:
            raise UntoldError(f"no answer to {sql}")
        return rows[0]

    def ask_all(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Raises:
            UntoldError: the database refuses.
        """
        with self.asking():
            return [tuple(row) for row in self.connection.exec_driver_sql(sql)]

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Roll the connection back at the end of the block.

        Raises:
            UntoldError: the database refuses.
        """
        try:
            yield
        except Exception as error:
            raise UntoldError(str(failure_of(error, self.engine.url.password))) from error
        finally:
            self.connection.rollback()

    @property
    def host(self) -> str:
        """The server's host; "" for a socket of the file system."""
        return self.engine.url.host or ""

    @property
    def user(self) -> str:
        """The user of a GRANT."""
        return self.engine.url.username or "the service's role"

    @property
    def create_command(self) -> str:
        """The command that makes the fence's tables."""
        return (
            f'txcore fence create --database "{self.engine.url.render_as_string()}" --table {self.dialect.tables.fence}'
        )


def tables(subject: DatabaseSubject) -> Finding:
    """Return whether both tables exist as this version makes them."""
    names = {"fence": subject.dialect.tables.fence, "meta": subject.dialect.tables.meta}
    for kind, name in names.items():
        schema, _, table = name.rpartition(".")
        try:
            columns = {each["name"]: each for each in inspect(subject.engine).get_columns(table, schema or None)}
        except NoSuchTableError:
            return fail(f"table {name} does not exist: no transaction can be fenced", subject.create_command)
        lacking = [column for column in COLUMNS[kind] if column not in columns]
        if lacking:
            change = f"another name for txcore's (--table), or drop this one and run: {subject.create_command}"
            return fail(f"table {name} lacks {', '.join(lacking)}: it was not made by txcore", change)
        if kind == "fence" and (wrong := _key_trouble(subject, schema, table, columns)):
            return fail(f"table {name}: {wrong}", f"drop it while no producer runs, then: {subject.create_command}")
    rows = subject.ask_all(f"SELECT schema_version FROM {names['meta']}")  # noqa: S608 - a checked name
    if len(rows) != 1:
        return fail(f"table {names['meta']} has {len(rows)} rows instead of one", subject.create_command)
    version = int(rows[0][0])
    if version > SCHEMA_VERSION:
        text = f"the tables have schema version {version}, this txcore knows {SCHEMA_VERSION}"
        return fail(text, "use the txcore version that made them, on all machines")
    if version < SCHEMA_VERSION:
        return warn(
            f"the tables have schema version {version}, so the database has no identity: a check in another database "
            "is not noticed, and drops committed transactions of this one",
            f"upgrade every checker and producer, then: {subject.create_command}",
        )
    return _identity_finding(subject) or ok(
        f"{names['fence']} and {names['meta']} are there, schema version {SCHEMA_VERSION}"
    )


def _identity_finding(subject: DatabaseSubject) -> Finding | None:
    """Return whether this is the database that the tables were made in."""
    with subject.asking():
        database = identity.look_anew(subject.dialect, border_of(subject.connection))
    if not database.is_copy:
        return _foreign_finding(subject, database)
    return fail(
        f"this is a copy: its tables were made in another server, database or schema, as {database.stored.hex()}, and "
        "checks here answer nothing about transactions that were fenced there",
        "name the former database in --database; or, if this one replaces it for good: txcore fence adopt --reason …",
    )


def _foreign_finding(subject: DatabaseSubject, database: identity.Database) -> Finding | None:
    """Look whether the group's undecided halves were fenced in another database."""
    foreign = {each: named for each, named in subject.undecided().items() if not database.decides(named)}
    if not foreign:
        return None
    first, named = min(foreign.items())
    return fail(
        f"undecided halves were fenced in another database: {len(foreign)}, the first {id_text(first)}, in database "
        f"{named.hex()}; this one is {database.current.hex()}, and checks here answer nothing about them",
        "name the producers' database in --database and in the checker's settings; or, if this one replaces it for "
        f"good: txcore fence adopt --former {named.hex()} --reason …",
    )


def _key_trouble(subject: DatabaseSubject, schema: str, table: str, columns: dict[str, Any]) -> str:
    key = inspect(subject.engine).get_pk_constraint(table, schema or None)["constrained_columns"]
    if key != ["transaction_id"]:
        return f"its primary key is ({', '.join(key)}), not (transaction_id): a check would not meet the producer's row"
    found = str(columns["transaction_id"]["type"].compile(subject.engine.dialect)).upper()
    if found != (expected := ID_TYPES[family_of(subject.engine.dialect.name)]):
        return f"transaction_id is {found}, not {expected}: ids could be cut, and two could collide"
    return ""


def rights(subject: DatabaseSubject) -> Finding:
    """Try every statement of producer, check and prune, and roll back."""
    dialect, new_id = subject.dialect, IdFactory(subject.clock, system_randomness()).new
    mine, other = new_id(), new_id()
    steps: Steps = (
        ("reading the horizon", lambda border: dialect.horizon(border, locked=True)),
        ("a producer's insert", lambda border: dialect.insert(border.writer(), mine, GROUP)),
        ("a producer's look at its row", lambda border: dialect.verify(border.writer(), mine)),
        ("a producer's withdrawal", lambda border: dialect.withdraw(border, mine)),
        ("a check's tombstone", lambda border: dialect.leave_tombstones(border, [other], GROUP)),
        ("a check's second look", lambda border: dialect.touch(border, [other])),
        ("a prune's delete", lambda border: dialect.delete(border, [other])),
        ("a prune's horizon", lambda border: dialect.raise_horizon(border, LOWEST_ID)),
    )
    names = dialect.tables
    grant = (
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {names.fence}; GRANT SELECT, UPDATE ON {names.meta}; "
        f"both TO {subject.user}"
    )
    return _tried(subject, steps, grant, "producer, check and prune may do all they need (tried, and rolled back)")


def message_table(subject: DatabaseSubject) -> Finding:
    """Try every statement of a producer and a relay on the message table, and roll back."""
    names, mode = subject.dialect.tables, subject.mode
    missing = [name for name in (names.message, names.slot, names.later) if not _is_there(subject, name)]
    if missing and mode is Mode.HALF:
        return ok("there is none: mode half needs none (--mode selects another mode)")
    if missing == [names.later]:
        return fail(f"table {names.later} does not exist: messages cannot be delayed", subject.create_command)
    if missing:
        return fail(
            f"table {missing[0]} does not exist: mode {mode} has no place for messages while the broker is down",
            subject.create_command,
        )
    dialect, mine = subject.dialect, IdFactory(subject.clock, system_randomness()).new()
    row, slots = TableRow(mine, 0, 0, b""), Slots(dialect, GROUP, GROUP)
    rows = [row, TableRow(mine, 1, 0, b"", due_ms=1)]
    steps: Steps = (
        ("a producer's insert", lambda border: dialect.insert(border.writer(), mine, GROUP)),
        ("a producer's message", lambda border: enqueue(dialect, border, mine, GROUP, rows)),
        ("making a relay's slots", slots.create),
        ("a relay's turning of a delayed message", lambda border: later.turn(dialect, border, GROUP, 1)),
        ("a cancel", lambda border: later.cancel(dialect, border, mine, GROUP)),
        ("a relay's hold", lambda border: slots.lease(border, slots.hold(border, slots.busy(border)), 1)),
        ("a relay's reading", lambda border: slots.page(border, [row.slot], (), 1)),
        ("a relay's note", lambda border: slots.note(border, Refused(row, "", is_parked=False))),
        ("a relay's delete", lambda border: slots.delete(border, [row])),
    )
    tables = f"{names.message}, {names.slot}, {names.later}"
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {subject.user}"
    success = f"{tables} are there, producer and relay may use them"
    return _unserved(subject) or _tried(subject, steps, grant, success)


def _unserved(subject: DatabaseSubject) -> Finding | None:
    """Return a finding where delayed messages wait and no relay of their group has been seen for a while."""
    dialect = subject.dialect
    try:
        with subject.engine.connect() as connection:
            border = own_border(connection, dialect)
            waiting, seen = later.waiting_by_group(dialect, border), later.relay_seen_ms(dialect, border)
    except Exception:  # noqa: BLE001 - the statements are tried after this
        return None
    for group, count in sorted(waiting.items()):
        if seen.get(group, UNSEEN_S * 1000 + 1) > UNSEEN_S * 1000:
            many = f"1 delayed message of group {group!r} waits"
            many = many if count == 1 else f"{count} delayed messages of group {group!r} wait"
            text = f"{many}, and no relay of it has been seen for {UNSEEN_S:g} s"
            return warn(text, "run `txcore checker` with this database, or `txcore relay`: nothing is sent without one")
    return None


def _is_there(subject: DatabaseSubject, name: str) -> bool:
    schema, _, table = name.rpartition(".")
    return inspect(subject.engine).has_table(table, schema or None)


def _tried(subject: DatabaseSubject, steps: Steps, grant: str, success: str) -> Finding:
    """Run *steps* in one transaction that is rolled back; return the refusal, or *success*."""
    dialect = subject.dialect
    with subject.engine.connect() as connection:
        border, doing = own_border(connection, dialect), "opening a transaction"
        try:
            with dialect.work(border, LOCK_TIMEOUT_S):
                for doing, step in steps:  # noqa: B007 - named in the finding
                    step(border)
        except Exception as error:  # noqa: BLE001 - whatever refuses is the finding
            return _refused(subject, doing, error, grant)
    return ok(success)


def _refused(subject: DatabaseSubject, doing: str, error: Exception, grant: str) -> Finding:
    if isinstance(error, TxcoreError):
        return fail(f"{doing} is refused: {error}", "the reason names the setting")
    failure = failure_of(error, subject.engine.url.password)
    text = f"{doing} is refused: {failure}"
    if failure.cause is Cause.LOCKED:
        return warn(text, "run the doctor again later; if it stays, find the open transaction that holds the lock")
    changes = {
        Cause.READ_ONLY: "name the primary server (or make file and folder writable) in --database",
        Cause.NO_TABLE: subject.create_command,
        Cause.OLD_TABLE: f"drop the table while it is empty and unused, then: {subject.create_command}",
    }
    return fail(text, changes.get(failure.cause, grant))


def clock_check(name: str, sql: str) -> Check[DatabaseSubject]:
    """Return the check *name* of the database's clock, which *sql* reads in milliseconds."""

    def look(subject: DatabaseSubject) -> Finding:
        subject.ask("SELECT 1")  # the connection is warm
        before_ms = subject.clock.wall_ms()
        there_ms = float(subject.ask(sql)[0])
        after_ms = subject.clock.wall_ms()
        text = f"the database's clock is {(there_ms - (before_ms + after_ms) / 2) / 1000:+.3f} s off this machine's"
        skew_ms = max(before_ms - there_ms, there_ms - after_ms)
        return skewed(text, skew_ms, "the column created cannot be compared with ids")

    return Check(name, "the database's clock is this machine's", look)


def version_check(version: str, oldest: str, kept: str, name: str) -> Finding:
    """Judge a server's version: below *oldest* is a failure; below *kept* it gets no fixes any more."""
    if version_of(version) < version_of(oldest):
        return fail(
            f"{name} {version} is older than {oldest}, the oldest the fence knows", f"upgrade to {kept} or later"
        )
    if version_of(version) < version_of(kept):
        return warn(f"{name} {version} gets no fixes any more", f"upgrade to {kept} or later")
    return ok(f"{name} {version}")
