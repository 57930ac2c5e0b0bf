"""Connections that cannot carry a fence row, and programs that swallow the error."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

import txcore
from txcore.errors import BackendUnavailableError, ConfigError, FencedError, FenceMisuseError, NotSentError, UsageError
from txcore.fence import FenceAnswer
from txcore.sqlfence import SqlFence
from txcore.sqlfence.connections import SqlAlchemyBorder
from txcore.sqlfence.psycopg3 import PsycopgWriter
from txcore.sqlfence.writers import CursorWriter

GROUP = "orders"
SAVEPOINT = "a savepoint is open"
GONE = "the fence row is gone"


def test_autocommit_connection_is_refused(world):
    """A connection in autocommit is refused, because its row would be committed before the business rows."""
    engine = world.new_engine(isolation_level="AUTOCOMMIT")
    transaction_id = world.new_id()
    with engine.connect() as connection, pytest.raises(FenceMisuseError, match="autocommit"):
        world.fence.insert(connection, transaction_id, GROUP)
    with pytest.raises(FenceMisuseError, match="autocommit"):
        world.fence.begin(engine, transaction_id, GROUP)
    assert world.row(transaction_id) is FenceAnswer.ABSENT


def test_row_that_autocommit_has_committed_is_found_by_verify(postgresql):
    """`verify` finds a row that was committed after its insert, because it is of another transaction."""
    transaction_id = postgresql.new_id()
    with postgresql.engine.connect() as connection:
        postgresql.fence.insert(connection, transaction_id, GROUP)
        connection.connection.driver_connection.commit()
        with pytest.raises(FenceMisuseError, match="does not belong to the open top-level transaction"):
            postgresql.fence.verify(connection, transaction_id)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_row_in_a_hidden_autocommit_is_found_at_the_insert(make_world, monkeypatch, kind):
    """If no driver reports the transaction, the insert finds autocommit by the row itself."""
    world = make_world(kind)
    monkeypatch.setattr(SqlAlchemyBorder, "commits_each_statement", lambda _: False)
    for writer in (CursorWriter, PsycopgWriter):
        monkeypatch.setattr(writer, "is_surely_open", lambda _: False)
    with world.new_engine(isolation_level="AUTOCOMMIT").connect() as connection, pytest.raises(FenceMisuseError):
        world.fence.insert(connection, world.new_id(), GROUP)
    transaction_id = world.new_id()
    with world.engine.begin() as connection:
        world.fence.insert(connection, transaction_id, GROUP)
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_nested_transaction_is_refused_and_the_outer_one_rolled_back(world):
    """A row within a savepoint is refused: a rollback to the savepoint would lose the message."""
    transaction_id = world.new_id()
    with world.engine.connect() as connection:
        world.add_order(connection, transaction_id)
        connection.begin_nested()
        with pytest.raises(FenceMisuseError, match=SAVEPOINT):
            world.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
    assert not world.has_order(transaction_id)


def test_nested_transaction_of_a_session_is_refused(world):
    """A row within a nested transaction of an ORM Session is refused."""
    transaction_id = world.new_id()
    with Session(world.engine) as session:
        world.add_order(session, transaction_id)
        session.begin_nested()
        with pytest.raises(FenceMisuseError, match=SAVEPOINT):
            world.fence.insert(session, transaction_id, GROUP)
        session.commit()
    assert not world.has_order(transaction_id)


def test_raw_savepoint_is_refused(world):
    """A savepoint that a statement has opened, instead of `begin_nested`, is refused."""
    transaction_id = world.new_id()
    with world.engine.connect() as connection:
        world.add_order(connection, transaction_id)
        connection.execute(text("SAVEPOINT mine"))
        with pytest.raises(FenceMisuseError, match=SAVEPOINT):
            world.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
    assert not world.has_order(transaction_id)


def test_raw_savepoint_on_psycopg_is_refused(postgresql):
    """On psycopg, the row's own xmin shows a savepoint that no library has reported."""
    transaction_id = postgresql.new_id()
    url = postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        connection.execute("SAVEPOINT mine")
        with pytest.raises(FenceMisuseError, match=SAVEPOINT):
            postgresql.fence.insert(connection, transaction_id, GROUP)
        with pytest.raises(FenceMisuseError, match=SAVEPOINT), connection.transaction(), connection.transaction():
            postgresql.fence.insert(connection, transaction_id, GROUP)
    assert postgresql.row(transaction_id) is FenceAnswer.ABSENT


def test_savepoint_that_was_released_is_no_obstacle(world):
    """Only an open savepoint is refused, and it does not affect later transactions on its connection."""
    for statements in (
        ["SAVEPOINT a", "RELEASE SAVEPOINT a"],
        ["SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "RELEASE a"],
    ):
        transaction_id = world.new_id()
        with world.engine.connect() as connection:
            world.add_order(connection, transaction_id)
            for statement in statements:
                sql = statement.replace("RELEASE a", "RELEASE SAVEPOINT a")
                connection.execute(text(sql))
            world.fence.insert(connection, transaction_id, GROUP)
            world.fence.verify(connection, transaction_id)
            connection.commit()
        assert world.check(transaction_id) is FenceAnswer.COMMIT
    with world.engine.connect() as connection:
        world.add_order(connection, world.new_id())
        connection.execute(text("SAVEPOINT left_open"))
        connection.rollback()
        transaction_id = world.new_id()
        world.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_row_rolled_back_to_an_earlier_savepoint_is_found_by_verify(world):
    """`verify` finds a row that is gone after ROLLBACK TO, even if the insert missed the savepoint."""
    transaction_id = world.new_id()
    with world.engine.connect() as connection:
        world.add_order(connection, transaction_id)
        connection.connection.cursor().execute("SAVEPOINT unseen")  # bypasses SQLAlchemy, so it is not observed
        if world.kind == "postgresql":
            with pytest.raises(FenceMisuseError, match=SAVEPOINT):
                world.fence.insert(connection, transaction_id, GROUP)
            return
        world.fence.insert(connection, transaction_id, GROUP)
        connection.connection.cursor().execute("ROLLBACK TO unseen")
        with pytest.raises(FenceMisuseError, match=GONE):
            world.fence.verify(connection, transaction_id)
        connection.commit()
    assert not world.has_order(transaction_id)


def test_savepoint_around_verify_is_refused(world):
    """`verify` refuses a nested transaction that is open since the insert, because it could be undone alone."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    connection.begin_nested()
    if world.kind == "postgresql":
        connection.execute(text("SELECT 1"))
    with pytest.raises(FenceMisuseError, match=SAVEPOINT):
        world.fence.verify(connection, transaction_id)
    assert not world.fence.is_open(connection)
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK


def test_statement_that_commits_by_itself_is_found_by_verify(mariadb):
    """`verify` finds that CREATE TABLE has committed the row on MariaDB, so the half is not written."""
    transaction_id = mariadb.new_id()
    connection = mariadb.fence.begin(None, transaction_id, GROUP)
    connection.execute(text(f"CREATE TABLE unexpected_{mariadb.number} (x int)"))
    mariadb.add_order(connection, transaction_id)
    with pytest.raises(FenceMisuseError, match=GONE):
        mariadb.fence.verify(connection, transaction_id)
    assert not mariadb.has_order(transaction_id)


def test_commit_unnoticed_by_the_library_is_found_by_verify(world):
    """`verify` finds that a raw COMMIT has ended the transaction of the row."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    connection.execute(text("COMMIT"))
    with pytest.raises(FenceMisuseError):
        world.fence.verify(connection, transaction_id)


def test_verify_can_be_repeated(world):
    """Repeated calls of `verify` change nothing."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    for _ in range(3):
        world.fence.verify(connection, transaction_id)
    world.fence.commit(connection)
    assert world.check(transaction_id) is FenceAnswer.COMMIT


@pytest.mark.parametrize("kind", ["fenced", "nested"])
def test_program_that_swallows_the_error_keeps_no_business_rows(world, kind):
    """The fence rolls back after its error, because MariaDB keeps the other changes after a failed statement."""
    transaction_id = world.new_id()
    if kind == "fenced":
        world.check(transaction_id)
    with world.engine.connect() as connection:
        world.add_order(connection, transaction_id)
        if kind == "nested":
            connection.begin_nested()
        try:
            world.fence.insert(connection, transaction_id, GROUP)
        except (FencedError, FenceMisuseError):
            pass
        else:
            pytest.fail("nothing was raised")
        connection.commit()
    assert not world.has_order(transaction_id)


def test_swallowed_lock_timeout_keeps_no_business_rows(mariadb):
    """After MariaDB's error 1205, like 1062, only the statement is undone, so txcore rolls back."""
    transaction_id = mariadb.new_id()
    other = mariadb.fence.begin(None, transaction_id, GROUP)
    with mariadb.engine.connect() as connection:
        connection.execute(text("SET SESSION innodb_lock_wait_timeout = 0"))
        mariadb.add_order(connection, transaction_id)
        with pytest.raises(NotSentError, match="1205"):
            mariadb.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
        connection.execute(text("SET SESSION innodb_lock_wait_timeout = DEFAULT"))
    mariadb.fence.rollback(other)
    assert not mariadb.has_order(transaction_id)


def test_commit_that_does_not_survive_a_crash_is_refused_on_mariadb(mariadb):
    """A fence refuses innodb_flush_log_at_trx_commit=2, with which a crash loses commits."""
    with mariadb.new_engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 2"))
        try:
            with pytest.raises(FenceMisuseError, match="innodb_flush_log_at_trx_commit is 2"):
                mariadb.new_fence().begin(None, mariadb.new_id(), GROUP)
        finally:
            connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))


def test_producer_commits_durably_whatever_the_session_says(postgresql):
    """The row's transaction has synchronous_commit on, or a stronger value that was set; later it is as before."""
    for before, during in (("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply",) * 2):
        with postgresql.new_engine(pool_size=1).connect() as connection:
            connection.execute(text(f"SET SESSION synchronous_commit = {before}"))
            connection.commit()
            transaction_id = postgresql.new_id()
            postgresql.fence.insert(connection, transaction_id, GROUP)
            assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == during
            connection.execute(text("SET LOCAL synchronous_commit = off"))
            postgresql.fence.verify(connection, transaction_id)
            assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
            connection.rollback()
            assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == before


def test_sqlite_transaction_begun_below_full_is_refused(sqlite, tmp_path):
    """An open SQLite transaction below FULL is refused, because its level cannot be raised any more."""
    transaction_id = sqlite.new_id()
    with sqlite.engine.connect() as connection:
        connection.connection.cursor().execute("PRAGMA synchronous = NORMAL")
        sqlite.add_order(connection, transaction_id)
        with pytest.raises(FenceMisuseError, match="synchronous is below FULL"):
            sqlite.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
    assert not sqlite.has_order(transaction_id)


def test_sqlite_level_is_raised_before_begin(sqlite):
    """The fence sets synchronous to FULL before it begins a transaction, and keeps EXTRA."""
    engine = sqlite.new_engine(pool_size=1)
    for before, during in ((1, 2), (0, 2), (3, 3)):
        with engine.connect() as connection:
            connection.connection.cursor().execute(f"PRAGMA synchronous = {before}")
        connection = sqlite.fence.begin(engine, sqlite.new_id(), GROUP)
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == during
        sqlite.fence.rollback(connection)


@pytest.mark.parametrize("mode", ["OFF", "MEMORY"])
def test_sqlite_journal_that_does_not_survive_a_crash_is_refused(sqlite, mode):
    """SQLite without a journal on disk is refused, because a crash would break it."""
    connection = sqlite3.connect(sqlite.engine.url.database)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    with pytest.raises(FenceMisuseError, match="journal_mode is"):
        sqlite.fence.insert(connection, sqlite.new_id(), GROUP)
    connection.close()


def test_in_memory_sqlite_is_refused(sqlite):
    """SQLite in memory is refused for fence and producer, because no other connection can read it."""
    with pytest.raises(ConfigError, match="use a database file"):
        SqlFence(create_engine("sqlite://", poolclass=StaticPool))
    connection = sqlite3.connect(":memory:")
    with pytest.raises(FenceMisuseError, match=r"in-memory.* use a file$"):
        sqlite.fence.insert(connection, sqlite.new_id(), GROUP)
    connection.close()


def test_sqlite_producer_that_read_first_fails_cleanly(sqlite):
    """An SQLite transaction with an old snapshot cannot write and is rolled back."""
    connection = sqlite3.connect(sqlite.engine.url.database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN")
    connection.execute(f"SELECT * FROM {sqlite.orders_table}").fetchall()
    sqlite.committed()
    with pytest.raises(NotSentError, match="SQLITE_BUSY_SNAPSHOT"):
        sqlite.fence.insert(connection, sqlite.new_id(), GROUP)
    assert not connection.in_transaction
    connection.close()


def test_connection_of_another_database_is_refused(sqlite, postgresql):
    """A connection of another database than the fence's is refused."""
    with postgresql.engine.connect() as connection, pytest.raises(FenceMisuseError, match="must be in the database"):
        sqlite.fence.insert(connection, sqlite.new_id(), GROUP)


def test_things_that_are_no_connection_are_refused(sqlite):
    """The error about an object that is no connection names the accepted kinds."""
    with pytest.raises(FenceMisuseError, match=r"takes a SQLAlchemy Connection.*not a builtins\.str"):
        sqlite.fence.insert("sqlite:///business.db", sqlite.new_id(), GROUP)
    with pytest.raises(FenceMisuseError, match=r"SqlFence takes a SQLAlchemy Engine, not a builtins\.str"):
        sqlite.fence.begin("sqlite:///business.db", sqlite.new_id(), GROUP)
    for kind in (txcore.SqlFence, txcore.AsyncSqlFence, txcore.Inbox, txcore.AsyncInbox):
        with pytest.raises(ConfigError, match=f"{kind.__name__} takes a SQLAlchemy .*not a builtins.str") as refused:
            kind("sqlite:///business.db")
        assert refused.value.key == "engine"


@pytest.mark.parametrize(
    ("fence", "session", "words"),
    [
        (txcore.SqlFence, Session, r"integrations\.session\.SessionPublisher"),
        (txcore.AsyncSqlFence, AsyncSession, r"integrations\.async_session\.AsyncSessionPublisher"),
    ],
)
def test_session_in_place_of_an_engine_is_told_its_publisher(fence, session, words):
    """`producer.transaction(session)` is what a user of the ORM writes first."""
    with pytest.raises(ConfigError, match=words):
        fence(session())


@pytest.mark.parametrize(
    ("options", "key"),
    [({"table": "a b"}, "table"), ({"table": "main.fence"}, "table"), ({"lock_timeout_s": 0}, "lock_timeout_s"),
     ({"statement_timeout_s": 4_000}, "statement_timeout_s"), ({"attempts_max": 0}, "attempts_max")],
)  # fmt: skip
def test_setting_out_of_range_is_refused_by_name(sqlite, options, key):
    """A setting out of its range is refused by its name when the fence is made."""
    with pytest.raises(ConfigError) as refusal:
        SqlFence(sqlite.engine, **options)
    assert refusal.value.key == key


def test_ids_and_groups_are_checked(sqlite):
    """Ids and groups of a wrong length are refused, because a database could cut them to equal values."""
    for transaction_id in (bytes(15), bytes(40), "text"):
        with pytest.raises(UsageError, match="16 bytes"):
            sqlite.fence.check([transaction_id], GROUP)
    with pytest.raises(UsageError, match="at most 255"):
        sqlite.fence.begin(None, sqlite.new_id(), "g" * 256)


@pytest.mark.parametrize("missing", ["msg", "slot"])
def test_tables_of_an_older_txcore_are_refused_in_one_sentence(world, missing):
    """Without a newer table, producer and relay stop with an error that names the remedy."""
    with world.engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {world.fence_table}_{missing}"))
    backend = txcore.connect(f"memory://{world.fence_table}-{missing}")
    producer = txcore.TransactionProducer(backend, GROUP, fence=world.fence, mode="table")
    relay = txcore.Relay(backend, GROUP, world.engine, table=world.fence_table)
    remedy = r"^[^\n]*the fence table is missing, or a newer table beside it: run `txcore fence create`[^\n]*$"

    def place():
        with producer.transaction(world.engine) as tx:
            tx.publish(txcore.Message("orders", b"body"))

    if missing == "msg" or world.engine.dialect.name == "postgresql":
        with pytest.raises(NotSentError, match=remedy):
            place()
    with pytest.raises(BackendUnavailableError, match=remedy):
        relay.run_once()
    world.fence.create()
    place()
    assert relay.run_once().sent >= 1
