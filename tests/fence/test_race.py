"""Races: many threads, every isolation level, and the deadlocks that MariaDB is known for."""

from __future__ import annotations

import itertools
import threading

import pymysql
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from txcore.errors import CommitUnknownError, FencedError, NotSentError
from txcore.fence import FenceAnswer, FenceReading

GROUP = "orders"
LEVELS = {
    "postgresql": ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
    "mariadb": ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
    "sqlite": ["SERIALIZABLE"],
}
FINAL = {FenceAnswer.COMMIT, FenceAnswer.ROLLBACK}
KEYS = 60
CHECKERS = 3


@pytest.mark.parametrize(("kind", "level"), [(kind, level) for kind, levels in LEVELS.items() for level in levels])
def test_one_producer_and_three_checkers_never_contradict_each_other(make_world, threads, kind, level):
    """All final answers about an id are equal, never change, and agree with the database's rows."""
    world = make_world(kind)
    engine = world.new_engine(isolation_level=level, pool_size=8)
    checkers = world.new_fence(world.new_engine(isolation_level=level, pool_size=24), lock_timeout_s=0.2)
    answers: dict[bytes, list[FenceAnswer]] = {}
    reported: dict[bytes, bool] = {}

    def produce(barrier, number, transaction_id):
        barrier.wait()
        try:
            connection = world.fence.begin(engine, transaction_id, GROUP)
        except NotSentError:
            reported[transaction_id] = False
            return
        world.add_order(connection, transaction_id)
        if number % 2:
            world.fence.rollback(connection)
            reported[transaction_id] = False
            return
        try:
            world.fence.verify(connection, transaction_id)
            world.fence.commit(connection)
        except (CommitUnknownError, NotSentError):
            return
        reported[transaction_id] = True

    def check(barrier, transaction_id):
        barrier.wait()
        for _ in range(2):
            answers[transaction_id].append(checkers.check([transaction_id], GROUP)[transaction_id].answer)

    def race(number):
        transaction_id = world.new_id()
        answers[transaction_id] = []
        barrier = threading.Barrier(CHECKERS + 1)
        return [
            threads.submit(produce, barrier, number, transaction_id),
            *(threads.submit(check, barrier, transaction_id) for _ in range(CHECKERS)),
        ]

    for start in range(0, KEYS, 8):  # 32 threads at once
        for done in list(itertools.chain.from_iterable(race(number) for number in range(start, min(start + 8, KEYS)))):
            done.result(60)

    last = world.fence.check(list(answers), GROUP)
    decided = 0
    for transaction_id, seen in answers.items():
        final = FINAL.intersection(seen)
        assert last[transaction_id].answer in FINAL
        assert final <= {last[transaction_id].answer}, (transaction_id.hex(), seen)
        assert world.has_order(transaction_id) is (last[transaction_id].answer is FenceAnswer.COMMIT)
        if transaction_id in reported:
            assert reported[transaction_id] is (last[transaction_id].answer is FenceAnswer.COMMIT)
        decided += bool(final)
    assert decided > 0, "the checkers never won or saw a race; the test proves nothing"


def test_two_checkers_waiting_on_a_key_whose_producer_rolls_back_do_not_deadlock(mariadb, threads, eventually):
    """Checks do not wait for a row, because two waiters would block each other's insert (MariaDB's 1213)."""
    pool = mariadb.new_fence(mariadb.new_engine(pool_size=8), attempts_max=1)
    readings: list[FenceReading] = []

    def check(barrier, transaction_id):
        barrier.wait()
        readings.append(pool.check([transaction_id], GROUP)[transaction_id])

    for _ in range(20):
        transaction_id = mariadb.new_id()
        connection = mariadb.fence.begin(None, transaction_id, GROUP)
        barrier = threading.Barrier(3)
        asked = [threads.submit(check, barrier, transaction_id) for _ in range(2)]
        barrier.wait()
        eventually(lambda: all(done.done() for done in asked) or mariadb.waiters() == 2)  # noqa: B023 - waited for at once
        mariadb.fence.rollback(connection)
        for done in asked:
            done.result(30)
        assert mariadb.check(transaction_id) is FenceAnswer.ROLLBACK
    assert not [reading.reason for reading in readings if "1213" in reading.reason]


def test_producers_that_wait_for_a_check_that_rolls_back_begin(mariadb, threads, eventually):
    """A check that finds one row locked rolls the others back; producers that waited for those do not deadlock.

    Both have inherited the lock of the gap into which both insert (MariaDB's 1213).
    """

    def write(transaction_id):
        mariadb.fence.commit(mariadb.fence.begin(None, transaction_id, GROUP))

    for _ in range(10):
        ids = [mariadb.new_id() for _ in range(2)]
        with mariadb.engine.connect() as check:
            check.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
            for transaction_id in ids:
                values = {"id": transaction_id, "producer_group": GROUP}
                sql = f"INSERT INTO {mariadb.fence_table} (transaction_id, state, producer_group)"
                check.execute(text(f"{sql} VALUES (:id, 2, :producer_group)"), values)
            writers = [threads.submit(write, transaction_id) for transaction_id in ids]
            eventually(lambda: mariadb.waiters() == 2)
            check.rollback()
        for done in writers:
            done.result(30)
        assert [mariadb.row(transaction_id) for transaction_id in ids] == [FenceAnswer.COMMIT] * 2


def test_deadlock_of_a_check_is_tried_again_and_then_no_answer(mariadb, monkeypatch):
    """A check repeats a deadlock (1213) up to its bound, and then has no answer."""
    transaction_id = mariadb.committed()
    fence = mariadb.new_fence(attempts_max=3)
    dialect = type(fence._dialect)
    leave_tombstones, tries, failures = dialect.leave_tombstones, [], []

    def deadlock(self, border, ids, group):
        tries.append(1)
        if len(tries) <= failures[-1]:
            raise OperationalError("INSERT", {}, pymysql.err.OperationalError(1213, "Deadlock found"))
        return leave_tombstones(self, border, ids, group)

    monkeypatch.setattr(dialect, "leave_tombstones", deadlock)
    for number, expected in ((2, FenceAnswer.COMMIT), (3, FenceAnswer.NO_ANSWER)):
        tries.clear()
        failures.append(number)
        assert mariadb.check(transaction_id, fence) is expected
        assert len(tries) == 3


def test_thirty_two_writers_and_a_checker_have_no_deadlock(mariadb, threads):
    """No producer of 32 is the victim of a deadlock while a checker writes tombstones between their keys."""
    engine = mariadb.new_engine(pool_size=32)
    stopped = threading.Event()
    ids: list[bytes] = []

    def write():
        for _ in range(12):
            transaction_id = mariadb.new_id()
            ids.append(transaction_id)
            try:
                connection = mariadb.fence.begin(engine, transaction_id, GROUP)
            except FencedError:  # a check was first; a deadlock would be another NotSentError
                continue
            mariadb.add_order(connection, transaction_id)
            mariadb.fence.verify(connection, transaction_id)
            mariadb.fence.commit(connection)

    def check():
        while not stopped.is_set():
            for reading in mariadb.fence.check(ids[-20:], GROUP).values():
                assert "1213" not in reading.reason

    checker = threads.submit(check)
    writers = [threads.submit(write) for _ in range(32)]
    try:
        for done in writers:
            done.result(60)
    finally:
        stopped.set()
    checker.result(30)
    with mariadb.engine.connect() as connection:
        orders = connection.execute(text(f"SELECT count(*) FROM {mariadb.orders_table}")).scalar_one()
    assert orders == mariadb.fence.stats().states.get(1)


def test_overlapping_batches_of_three_checkers_have_no_deadlock(server_world, threads, monkeypatch):
    """Batches sort their keys, so that checkers lock them in one order and do not deadlock."""
    ids = [server_world.new_id() for _ in range(100)]
    server_world.fence.check(ids, GROUP)
    fence = server_world.new_fence(lock_timeout_s=10, attempts_max=1)
    dialect, orders = type(fence._dialect), []
    leave_tombstones = dialect.leave_tombstones

    def recorded(self, border, asked, group):
        orders.append(list(asked))
        return leave_tombstones(self, border, asked, group)

    monkeypatch.setattr(dialect, "leave_tombstones", recorded)
    barrier = threading.Barrier(3)

    def check(order):
        barrier.wait()
        return fence.check(order, GROUP)

    asked = [threads.submit(check, order) for order in (ids, ids[::-1], ids[50:] + ids[:50])]
    answers = [reading for done in asked for reading in done.result(60).values()]
    assert not [reading.reason for reading in answers if "aborted the transaction" in reading.reason]
    assert all(order == sorted(order) for order in orders)
    if server_world.kind == "postgresql":
        assert {reading.answer for reading in answers} == {FenceAnswer.ROLLBACK}
