"""A producer reads the fence before it publishes; only committed and durable rows count."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import create_engine, text

from txcore.fence import FenceAnswer
from txcore.sqlfence import SqlFence

GROUP = "orders"


@pytest.fixture
def dirty(world, tmp_path):
    """A fence whose connections read the uncommitted rows of other transactions."""
    if world.kind == "sqlite":  # only connections that share a cache can read such rows
        path = tmp_path / "shared.db"
        create = create_engine(f"sqlite:///{path}")
        SqlFence(create).create()
        create.dispose()
        world.engines.append(create_engine(f"sqlite:///file:{path}?cache=shared&uri=true"))
        world.engine = world.engines[-1].execution_options(isolation_level="READ UNCOMMITTED")
        return SqlFence(world.engine)
    world.engine = world.new_engine(isolation_level="READ UNCOMMITTED")
    return world.new_fence()


def settled(fence, transaction_id):
    return fence.settled([transaction_id])[transaction_id].answer


def test_row_of_an_open_transaction_is_not_settled(world, dirty):
    """A row is settled only after its commit, even if a plain read shows it; no read waits for that."""
    transaction_id = world.new_id()
    connection = dirty.begin(None, transaction_id, GROUP)
    if world.kind != "postgresql":
        assert dirty.peek([transaction_id])[transaction_id].answer is FenceAnswer.COMMIT
    began_s = time.monotonic()
    assert settled(dirty, transaction_id) is FenceAnswer.ABSENT
    assert time.monotonic() - began_s < 5
    dirty.commit(connection)
    if world.kind != "sqlite":
        assert settled(dirty, transaction_id) is FenceAnswer.COMMIT


def test_settled_says_what_each_row_says(world):
    """`settled` answers for each row and writes none, so that the producer of an absent one still commits."""
    committed, tombstone, forced, absent = world.committed(), world.new_id(), world.new_id(), world.new_id()
    world.check(tombstone)
    world.fence.force(forced, GROUP)
    readings = world.fence.settled([committed, tombstone, forced, absent])
    assert [readings[each].answer for each in (committed, tombstone, forced, absent)] == [
        FenceAnswer.COMMIT,
        FenceAnswer.ROLLBACK,
        FenceAnswer.FORCED,
        FenceAnswer.ABSENT,
    ]
    world.fence.commit(world.fence.begin(None, absent, GROUP))
    assert settled(world.fence, absent) is FenceAnswer.COMMIT


def test_settled_row_is_on_disk_on_innodb(mariadb):
    """`settled` commits a write after its read, which flushes the row's log on InnoDB."""
    transaction_id = mariadb.committed()
    with mariadb.spare.connect() as connection:
        flushes = text("SELECT variable_value FROM information_schema.global_status WHERE variable_name = :name")
        before = int(connection.execute(flushes, {"name": "Innodb_os_log_written"}).scalar_one())
        assert settled(mariadb.fence, transaction_id) is FenceAnswer.COMMIT
        assert int(connection.execute(flushes, {"name": "Innodb_os_log_written"}).scalar_one()) > before


def test_unreachable_database_settles_nothing():
    """An unreachable database gives NO_ANSWER, without the password in the reason."""
    fence = SqlFence(create_engine("postgresql+psycopg://u:hidden@127.0.0.1:1/d"))
    reading = fence.settled([bytes(16)])[bytes(16)]
    assert reading.answer is FenceAnswer.NO_ANSWER
    assert "hidden" not in reading.reason
