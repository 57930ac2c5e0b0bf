"""A prune raises the horizon first, then waits, and no row below the horizon is written again."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from txcore.errors import BackendUnavailableError, ConfigError, FencedError, NotSentError
from txcore.fence import FenceAnswer
from txcore.ids import first_id_at
from txcore.message_table import TableRow
from txcore.sqlfence import AsyncSqlFence, PruneResult
from txcore.sqlfence import prune as prune_module
from txcore.sqlfence.connections import border_of
from txcore.sqlfence.prune import Contended, Wait, prune_steps

GROUP = "orders"


def everything(ids):
    return ids


@pytest.fixture
def prune(world):
    """Return a function that prunes up to a fresh id, without waiting."""

    def run(is_closed=everything, below=None, fence_world=world, **options):
        fence = fence_world.new_fence(sleep=lambda seconds: None)
        return fence.prune(below or fence_world.new_id(), is_closed, **options)

    return run


def test_only_closed_ids_below_the_horizon_are_deleted(world, prune):
    """A prune keeps pending rows and those with messages in the table, and their answers do not change."""
    closed, pending, via_table = world.committed(), world.committed(), world.new_id()
    connection = world.fence.begin(None, via_table, GROUP)
    world.fence.enqueue(connection, via_table, GROUP, [TableRow(via_table, 0, 7, b"message")])
    world.fence.commit(connection)
    below = world.new_id()
    younger = world.committed()
    result = prune(lambda ids: {closed, via_table, younger}.intersection([*ids, younger]), below)
    assert result == PruneResult(horizon=below, deleted=1, kept=2)
    assert [world.check(item) for item in (pending, via_table, younger)] == [
        FenceAnswer.COMMIT,
        FenceAnswer.VIA_TABLE,
        FenceAnswer.COMMIT,
    ]


def test_row_whose_messages_are_sent_stays_until_it_is_named(world, prune):
    """A row whose messages are sent stays until a caller names it, because a half of it may be open."""
    sent = world.new_id()
    connection = world.fence.begin(None, sent, GROUP)
    world.fence.enqueue(connection, sent, GROUP, [])
    world.fence.commit(connection)
    assert world.fence.sent([sent]) == {sent}
    below = world.new_id()
    result = prune(lambda ids: [], below)
    assert (result.deleted, result.kept) == (0, 1)
    assert world.check(sent) is FenceAnswer.SENT
    assert prune(world.fence.sent, below).deleted == 1


def test_pruned_id_is_pruned_and_gets_no_tombstone(world, prune):
    """A check of a pruned id answers PRUNED each time and writes no tombstone, because the decision is lost."""
    committed, never_seen = world.committed(), world.new_id()
    prune()
    for _ in range(2):
        assert world.check(committed) is FenceAnswer.PRUNED
        assert world.check(never_seen) is FenceAnswer.PRUNED
    assert world.row(committed) is FenceAnswer.PRUNED
    assert world.fence.stats().states == {}


def test_tombstone_below_the_horizon_that_is_kept_stays_an_answer(world, prune):
    """A row that a prune has kept below the horizon still gives its answer."""
    transaction_id = world.new_id()
    world.check(transaction_id)
    prune(lambda ids: [])
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK


def test_batch_across_the_horizon_answers_each_side_by_its_rule(world, prune):
    """One check may have ids below and above the horizon, and each gets its answer."""
    gone, kept = world.committed(), world.committed()
    prune(lambda ids: [gone])
    fresh, new = world.committed(), world.new_id()
    readings = world.fence.check([gone, kept, fresh, new], GROUP)
    assert [readings[item].answer for item in (gone, kept, fresh, new)] == [
        FenceAnswer.PRUNED,
        FenceAnswer.COMMIT,
        FenceAnswer.COMMIT,
        FenceAnswer.ROLLBACK,
    ]


def test_producer_below_the_horizon_is_refused(world, prune):
    """A producer that slept during the prune must not commit an id whose tombstone may be gone."""
    late = world.new_id()
    world.check(late)
    prune()
    with pytest.raises(FencedError, match="below the prune horizon"):
        world.fence.begin(None, late, GROUP)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_producer_with_a_snapshot_older_than_the_prune_is_refused(server_world, level):
    """A transaction whose snapshot is older than the prune is refused, although it shows the old horizon."""
    stalled = server_world.new_id()
    engine = server_world.new_engine(isolation_level=level)
    with engine.connect() as connection:
        connection.execute(text(f"SELECT * FROM {server_world.orders_table}")).all()
        assert server_world.check(stalled) is FenceAnswer.ROLLBACK
        fence = server_world.new_fence(sleep=lambda seconds: None)
        assert fence.prune(server_world.new_id(), everything).deleted == 1
        server_world.add_order(connection, stalled)
        with pytest.raises(NotSentError):
            server_world.fence.insert(connection, stalled, GROUP)
        connection.commit()
    assert not server_world.has_order(stalled)


def test_row_of_an_open_producer_is_never_deleted(server_world, monkeypatch):
    """A prune does not delete an uncommitted row, even if its id is below the horizon."""
    transaction_id = server_world.new_id()
    engine = server_world.new_engine(isolation_level="READ COMMITTED")
    connection = server_world.fence.begin(engine, transaction_id, GROUP)
    fence = server_world.new_fence(sleep=lambda seconds: None)
    if server_world.kind == "mariadb":  # an open producer holds the horizon there
        monkeypatch.setattr(prune_module, "_ATTEMPTS_MAX", 1)
        with pytest.raises(BackendUnavailableError, match="can be run again"):
            fence.prune(server_world.new_id(), everything)
        server_world.fence.commit(connection)
        assert server_world.check(transaction_id) is FenceAnswer.COMMIT
        return
    assert fence.prune(server_world.new_id(), everything).deleted == 0
    with pytest.raises(FencedError, match="below the prune horizon by now"):
        server_world.fence.verify(connection, transaction_id)
    assert server_world.check(transaction_id) is FenceAnswer.PRUNED


def test_check_that_has_begun_holds_the_horizon_until_it_ends(server_world, threads, eventually):
    """A prune waits for a check that has begun, and so cannot turn its answer into ROLLBACK."""
    committed = server_world.committed()
    fence = server_world.new_fence()
    dialect = fence._dialect
    engine = server_world.new_engine(isolation_level="READ COMMITTED")
    with engine.connect() as connection:
        border = border_of(connection)
        undo = dialect.begin_work(border, 1)
        horizon = dialect.horizon(border, locked=True)
        below = server_world.new_id()
        pruned = threads.submit(server_world.new_fence(sleep=lambda seconds: None).prune, below, everything)
        eventually(server_world.waiters)
        rows = dialect.leave_tombstones(border, [committed], GROUP)
        assert (horizon, rows[committed].state) == (bytes(16), 1)
        border.commit()
        if undo:
            border.writer().quick_change(undo, {})
    assert pruned.result(20).deleted == 1
    assert server_world.check(committed) is FenceAnswer.PRUNED


def test_check_of_the_fence_holds_the_horizon_that_it_read(server_world, threads, eventually, monkeypatch):
    """The fence's check itself locks the horizon that it has read."""
    committed, below = server_world.committed(), server_world.new_id()
    fence = server_world.new_fence()
    leave, pruned = fence._dialect.leave_tombstones, []

    def leave_behind_a_prune(border, ids, group):
        prune = server_world.new_fence(sleep=lambda seconds: None).prune
        pruned.append(threads.submit(prune, below, everything))
        eventually(server_world.waiters)
        return leave(border, ids, group)

    monkeypatch.setattr(fence._dialect, "leave_tombstones", leave_behind_a_prune)
    assert fence.check([committed], GROUP)[committed].answer is FenceAnswer.COMMIT
    assert pruned[0].result(20).deleted == 1


def test_prune_racing_checks_never_makes_a_rollback_of_a_commit(world, threads):
    """A check during a prune answers COMMIT, PRUNED or NO_ANSWER for a committed id, and never ROLLBACK."""
    ids = [world.committed() for _ in range(40)]
    below = world.new_id()
    fence = world.new_fence(sleep=lambda seconds: None)

    def ask():
        return [world.fence.check([item], GROUP)[item].answer for item in ids]

    asked = [threads.submit(ask) for _ in range(2)]
    try:
        deleted = threads.submit(fence.prune, below, everything, chunk=1).result(60).deleted
    except BackendUnavailableError:
        deleted = None  # SQLite's one lock may stay with the checkers
    answers = {answer for done in asked for answer in done.result(60)}
    assert answers <= {FenceAnswer.COMMIT, FenceAnswer.PRUNED, FenceAnswer.NO_ANSWER}
    assert deleted in (40, None)


def test_insert_that_outlasts_the_statement_timeout_is_refused(postgresql, threads, eventually):
    """An insert that takes longer than `statement_timeout_s` is refused: a prune waits only for that long."""
    transaction_id = postgresql.new_id()
    holder = postgresql.fence.begin(None, transaction_id, GROUP)  # the same key: the second insert waits for it
    fence = postgresql.new_fence(statement_timeout_s=0.05)
    late = threads.submit(fence.begin, None, transaction_id, GROUP)
    eventually(postgresql.waiters)
    with postgresql.engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(0.06)"))
    postgresql.fence.rollback(holder)
    with pytest.raises(FencedError, match="took longer than statement_timeout_s"):
        late.result(10)
    assert postgresql.row(transaction_id) is FenceAnswer.ABSENT


def test_prune_waits_between_the_horizon_and_the_first_delete(world):
    """A prune waits after raising the horizon, so that no stalled statement writes below it after the delete."""
    transaction_id = world.committed()
    below = world.new_id()
    seen = []

    def sleep(seconds):
        seen.append((seconds, world.fence.stats().pruned_below == below, world.row(transaction_id)))

    result = world.new_fence(sleep=sleep).prune(below, everything, wait_s=12)
    assert seen == [(12, True, FenceAnswer.COMMIT)]
    assert result.deleted == 1


def test_prune_without_a_long_enough_wait_is_refused(sqlite):
    """A prune's wait must be longer than any statement may take."""
    with pytest.raises(ConfigError, match="must be longer than statement_timeout_s"):
        sqlite.fence.prune(sqlite.new_id(), everything, wait_s=10)
    with pytest.raises(ConfigError, match="chunk"):
        sqlite.fence.prune(sqlite.new_id(), everything, chunk=0)


def test_horizon_never_goes_down(world, prune):
    """A later prune with a lower id does not lower the horizon."""
    low, high = first_id_at(1), world.new_id()
    assert prune(below=high).horizon == high
    assert prune(below=low).horizon == high


def test_prune_works_in_chunks_and_can_be_interrupted_and_run_again(world, prune):
    """An exception of is_closed ends the prune; the next run continues with the remaining rows."""
    ids = [world.committed() for _ in range(5)]
    chunks = []

    def until_the_third(asked):
        chunks.append(len(asked))
        if len(chunks) == 3:
            raise RuntimeError("the op log is away")
        return asked

    with pytest.raises(RuntimeError, match="the op log is away"):
        prune(until_the_third, chunk=2)
    assert chunks == [2, 2, 1]
    assert world.check(ids[-1]) is FenceAnswer.COMMIT
    assert prune().deleted == 1


def test_is_closed_cannot_name_ids_it_was_not_asked_for(world, prune):
    """A prune does not delete an id above the horizon, even if `is_closed` returns it by mistake."""
    world.committed()
    below = world.new_id()
    younger = world.committed()
    assert prune(lambda ids: [younger], below).deleted == 0


def test_contended_step_is_tried_again_a_bounded_number_of_times():
    """A lock that is never free ends the prune with an error after five tries."""
    steps = prune_steps(None, bytes(16), everything, wait_s=1, chunk=1)
    waits = [isinstance(next(steps), Wait)]
    for _ in range(4):
        waits += [isinstance(steps.send(Contended("locked")), Wait), isinstance(steps.send(None), Wait)]
    with pytest.raises(BackendUnavailableError, match="5 tries"):
        steps.send(Contended("locked"))
    assert waits == [False, *[True, False] * 4]


def test_async_prune_waits_asynchronously(sqlite):
    """The prune of an asynchronous fence awaits its sleep."""
    sqlite.committed()
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    async def run():
        engine = create_async_engine(sqlite.engine.url.set(drivername="sqlite+aiosqlite"))
        result = await AsyncSqlFence(engine, table=sqlite.fence_table, sleep=sleep).prune(sqlite.new_id(), everything)
        await engine.dispose()
        return result

    assert asyncio.run(run()).deleted == 1
    assert waits == [11]
