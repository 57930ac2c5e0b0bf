"""After a server was killed with SIGKILL and has recovered, the fence's answers still hold."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from txcore_conformance import servers
from txcore_conformance.required import obtained

from txcore.fence import FenceAnswer

GROUP = "orders"


def restart(world):
    world.server.kill()
    for engine in world.engines:
        engine.dispose()
    world.server.start()


def commit_asynchronously(world):
    """Replace the fence's own `synchronous_commit` setting in the producer's insert by `off`."""
    dialect = world.fence._dialect
    weaker = {
        key: insert.replace("THEN 'remote_apply' ELSE 'on' END", "THEN 'off' ELSE 'off' END")
        for key, insert in dialect._inserts.items()
    }
    assert not set(weaker.values()) & set(dialect._inserts.values())
    dialect._inserts = weaker


def test_server_killed_between_fence_row_and_commit_rolls_back(killable):
    """Recovery removes the open transaction, and the next check decides ROLLBACK for ever."""
    transaction_id = killable.new_id()
    connection = killable.fence.begin(None, transaction_id, GROUP)
    killable.add_order(connection, transaction_id)
    killable.fence.verify(connection, transaction_id)
    killable.server.kill()
    assert killable.check(transaction_id) is FenceAnswer.NO_ANSWER
    killable.fence.rollback(connection)
    killable.server.start()
    assert killable.check(transaction_id) is FenceAnswer.ROLLBACK
    assert not killable.has_order(transaction_id)


def test_server_killed_after_commit_keeps_it(killable):
    """An acknowledged COMMIT is there after the recovery."""
    ids = [killable.committed() for _ in range(5)]
    restart(killable)
    assert [killable.check(transaction_id) for transaction_id in ids] == [FenceAnswer.COMMIT] * 5
    assert all(killable.has_order(transaction_id) for transaction_id in ids)


def test_server_killed_after_a_tombstone_keeps_it(killable):
    """A tombstone whose ROLLBACK a checker has read is there after the recovery."""
    ids = [killable.new_id() for _ in range(5)]
    assert [killable.check(transaction_id) for transaction_id in ids] == [FenceAnswer.ROLLBACK] * 5
    restart(killable)
    assert [killable.row(transaction_id) for transaction_id in ids] == [FenceAnswer.ROLLBACK] * 5


def test_server_killed_while_the_horizon_was_raised_keeps_the_horizon(killable):
    """The prune's raised horizon is durable before its first delete."""
    committed = killable.committed()
    below = killable.new_id()

    def crash(seconds):
        restart(killable)

    result = killable.new_fence(sleep=crash).prune(below, lambda ids: ids)
    assert (result.horizon, result.deleted) == (below, 1)
    assert killable.check(committed) is FenceAnswer.PRUNED


@pytest.fixture(scope="module")
def lazy_postgresql():
    """A server that writes its log only when a commit asks for it."""
    server = obtained(
        "postgresql", lambda: servers.postgresql(synchronous_commit="off", wal_writer_delay="10000", autovacuum="off")
    )
    if not server.can_be_killed:
        pytest.skip("the server does not belong to the tests")
    yield server
    server.remove()


def test_asynchronous_commit_leaves_no_ghost_of_a_fenced_transaction(lazy_postgresql, world_on):
    """A fenced COMMIT survives a crash although its session runs with synchronous_commit=off."""
    world = world_on(lazy_postgresql)
    transaction_id = world.committed()
    restart(world)
    assert world.check(transaction_id) is FenceAnswer.COMMIT
    assert world.has_order(transaction_id)


def test_ghost_without_the_fences_own_setting_is_reproduced(lazy_postgresql, world_on):
    """Without the fence's `synchronous_commit=on`, a COMMIT that was answered is lost in the crash."""
    world = world_on(lazy_postgresql)
    commit_asynchronously(world)
    # The first asynchronous commit wakes the log writer up; the later ones do not.
    transaction_id = [world.committed() for _ in range(20)][-1]
    assert world.row(transaction_id) is FenceAnswer.COMMIT
    restart(world)
    assert world.row(transaction_id) is FenceAnswer.ABSENT
    assert not world.has_order(transaction_id)


def test_check_makes_an_asynchronous_commit_durable_before_it_answers(lazy_postgresql, world_on):
    """A check's own durable write flushes the COMMIT that it answers, so that a crash cannot undo it."""
    world = world_on(lazy_postgresql)
    commit_asynchronously(world)
    # The first asynchronous commit wakes the log writer up; the later ones do not.
    transaction_id = [world.committed() for _ in range(20)][-1]
    assert world.check(transaction_id) is FenceAnswer.COMMIT
    restart(world)
    assert world.row(transaction_id) is FenceAnswer.COMMIT
    assert world.has_order(transaction_id)


def test_commit_answered_by_a_check_survives_a_kill_at_any_moment(killable, threads):
    """Each COMMIT and ROLLBACK that a check answered still holds after the server was killed and started again."""
    answered: dict[bytes, FenceAnswer] = {}
    stopped = threading.Event()
    ids: list[bytes] = []

    def produce():
        while not stopped.is_set():
            transaction_id = killable.new_id()
            connection = None
            try:
                connection = killable.fence.begin(None, transaction_id, GROUP)
                ids.append(transaction_id)
                killable.add_order(connection, transaction_id)
                killable.fence.commit(connection)
            except Exception:  # noqa: BLE001 - the server dies under it, anywhere
                if connection is not None:
                    killable.fence.rollback(connection)
                return

    def check():
        while not stopped.is_set():
            for transaction_id in ids[-3:]:
                answer = killable.check(transaction_id)
                if answer is not FenceAnswer.NO_ANSWER:
                    answered[transaction_id] = answer

    running = [threads.submit(produce) for _ in range(3)] + [threads.submit(check) for _ in range(2)]
    while len(answered) < 60:
        assert not all(done.done() for done in running)
        stopped.wait(0.01)
    killable.server.kill()
    stopped.set()
    for done in running:
        done.result(30)
    for engine in killable.engines:
        engine.dispose()
    killable.server.start()
    now = killable.fence.peek(list(answered))
    assert {item: reading.answer for item, reading in now.items()} == answered
    for transaction_id, answer in answered.items():
        assert killable.has_order(transaction_id) is (answer is FenceAnswer.COMMIT)


def test_restarted_server_costs_no_answer(killable):
    """After a restart of the server, the first failure renews all pooled connections, so each check answers."""
    transaction_id = killable.committed()
    connections = [killable.engine.connect() for _ in range(4)]
    for connection in connections:
        connection.close()
    killable.server.kill()
    killable.server.start()
    assert [killable.check(transaction_id) for _ in range(3)] == [FenceAnswer.COMMIT] * 3


def test_paused_server_is_no_answer_when_the_engine_has_a_time_limit(mariadb):
    """A check of a server that is stopped with SIGSTOP is NO_ANSWER after the driver's read timeout."""
    if not mariadb.server.can_be_killed:
        pytest.skip("the server does not belong to the tests")
    fence = mariadb.new_fence(mariadb.new_engine(connect_args={"read_timeout": 1, "connect_timeout": 1}))
    transaction_id = mariadb.committed()
    assert mariadb.check(transaction_id, fence) is FenceAnswer.COMMIT
    mariadb.server.pause()
    try:
        assert mariadb.check(transaction_id, fence) is FenceAnswer.NO_ANSWER
    finally:
        mariadb.server.resume()
    assert mariadb.check(transaction_id, fence) is FenceAnswer.COMMIT


PRODUCER = """
import os, signal, sys
from sqlalchemy import create_engine, text
from txcore.sqlfence import SqlFence
url, table, orders, name, moment = sys.argv[1:]
fence = SqlFence(create_engine(url), table=table)
connection = fence.begin(None, bytes.fromhex(name), "orders")
connection.execute(text(f"INSERT INTO {orders} (number) VALUES ('{name}')"))
fence.verify(connection, bytes.fromhex(name))
if moment == "after":
    fence.commit(connection)
print("here", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("moment", "expected"), [("before", FenceAnswer.ROLLBACK), ("after", FenceAnswer.COMMIT)])
def test_producer_killed_around_its_commit_is_decided_by_what_the_database_holds(world, moment, expected, eventually):
    """The database decides about a producer that was killed just before or just after its COMMIT."""
    transaction_id = world.new_id()
    arguments = [world.url, world.fence_table, world.orders_table, transaction_id.hex(), moment]
    done = subprocess.run([sys.executable, "-c", PRODUCER, *arguments], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("here\n", -signal.SIGKILL)
    eventually(lambda: world.check(transaction_id) is not FenceAnswer.NO_ANSWER)
    assert world.check(transaction_id) is expected
    assert world.has_order(transaction_id) is (expected is FenceAnswer.COMMIT)
