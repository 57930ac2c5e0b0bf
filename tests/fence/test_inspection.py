"""Reading the fence for an operator writes no row and no tombstone, and counts no check."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from txcore.errors import BackendUnavailableError, FencedError
from txcore.fence import FenceAnswer
from txcore.sqlfence import AsyncSqlFence, FenceRow, SqlFence

GROUP = "orders"


def test_row_is_read_unchanged(world):
    """A row is read with its state, its group, the time of its insert, and the number of its checks."""
    committed, tombstone, absent = world.committed(), world.new_id(), world.new_id()
    world.check(tombstone)
    world.check(committed)
    world.check(committed)
    rows = world.fence.rows([committed, tombstone, absent])
    assert set(rows) == {committed, tombstone}
    assert isinstance(rows[committed], FenceRow)
    assert (rows[committed].state, rows[committed].group, rows[committed].checks) == (1, GROUP, 2)
    assert rows[tombstone].state == 2
    assert abs(rows[committed].created_ms - time.time() * 1000) < 300_000
    assert world.fence.rows([]) == {}


def test_reading_leaves_no_tombstone_and_counts_no_check(world):
    """After any number of reads the producer still commits, and the check counter is unchanged."""
    transaction_id = world.new_id()
    for _ in range(3):
        assert world.row(transaction_id) is FenceAnswer.ABSENT
        assert world.fence.rows([transaction_id]) == {}
    connection = world.fence.begin(None, transaction_id, GROUP)
    world.fence.commit(connection)
    for _ in range(3):
        assert world.row(transaction_id) is FenceAnswer.COMMIT
        assert world.fence.rows([transaction_id])[transaction_id].checks == 0
    with pytest.raises(FencedError):
        world.fence.begin(None, transaction_id, GROUP)


def test_reading_beside_an_open_producer_waits_for_nothing_and_hinders_nothing(world):
    """A read is ABSENT while the producer's transaction is open, and does not stop its commit."""
    transaction_id = world.new_id()
    connection = world.fence.begin(None, transaction_id, GROUP)
    world.add_order(connection, transaction_id)
    started_s = time.monotonic()
    fence = SqlFence(world.spare, table=world.fence_table, lock_timeout_s=30)
    readings = fence.peek([transaction_id])
    assert fence.rows([transaction_id]) == {}
    assert fence.ids_below(world.new_id()) == []
    assert time.monotonic() - started_s < 5
    assert readings[transaction_id].answer is FenceAnswer.ABSENT
    world.fence.verify(connection, transaction_id)
    world.fence.commit(connection)
    assert world.row(transaction_id) is FenceAnswer.COMMIT


def test_statistics_distinguish_groups(world):
    """The statistics count the rows by state, in all and by group, and name the oldest id and the horizon."""
    first = world.committed()
    world.check(world.new_id())
    world.check(world.new_id(), group="billing")
    stats = world.fence.stats()
    assert stats.states == {1: 1, 2: 2}
    assert stats.groups == {GROUP: {1: 1, 2: 1}, "billing": {2: 1}}
    assert (stats.oldest, stats.pruned_below) == (first, bytes(16))


def test_ids_are_paged_through(world):
    """Pages of ids are ascending, begin after a given id, and skip none."""
    ids = [world.committed() for _ in range(5)]
    assert world.fence.ids_below(world.new_id(), count=3) == ids[:3]
    assert world.fence.ids_below(world.new_id(), after=ids[2]) == ids[3:]
    assert world.fence.ids_below(ids[0]) == []


def test_missing_table_is_reported_with_the_remedy(world):
    """A missing table is an error with the remedy, and not a missing row."""
    with pytest.raises(BackendUnavailableError, match="run `txcore fence create`"):
        SqlFence(world.engine, table="never_created").rows([bytes(16)])


def test_rows_are_read_asynchronously(tmp_path):
    """The rows of an asynchronous fence are read with `await`."""

    async def read() -> dict:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'service.db'}")
        fence = AsyncSqlFence(engine)
        await fence.create()
        await fence.check([b"a" * 16], GROUP)
        rows = await fence.rows([b"a" * 16])
        await engine.dispose()
        return rows

    assert asyncio.run(read())[b"a" * 16].state == 2


def test_unreachable_database_is_reported(tmp_path):
    """An unreachable database is an error without the password, and not a missing row."""
    fence = SqlFence(create_engine("postgresql+psycopg://u:hidden@127.0.0.1:1/d"))
    for call in (lambda: fence.rows([bytes(16)]), lambda: fence.ids_below(b"\xff" * 16)):
        with pytest.raises(BackendUnavailableError) as error:
            call()
        assert "hidden" not in str(error.value)
