"""Features of psycopg alone: pipelines, and statements that it prepares, forgets and prepares again."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import text

from txcore.errors import FencedError, FenceMisuseError, NotSentError
from txcore.fence import FenceAnswer
from txcore.sqlfence import psycopg3

GROUP = "orders"


def test_pipeline_in_autocommit_is_refused_unless_a_transaction_was_begun(postgresql):
    """A pipeline without BEGIN is refused: its end commits the statements after the half, even if that fails."""
    url = postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    refused, block, queued = (postgresql.new_id() for _ in range(3))
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.pipeline():
            connection.execute(f"INSERT INTO {postgresql.orders_table} (number) VALUES ('tea')")
            with pytest.raises(FenceMisuseError, match="autocommit"):
                postgresql.fence.insert(connection, refused, GROUP)
        with connection.pipeline(), connection.transaction():
            postgresql.fence.insert(connection, block, GROUP)
            postgresql.fence.verify(connection, block)
        with connection.pipeline():
            connection.execute("BEGIN")
            postgresql.fence.insert(connection, queued, GROUP)
            postgresql.fence.verify(connection, queued)
            connection.execute("COMMIT")
    assert [postgresql.row(each) for each in (refused, block, queued)] == [
        FenceAnswer.ABSENT,
        FenceAnswer.COMMIT,
        FenceAnswer.COMMIT,
    ]


def test_pipeline_carries_the_row_after_statements_that_wait_for_their_answers(postgresql):
    """A failure of an earlier statement in the pipeline stops the half."""
    url = postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    good, bad = postgresql.new_id(), postgresql.new_id()
    with psycopg.connect(url) as connection:
        with connection.pipeline():
            connection.execute(f"INSERT INTO {postgresql.orders_table} (number) VALUES ('{good.hex()}')")
            postgresql.fence.insert(connection, good, GROUP)
        connection.commit()
        with contextlib.suppress(psycopg.Error), connection.pipeline():
            connection.execute(f"INSERT INTO {postgresql.orders_table} (number) VALUES ('{good.hex()}')")
            with pytest.raises(NotSentError):
                postgresql.fence.insert(connection, bad, GROUP)
        connection.rollback()
    assert (postgresql.check(good), postgresql.check(bad)) == (FenceAnswer.COMMIT, FenceAnswer.ROLLBACK)


@pytest.fixture
def url(postgresql):
    return postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def shortened(monkeypatch):
    """The number of statements sent without a cursor."""
    count = []
    original = psycopg3.prepared_rows

    def counted(*arguments):
        rows = original(*arguments)
        count.extend([1] * (rows is not None))
        return rows

    monkeypatch.setattr(psycopg3, "prepared_rows", counted)
    return count


def carry(fence, connection, transaction_id, group=GROUP):
    connection.execute("SELECT 1")
    fence.insert(connection, transaction_id, group)
    fence.verify(connection, transaction_id)
    connection.commit()


def test_statements_that_psycopg_has_prepared_go_out_without_a_cursor(postgresql, url, shortened):
    """Both statements are sent without a cursor after psycopg has prepared them, with the same answers."""
    ids = [postgresql.new_id() for _ in range(8)]
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        for each in ids:
            carry(postgresql.fence, connection, each)
        assert len(shortened) == 2 * 2
        carry(postgresql.fence, connection, postgresql.new_id(), group="bestellungen, übrige")
        assert len(shortened) == 2 * 2 + 1
        postgresql.check(refused := postgresql.new_id())
        connection.execute("SELECT 1")
        with pytest.raises(FencedError):
            postgresql.fence.insert(connection, refused, GROUP)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        connection.execute("SAVEPOINT mine")
        with pytest.raises(FenceMisuseError, match="savepoint"):
            postgresql.fence.insert(connection, postgresql.new_id(), GROUP)
    assert {postgresql.check(each) for each in ids} == {FenceAnswer.COMMIT}


@pytest.mark.parametrize("end", ["ROLLBACK", "DISCARD ALL", "DEALLOCATE ALL"])
def test_statement_that_psycopg_has_forgotten_is_not_used_by_name(postgresql, url, shortened, end):
    """After psycopg has deallocated its prepared statements, a cursor inserts the next row."""
    with psycopg.connect(url) as connection:
        for _ in range(7):
            carry(postgresql.fence, connection, postgresql.new_id())
        assert shortened
        connection.autocommit = True
        connection.execute("BEGIN")
        connection.execute("COMMIT" if end == "DISCARD ALL" else "SELECT 1")
        connection.execute(end)
        if connection.info.transaction_status:
            connection.execute("COMMIT")
        connection.autocommit = False
        del shortened[:]
        transaction_id = postgresql.new_id()
        carry(postgresql.fence, connection, transaction_id)
        assert not shortened
    assert postgresql.check(transaction_id) is FenceAnswer.COMMIT


@pytest.fixture
def warm_engine(postgresql, shortened):
    """An engine with one connection, on which the fence's statements are prepared."""
    engine = postgresql.new_engine(pool_size=1, max_overflow=0)
    for _ in range(7):
        postgresql.fence.commit(postgresql.fence.begin(engine, postgresql.new_id(), GROUP))
    assert shortened
    return engine


def test_row_that_goes_out_with_begin_is_like_any_other(postgresql, warm_engine, shortened):
    """A row that is sent with BEGIN can be committed, refused and rolled back, and frees its connection."""
    committed, refused, rolled_back = (postgresql.new_id() for _ in range(3))
    postgresql.check(refused)
    del shortened[:]
    connection = postgresql.fence.begin(warm_engine, committed, GROUP)
    postgresql.add_order(connection, committed)
    postgresql.fence.verify(connection, committed)
    postgresql.fence.commit(connection)
    with pytest.raises(FencedError):
        postgresql.fence.begin(warm_engine, refused, GROUP)
    postgresql.fence.rollback(postgresql.fence.begin(warm_engine, rolled_back, GROUP))
    assert shortened
    assert warm_engine.pool.checkedout() == 0
    answers = [postgresql.check(each) for each in (committed, refused, rolled_back)]
    assert answers == [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK, FenceAnswer.ROLLBACK]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_begin_that_goes_out_with_the_row_keeps_the_isolation_level(postgresql, warm_engine, shortened, level):
    """A BEGIN that is sent with the row has the isolation level that the program has set."""
    engine = warm_engine.execution_options(isolation_level=level)
    del shortened[:]
    for _ in range(7):
        connection = postgresql.fence.begin(engine, postgresql.new_id(), GROUP)
        assert connection.execute(text("SHOW transaction_isolation")).scalar_one().upper() == level
        postgresql.fence.commit(connection)
    assert shortened


def test_connection_that_died_in_the_pool_is_not_given_out_again(postgresql, warm_engine, shortened):
    """If BEGIN and the row get no answer, no half is sent, and the next connection is a fresh one."""
    with warm_engine.connect() as connection:
        number = postgresql.session_id(connection)
        connection.commit()
    postgresql.kill_session(number)
    del shortened[:]
    with pytest.raises(NotSentError, match="lost"):
        postgresql.fence.begin(warm_engine, postgresql.new_id(), GROUP)
    postgresql.fence.commit(postgresql.fence.begin(warm_engine, postgresql.new_id(), GROUP))
    assert warm_engine.pool.checkedout() == 0


def test_nothing_is_prepared_where_the_program_has_switched_it_off(postgresql, url, shortened):
    """If the program has switched preparing off, for example for a pooler, no statement is prepared."""
    with psycopg.connect(url, prepare_threshold=None) as connection:
        for _ in range(7):
            carry(postgresql.fence, connection, postgresql.new_id())
        assert not shortened


def test_psycopg_that_keeps_its_statements_elsewhere_is_served_by_cursors():
    """With a psycopg that lacks the internal data, which it does not promise, cursors send the statements."""
    pgconn = SimpleNamespace(transaction_status=psycopg.pq.TransactionStatus.INTRANS, pipeline_status=0)
    connection = SimpleNamespace(pgconn=pgconn, prepare_threshold=5, autocommit=False)
    assert psycopg3.prepared_rows(connection, "SELECT :id", {"id": "1"}) is None
