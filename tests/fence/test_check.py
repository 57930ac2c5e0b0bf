"""The check against producers that are before, in, and after their transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from txcore.errors import FencedError, UsageError
from txcore.fence import FenceAnswer, FenceReading
from txcore.message_table import TableRow
from txcore.sqlfence import SqlFence
from txcore.sqlfence.checks import reading_of
from txcore.sqlfence.failures import failure_of
from txcore.sqlfence.runners import own_border

GROUP = "orders"


def test_check_before_the_producer_leaves_a_tombstone_and_the_late_producer_is_refused(world):
    """After a check has answered ROLLBACK, the producer cannot commit any more."""
    transaction_id = world.new_id()
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK
    with pytest.raises(FencedError) as refusal:
        world.fence.begin(world.engine, transaction_id, GROUP)
    assert refusal.value.transaction_id == transaction_id
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK


def test_late_producer_with_business_rows_first_loses_them_all(world):
    """A refusal rolls earlier business rows back, so the fence may also be the last statement."""
    transaction_id = world.new_id()
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK
    with world.engine.connect() as connection:
        world.add_order(connection, transaction_id)
        with pytest.raises(FencedError):
            world.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
    assert not world.has_order(transaction_id)


def test_check_during_an_open_transaction_is_no_answer(world):
    """An open producer transaction is neither COMMIT nor ROLLBACK, and stays able to commit."""
    transaction_id = world.new_id()
    connection = world.fence.begin(world.engine, transaction_id, GROUP)
    world.add_order(connection, transaction_id)
    reading = world.fence.check([transaction_id], GROUP)[transaction_id]
    assert reading.answer is FenceAnswer.NO_ANSWER
    assert reading.reason.startswith("a lock was not free in time")
    world.fence.verify(connection, transaction_id)
    world.fence.commit(connection)
    assert world.check(transaction_id) is FenceAnswer.COMMIT
    assert world.has_order(transaction_id)


def test_check_that_waits_for_the_producer_sees_how_it_ends(postgresql, threads, eventually):
    """A check blocked by the open row answers as soon as that transaction commits or rolls back."""
    fence = postgresql.new_fence(lock_timeout_s=30, attempts_max=1)
    for ends, expected in (("commit", FenceAnswer.COMMIT), ("rollback", FenceAnswer.ROLLBACK)):
        transaction_id = postgresql.new_id()
        connection = postgresql.fence.begin(None, transaction_id, GROUP)
        answer = threads.submit(postgresql.check, transaction_id, fence)
        eventually(postgresql.waiters)
        getattr(postgresql.fence, ends)(connection)
        assert answer.result(10) is expected


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_check_sets_its_own_isolation_level_whatever_the_engine_says(postgresql, threads, eventually, level):
    """A waiting check would end in 40001 at a snapshot level; at its own READ COMMITTED it answers at once."""
    fence = postgresql.new_fence(postgresql.new_engine(isolation_level=level), lock_timeout_s=30, attempts_max=1)
    transaction_id = postgresql.new_id()
    connection = postgresql.fence.begin(None, transaction_id, GROUP)
    answer = threads.submit(fence.check, [transaction_id], GROUP)
    eventually(postgresql.waiters)
    postgresql.fence.commit(connection)
    assert answer.result(10) == {transaction_id: FenceReading(FenceAnswer.COMMIT)}


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_check_on_an_engine_of_any_level_never_sees_no_row(mariadb, level):
    """A check reads under the row's lock, because a stale snapshot shows "no row" for a committed transaction."""
    fence = mariadb.new_fence(mariadb.new_engine(isolation_level=level))
    assert mariadb.check(mariadb.committed(), fence) is FenceAnswer.COMMIT
    assert mariadb.check(mariadb.new_id(), fence) is FenceAnswer.ROLLBACK


def test_no_row_after_a_tombstone_was_written_is_no_answer():
    """A check that finds no row after it wrote a tombstone has no answer."""
    assert reading_of({}, bytes(16), GROUP).answer is FenceAnswer.NO_ANSWER


def test_committed_transaction_is_committed_for_every_later_check(world):
    """COMMIT is final: each later check answers COMMIT again."""
    transaction_id = world.committed()
    assert [world.check(transaction_id) for _ in range(5)] == [FenceAnswer.COMMIT] * 5


def test_rolled_back_transaction_becomes_a_tombstone(world):
    """A rollback removes the fence row, and the next check decides ROLLBACK for ever."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    world.add_order(connection, transaction_id)
    world.fence.rollback(connection)
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK
    assert not world.has_order(transaction_id)


def test_id_prepared_twice_is_refused(world):
    """A second insert of an id is refused, and the first transaction stays committed."""
    transaction_id = world.committed()
    with pytest.raises(FencedError):
        world.fence.begin(None, transaction_id, GROUP)
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_id_of_another_group_is_no_answer_with_that_reason(world):
    """A check never returns the decision about an id of another group."""
    transaction_id = world.committed()
    reading = world.fence.check([transaction_id], "billing")[transaction_id]
    assert reading == FenceReading(FenceAnswer.NO_ANSWER, "the id belongs to group 'orders', not 'billing'")


def test_batch_answers_all_ids_in_one_call(world):
    """One check answers all its ids, in any order and with duplicates in the list."""
    committed = [world.committed() for _ in range(3)]
    absent = [world.new_id() for _ in range(3)]
    readings = world.fence.check([*absent, *reversed(committed), *committed], GROUP)
    assert {item: reading.answer for item, reading in readings.items()} == (
        dict.fromkeys(committed, FenceAnswer.COMMIT) | dict.fromkeys(absent, FenceAnswer.ROLLBACK)
    )


def test_empty_batch_is_empty(world):
    """A check of no ids has no answers."""
    assert world.fence.check([], GROUP) == {}


def test_locked_key_in_a_batch_holds_up_no_other_answer(server_world):
    """An open producer in a batch costs only the answer about its own id."""
    ids = [server_world.committed(), server_world.new_id(), server_world.committed(), server_world.new_id()]
    connection = server_world.fence.begin(None, ids[1], GROUP)
    readings = server_world.fence.check(ids, GROUP)
    assert [readings[item].answer for item in ids] == [
        FenceAnswer.COMMIT,
        FenceAnswer.NO_ANSWER,
        FenceAnswer.COMMIT,
        FenceAnswer.ROLLBACK,
    ]
    server_world.fence.commit(connection)
    assert server_world.check(ids[1]) is FenceAnswer.COMMIT


def test_many_locked_keys_do_not_take_longer_than_the_time_limit(postgresql):
    """Ids that a check does not reach in time are NO_ANSWER, without a lock timeout for each of them."""

    class Clock:
        def __init__(self) -> None:
            self.readings = iter(range(100))

        def elapsed_s(self) -> float:
            return float(next(self.readings))

    fence = postgresql.new_fence(lock_timeout_s=0.02, statement_timeout_s=2.5, clock=Clock())
    ids = [postgresql.new_id() for _ in range(6)]
    connection = postgresql.fence.begin(None, ids[0], GROUP)
    readings = fence.check(ids, GROUP)
    answers = [readings[item].answer for item in ids]
    assert answers == [FenceAnswer.NO_ANSWER, FenceAnswer.ROLLBACK, *[FenceAnswer.NO_ANSWER] * 4]
    assert readings[ids[-1]].reason == "not reached in time: earlier ids were locked"
    postgresql.fence.rollback(connection)


def test_killed_producer_connection_rolls_back_and_the_next_check_says_so(server_world, eventually):
    """A check answers ROLLBACK after the server has ended the producer's session."""
    transaction_id = server_world.new_id()
    connection = server_world.fence.begin(None, transaction_id, GROUP)
    server_world.add_order(connection, transaction_id)
    server_world.kill_session(server_world.session_id(connection))
    eventually(lambda: server_world.check(transaction_id) is FenceAnswer.ROLLBACK)
    server_world.fence.rollback(connection)
    assert not server_world.has_order(transaction_id)


def test_check_on_a_killed_pooled_connection_asks_again_on_a_fresh_one(server_world):
    """A check whose pooled connection is stale is repeated on a fresh one and answers."""
    transaction_id = server_world.committed()
    engine = server_world.new_engine(pool_size=1)
    fence = server_world.new_fence(engine)
    with engine.connect() as connection:
        number = server_world.session_id(connection)
    server_world.kill_session(number)
    assert server_world.check(transaction_id, fence) is FenceAnswer.COMMIT


def test_missing_table_is_no_answer_that_names_the_remedy(world):
    """A check without a fence table does not raise; its reason names the remedy."""
    fence = SqlFence(world.engine, table="never_created")
    reading = fence.check([world.new_id()], GROUP).popitem()[1]
    assert reading.answer is FenceAnswer.NO_ANSWER
    assert "run `txcore fence create`" in reading.reason


def test_unreachable_database_is_no_answer_without_the_password():
    """A check of an unreachable database is NO_ANSWER, and its reason does not contain the password."""
    for url in ("postgresql+psycopg://u:geheim@127.0.0.1:1/d", "mysql+pymysql://u:geheim@127.0.0.1:1/d"):
        fence = SqlFence(create_engine(url))
        reading = fence.check([bytes(16)], GROUP)[bytes(16)]
        assert reading.answer is FenceAnswer.NO_ANSWER
        assert reading.reason.startswith("the connection was lost or could not be made")
        assert "geheim" not in reading.reason


def test_wrong_password_is_not_repeated_in_any_text(mariadb, raised):
    """The password is removed from the driver's own text about a refused login."""
    url = mariadb.engine.url.set(username="stranger", password="geheim")
    fence = SqlFence(create_engine(url))
    reading = fence.check([bytes(16)], GROUP)[bytes(16)]
    error = raised(lambda: fence.begin(None, bytes(16), GROUP))
    assert reading.answer is FenceAnswer.NO_ANSWER
    assert "geheim" not in reading.reason + str(error)


class DriverError(Exception):
    """An error as drivers raise it, with an SQL state or with a number as its first argument."""

    def __init__(self, code):
        super().__init__(*((code, "text") if isinstance(code, int) else ("text",)))
        self.sqlstate = code if isinstance(code, str) else None


@pytest.mark.parametrize(
    ("code", "is_undone"),
    [("40001", True), ("40P01", True), ("23505", True), (1213, True), (3101, True)]
    + [(code, False) for code in ("40003", "08007", "57P01", "57014", 1205, 1317, 2013)],
)
def test_only_what_certainly_undoes_a_commit_is_said_to(code, is_undone):
    """Only some errors certainly undo a commit; after a lost connection or a lock wait it may have applied."""
    assert failure_of(DriverError(code)).is_undone is is_undone


def test_password_in_a_drivers_text_is_taken_out():
    """The password is removed from a driver's text, because some drivers repeat the connection string."""
    error = RuntimeError("cannot parse host=db password=geheim\nsecond line")
    assert str(failure_of(error, "geheim")) == "the database refused: cannot parse host=db password=***"


def test_read_only_database_is_no_answer(server_world):
    """A read-only database, like a standby, takes no tombstone, so a check of it has no answer."""
    transaction_id = server_world.committed()
    engine = server_world.new_engine()
    sql = {
        "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "mariadb": "SET SESSION TRANSACTION READ ONLY",
    }[server_world.kind]

    @event.listens_for(engine, "connect")
    def make_read_only(driver_connection, record):
        cursor = driver_connection.cursor()
        cursor.execute(sql)
        cursor.close()
        driver_connection.commit()

    reading = server_world.new_fence(engine).check([transaction_id], GROUP)[transaction_id]
    assert reading.answer is FenceAnswer.NO_ANSWER
    assert reading.reason.startswith("the database accepts no writes")


def test_whatever_a_connect_hook_raises_is_no_answer(world):
    """An error of a connect hook, in which programs fetch credentials, is no answer."""
    engine = world.new_engine()

    @event.listens_for(engine, "do_connect")
    def fail(*arguments):
        raise RuntimeError("the token service is down")

    reading = world.new_fence(engine).check([bytes(16)], GROUP)[bytes(16)]
    assert reading == FenceReading(FenceAnswer.NO_ANSWER, "the database refused: the token service is down")


def test_check_leaves_the_pooled_connection_as_it_was(world):
    """The lock wait and the isolation level of the fence's work do not stay on the pooled connection."""
    sql = {
        "postgresql": "SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')",
        "mariadb": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@tx_isolation",
        "sqlite": "PRAGMA busy_timeout",
    }[world.kind]
    engine = world.new_engine(pool_size=1, max_overflow=0)

    def settings():
        with engine.connect() as connection:
            return connection.execute(text(sql)).one()

    before, locked = settings(), world.new_id()
    world.new_fence(engine).check([world.new_id()], GROUP)
    assert settings() == before
    # Settings of work that did not begin do not stay, either.
    holder = world.fence.begin(world.engine, locked, GROUP)
    assert world.check(locked, world.new_fence(engine)) is FenceAnswer.NO_ANSWER
    world.fence.rollback(holder)
    assert settings() == before


def test_work_that_does_not_begin_on_mariadb_leaves_the_waits_for_locks(mariadb):
    """Work inside an open transaction is refused, and the connection keeps its own waits for locks."""
    waits = text("SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout")
    with mariadb.engine.connect() as connection:
        before = connection.execute(waits).one()
        connection.execute(text("START TRANSACTION"))
        dialect = mariadb.fence._dialect
        with pytest.raises(DBAPIError, match="1568"), dialect.work(own_border(connection, dialect), 0.1):
            raise AssertionError
        assert connection.execute(waits).one() == before


def test_check_of_a_committed_row_is_itself_a_durable_write(world):
    """A check writes, because a commit can be visible before it is flushed (InnoDB always, PostgreSQL if asynchronous).

    A check that only read answered COMMIT for 5 of 492 transactions that a kill then undid, a writing one for none of
    975.
    """
    transaction_id = world.committed()
    counts = []
    for _ in range(3):
        assert world.check(transaction_id) is FenceAnswer.COMMIT
        with world.engine.connect() as connection:
            counts.append(connection.execute(text(f"SELECT checks FROM {world.fence_table}")).scalar_one())
    assert counts == [1, 2, 3]


def test_fence_on_an_engine_in_autocommit_mode_still_checks_in_transactions(world):
    """On an autocommit engine, checks, pruning and operators' work begin their own transactions."""
    fence = world.new_fence(world.new_engine(isolation_level="AUTOCOMMIT"), sleep=lambda seconds: None)
    committed, absent = world.committed(), world.new_id()
    readings = fence.check([committed, absent], GROUP)
    assert [readings[item].answer for item in (committed, absent)] == [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK]
    connection = world.fence.begin(None, world.new_id(), GROUP)
    world.fence.rollback(connection)
    fence.force(absent, GROUP)
    assert fence.prune(world.new_id(), lambda ids: ids).deleted == 2


def test_peek_reads_and_writes_nothing(world):
    """`peek` leaves an absent id absent, so that its producer still commits."""
    transaction_id = world.new_id()
    assert world.row(transaction_id) is FenceAnswer.ABSENT
    connection = world.fence.begin(None, transaction_id, GROUP)
    world.fence.commit(connection)
    assert world.row(transaction_id) is FenceAnswer.COMMIT


def test_forced_id_answers_forced_and_refuses_its_producer(world):
    """State 4 holds against a late producer and later checks, whatever state the id had before."""
    absent, tombstone, committed = world.new_id(), world.new_id(), world.committed()
    world.check(tombstone)
    for transaction_id in (absent, tombstone, committed):
        world.fence.force(transaction_id, GROUP)
        assert world.check(transaction_id) is FenceAnswer.FORCED
        with pytest.raises(FencedError):
            world.fence.begin(None, transaction_id, GROUP)


def test_force_refuses_an_id_of_another_group(world):
    """An operator's request with the wrong group changes no row."""
    transaction_id = world.committed()
    with pytest.raises(UsageError, match="belongs to group 'orders'"):
        world.fence.force(transaction_id, "billing")
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_row_of_the_message_table_is_sent_once_nothing_of_it_waits(world):
    """State 3, set with the message in one transaction, is VIA_TABLE while the message waits, and then SENT."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    world.fence.enqueue(connection, transaction_id, GROUP, [TableRow(transaction_id, 0, 7, b"message")])
    world.fence.verify(connection, transaction_id)
    world.fence.commit(connection)
    assert world.check(transaction_id) is FenceAnswer.VIA_TABLE
    with world.engine.begin() as other:
        other.execute(text(f"DELETE FROM {world.fence_table}_msg"))
    assert world.check(transaction_id) is FenceAnswer.SENT


def test_withdrawn_row_leaves_no_trace(world):
    """A block that published nothing commits its business rows without a fence row."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    world.add_order(connection, transaction_id)
    world.fence.withdraw(connection, transaction_id)
    world.fence.commit(connection)
    assert world.has_order(transaction_id)
    assert world.row(transaction_id) is FenceAnswer.ABSENT


def test_stats_count_states_and_name_the_oldest(world):
    """The statistics, which `txcore fence` shows, count the rows by state and name the oldest id."""
    first = world.committed()
    world.committed()
    world.check(world.new_id())
    stats = world.fence.stats()
    assert (stats.states, stats.oldest, stats.pruned_below) == ({1: 2, 2: 1}, first, bytes(16))


def test_create_is_idempotent_and_safe_at_once(world, threads):
    """Several services may create the tables at the same moment."""
    fence = SqlFence(world.engine, table=f"made_{world.number}")
    for done in [threads.submit(fence.create) for _ in range(4)]:
        done.result(30)
    assert fence.check([bytes(16)], GROUP)[bytes(16)].answer is FenceAnswer.ROLLBACK


def test_create_is_overtaken_at_the_first_row(mariadb):
    """A service finds no row, and another one inserts it first: both have created the tables, with one identity."""
    table, overtaken = f"overtaken_{mariadb.number}", []

    @event.listens_for(mariadb.engine, "before_cursor_execute")
    def overtake(_connection, _cursor, statement, *_others):
        if statement.startswith(f"INSERT INTO {table}_meta"):
            overtaken.append(statement)
            with mariadb.spare.begin() as connection:
                columns = "(singleton, schema_version, pruned_below)"
                connection.execute(text(f"INSERT INTO {table}_meta {columns} VALUES (1, 1, :id)"), {"id": bytes(16)})

    fence = SqlFence(mariadb.engine, table=table)
    fence.create()
    assert 1 == len(overtaken)
    assert SqlFence(mariadb.spare, table=table).identity() == fence.identity()


def test_newer_schema_is_refused_in_one_sentence(world):
    """An older txcore changes no table of a newer schema, and the error names the remedy."""
    with world.engine.begin() as connection:
        connection.execute(text(f"UPDATE {world.fence_table}_meta SET schema_version = 3"))
    with pytest.raises(UsageError, match=r"has schema version 3, this txcore knows 2: upgrade txcore here$"):
        world.fence.create()
    assert world.check(world.new_id()) is FenceAnswer.NO_ANSWER
