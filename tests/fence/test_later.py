"""Delayed messages: never early, turned by any relay, cancelled with the caller's transaction or not at all."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance.kit import Answers, wait_until

from txcore import (
    AsyncSqlFence,
    AsyncTransactionProducer,
    BackendUnavailableError,
    CancelState,
    EndState,
    FenceMisuseError,
    Inbox,
    Message,
    MessageRejectedError,
    Relay,
    RelayLimits,
    SqlFence,
    TransactionProducer,
    TransactionStateError,
    UsageError,
    wire,
)
from txcore.clock import SystemClock
from txcore.fence import FenceAnswer
from txcore.ids import first_id_at
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.outbox.slots import Slots
from txcore.outbox.sql_table import SqlMessageTable
from txcore.sqlfence import later
from txcore.sqlfence.connections import border_of

GROUP = "orders"
TOPIC = "orders.due"
FAST = RelayLimits(poll_s=0.002, idle_poll_s=0.02)
HOUR_MS = 3_600_000
CANCELLED, TOO_LATE, NOT_FOUND = CancelState
LOCK_WAIT = {
    "postgresql": "SET LOCAL lock_timeout = '2s'",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 2",
}


class Bench:
    """A database of the world with delayed messages, and a broker in memory."""

    def __init__(self, world, mode="half"):
        self.world = world
        self.broker = MemoryBroker()
        self.producer = TransactionProducer(MemoryBackend(self.broker), GROUP, fence=world.fence, mode=mode)
        self.numbers = itertools.count()

    def put(self, *delays, body=None):
        """Commit one message for each of *delays* (None for none), and return the transaction's id."""
        with self.producer.transaction(self.world.engine) as tx:
            for delay_s in delays:
                raw = str(next(self.numbers)).encode() if body is None else body
                tx.publish(Message(TOPIC, raw, b"key", delay_s=delay_s))
        assert tx.result.state is EndState.VIA_TABLE or set(delays) == {None}
        return tx.transaction_id

    def cancel(self, transaction):
        with self.world.engine.begin() as connection:
            return self.producer.cancel(transaction, connection)

    def relay(self, **options):
        options = {"limits": FAST, "table": self.world.fence_table} | options
        relay = Relay(MemoryBackend(self.broker), GROUP, self.world.engine, **options)
        relay.table.join()
        return relay

    def pass_time(self, ms=HOUR_MS):
        """Let all waiting rows be due *ms* earlier, as if that time had passed."""
        with self.world.engine.begin() as connection:
            connection.execute(text(f"UPDATE {self.world.fence_table}_later SET due = due - {ms}"))

    def bodies(self):
        return [each.body for each in self.broker.topics.get(TOPIC, [])]

    def database_ms(self):
        with self.world.engine.connect() as connection:
            return self.world.fence.now_ms(connection)


@pytest.fixture
def bench(world):
    return Bench(world)


@pytest.fixture
def sqlite_bench(sqlite):
    return Bench(sqlite)


@pytest.fixture
def server_bench(server_world):
    return Bench(server_world)


@pytest.mark.parametrize("mode", ["half", "table", "auto"])
def test_delayed_message_waits_until_it_is_due_in_every_mode(world, mode):
    """A transaction with a delayed message goes by the table as a whole; only what is due is sent."""
    bench = Bench(world, mode)
    identity = bench.put(None, 3600)
    relay = bench.relay()
    assert (relay.run_once().sent, bench.bodies()) == (1, [b"0"])
    assert world.check(identity) is FenceAnswer.VIA_TABLE
    bench.pass_time()
    assert (relay.run_once().sent, bench.bodies()) == (1, [b"0", b"1"])
    assert world.check(identity) is FenceAnswer.SENT


def test_target_names_the_time_at_which_it_was_due(bench):
    """A delay counts from the database's clock in the transaction, and is never shorter than asked for."""
    before_ms = bench.database_ms()
    bench.put(0.02)
    after_ms = bench.database_ms()
    relay = bench.relay()
    wait_until(lambda: relay.run_once().sent, "the message to be due")
    (sent,) = bench.broker.topics[TOPIC]
    due_ms = int(sent.headers[wire.HEADER_DUE])
    assert before_ms + 20 <= due_ms <= after_ms + 21
    assert bench.database_ms() >= due_ms


def test_message_with_a_time_is_sent_then_and_not_before(bench):
    """A time of any zone is compared with the database's clock, and one that has passed is due at once."""
    at = datetime.fromtimestamp(bench.database_ms() / 1000, UTC) + timedelta(hours=1)
    with bench.producer.transaction(bench.world.engine) as tx:
        tx.publish(Message(TOPIC, b"later", deliver_at=at.astimezone()))
        tx.publish(Message(TOPIC, b"past", deliver_at=at - timedelta(days=2)))
    relay = bench.relay()
    assert (relay.run_once().sent, bench.bodies()) == (1, [b"past"])
    bench.pass_time(HOUR_MS + 1000)
    relay.run_once()
    (target,) = bench.broker.topics[TOPIC][1:]
    assert int(target.headers[wire.HEADER_DUE]) == -(-at.timestamp() * 1000 // 1)


def test_message_with_a_time_long_past_is_new_to_an_inbox(bench):
    """It is due when it is written, and an inbox counts from then."""
    inbox = Inbox(bench.world.engine, table=f"inbox_{bench.world.number}")
    inbox.create()
    inbox.prune(keep_s=3600)
    with bench.producer.transaction(bench.world.engine) as tx:
        tx.publish(Message(TOPIC, b"past", deliver_at=datetime.now(UTC) - timedelta(days=30)))
    bench.relay().run_once()
    (target,) = bench.broker.topics[TOPIC]
    with bench.world.engine.begin() as connection, inbox.receive(connection, target.headers) as is_first:
        assert is_first


def test_running_relay_sleeps_until_the_next_row_and_wakes_for_an_earlier_one(bench):
    """A relay that waits for a row in an hour sends one that is due before it, which was written later."""
    bench.put(3600)
    with bench.relay() as relay:
        wait_until(lambda: relay.stats().waiting, "the relay's first count")
        bench.put(0.05)
        wait_until(bench.bodies, "the message that is due first")
    assert bench.bodies() == [b"1"]


def test_rows_are_turned_in_the_order_of_their_times(bench):
    """Of one key, what is due first is sent first, whatever the order of the transactions."""
    bench.put(20)
    bench.put(10)
    bench.put(30)
    bench.pass_time(60_000)
    bench.relay(limits=RelayLimits(row_max=2)).run_once()
    assert bench.bodies() == [b"1", b"0", b"2"]


def test_relays_turn_rows_one_after_the_other(server_bench):
    """While one relay turns what is due first, another one turns nothing that would come before it."""
    server_bench.put(10)
    server_bench.put(20)
    server_bench.pass_time(60_000)
    relay, slots = server_bench.relay(), Slots(server_bench.world.fence._dialect, GROUP, "first")
    with server_bench.world.engine.connect() as connection:
        assert slots.turn(border_of(connection), 1) == 1
        assert relay.run_once().sent == 0
        connection.commit()
    relay.run_once()
    assert server_bench.bodies() == [b"0", b"1"]


def test_server_frees_the_rows_that_a_frozen_relay_turns(server_bench, monkeypatch, threads):
    """A relay that stops within its transaction keeps no cancel waiting for longer than it may hold slots."""
    world, identity, is_over = server_bench.world, server_bench.put(60), threading.Event()
    server_bench.pass_time()
    turn, has_turned = later.turn, threading.Event()

    def frozen(*args):
        turn(*args)
        has_turned.set()
        assert is_over.wait(30)

    monkeypatch.setattr(later, "turn", frozen)
    table = SqlMessageTable(world.new_engine(), GROUP, "frozen", table=world.fence_table, hold_s=1)
    table.join()
    turned = threads.submit(table.turn_due, GROUP, 10)
    assert has_turned.wait(30)
    assert threads.submit(server_bench.cancel, identity).result(timeout=30) is CANCELLED
    is_over.set()
    with pytest.raises(BackendUnavailableError):
        turned.result(timeout=30)


def test_turn_reads_no_row_that_waits(postgresql):
    """The index ends the search at the database's time, however many rows wait."""
    bench = Bench(postgresql)
    bench.put(3600)
    with postgresql.engine.connect() as connection:
        border = border_of(connection)
        read, plans = border.rows, []

        def explained(sql, values):
            plans.extend(read(f"EXPLAIN {sql}", values))
            return read(sql, values)

        border.rows = explained
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        assert later.turn(postgresql.fence._dialect, border, GROUP, 10) == 0
    plan = "\n".join(line for (line,) in plans)
    assert ("due <=" in plan, "Filter" in plan) == (True, False)


def test_ordinary_relay_does_not_see_a_waiting_row(bench):
    """The statements with which relays read, those of the version before too, find no waiting row."""
    bench.put(3600)
    table = SqlMessageTable(bench.world.new_engine(), GROUP, "before", table=bench.world.fence_table)
    table.join()
    bench.pass_time(2 * HOUR_MS)
    assert table.take(GROUP, (), 10) is None
    with bench.world.engine.connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {bench.world.fence_table}_msg")).scalar() == 0
    assert table.turn_due(GROUP, 10).count == 1
    taken = table.take(GROUP, (), 10)
    assert [row.index for row in taken.rows] == [0]
    table.drop(taken)


# -- cancel ----------------------------------------------------------------------------------------------------------


def test_cancel_that_commits_holds_and_may_be_repeated(bench):
    """A cancelled message is never sent; its record stays, and the answer stays the same."""
    identity = bench.put(None, 60, 3600)
    assert [bench.cancel(identity), bench.cancel(str(identity))] == [CANCELLED, CANCELLED]
    bench.pass_time(2 * HOUR_MS)
    assert (bench.relay().run_once().sent, bench.bodies()) == (1, [b"0"])
    assert bench.world.check(identity) is FenceAnswer.SENT
    assert bench.cancel(identity) is CANCELLED


def test_cancel_in_a_transaction_that_is_rolled_back_has_no_effect(bench):
    """A message whose cancel was rolled back is delivered."""
    identity = bench.put(3600)
    with bench.world.engine.connect() as connection:
        assert bench.producer.cancel(identity, connection) is CANCELLED
        connection.rollback()
    bench.pass_time()
    bench.relay().run_once()
    assert bench.bodies() == [b"0"]


def test_cancel_after_the_first_message_was_due_cancels_none(bench):
    """All delayed messages of a transaction are cancelled or none, whether the one that was due is sent or not."""
    identity = bench.put(60, 7200)
    bench.pass_time()
    bench.relay().table.turn_due(GROUP, 10)
    assert bench.cancel(identity) is TOO_LATE
    bench.relay().run_once()
    assert bench.cancel(identity) is TOO_LATE
    bench.pass_time(2 * HOUR_MS)
    bench.relay().run_once()
    assert bench.bodies() == [b"0", b"1"]


def test_cancel_never_guesses(bench):
    """Another group, an unknown id, an open or rolled back transaction: NOT_FOUND; one without a delay: TOO_LATE."""
    identity, plain = bench.put(3600), bench.put(None)
    other = TransactionProducer(MemoryBackend(bench.broker), "other", fence=bench.world.fence)
    with bench.world.engine.begin() as connection:
        assert other.cancel(identity, connection) is NOT_FOUND
        assert bench.producer.cancel(bench.world.new_id(), connection) is NOT_FOUND
        assert bench.producer.cancel(plain, connection) is TOO_LATE
    tx = bench.producer.begin()
    tx.publish(Message(TOPIC, b"x", delay_s=9))
    with bench.world.engine.connect() as connection:
        tx.prepare(connection)
        connection.rollback()
    assert bench.cancel(tx.transaction_id) is NOT_FOUND
    with pytest.raises(UsageError):
        bench.cancel("no id")


def test_open_transaction_of_another_connection_is_not_found(server_bench):
    """A cancel does not wait for a transaction that has not committed, and does not affect it."""
    tx = server_bench.producer.begin()
    tx.publish(Message(TOPIC, b"open", delay_s=3600))
    with server_bench.world.engine.connect() as connection:
        tx.prepare(connection)
        assert server_bench.cancel(tx.transaction_id) is NOT_FOUND
        connection.commit()
    assert server_bench.cancel(tx.handle()) is CANCELLED


def test_relay_passes_over_what_an_open_cancel_holds(server_bench):
    """While a cancel is open no relay waits for it or turns its messages; others are turned."""
    identity = server_bench.put(60, 60)
    server_bench.put(60)
    server_bench.pass_time()
    table = server_bench.relay().table
    with server_bench.world.engine.connect() as connection:
        assert server_bench.producer.cancel(identity, connection) is CANCELLED
        assert table.turn_due(GROUP, 10).count == 1
        connection.commit()
    assert table.turn_due(GROUP, 10).next_s is None
    server_bench.relay().run_once()
    assert server_bench.bodies() == [b"2"]


def test_cancel_waits_for_a_turn_that_is_under_way(server_bench, threads, eventually):
    """A cancel that meets a turn waits for its commit, and is then too late."""
    world, identity = server_bench.world, server_bench.put(60)
    server_bench.pass_time()
    dialect = world.fence._dialect
    with world.engine.connect() as connection:
        assert later.turn(dialect, border_of(connection), GROUP, 10) == 1
        answer = threads.submit(server_bench.cancel, identity)
        eventually(lambda: world.waiters() or answer.done())
        connection.commit()
    assert answer.result(timeout=30) is TOO_LATE


def test_cancels_and_relays_at_once_never_both_win(bench, threads):
    """Around the due time each message is either cancelled or delivered, as its cancel has answered."""
    identities = [bench.put(0.15, 0.15) for _ in range(20)]
    relays = [bench.relay() for _ in range(2)]
    for relay in relays:
        relay.start()

    def cancelled(identity):
        while True:
            with suppress(OperationalError):  # the file is locked, or a deadlock: the transaction is repeated
                return identity if bench.cancel(identity) is CANCELLED else None

    cancels = {each for each in threads.map(cancelled, identities) if each}

    def delivered():
        return {each.headers[wire.HEADER_ID] for each in bench.broker.topics.get(TOPIC, [])}

    wanted = {wire.target_id(each, index) for each in identities if each not in cancels for index in (0, 1)}
    wait_until(lambda: delivered() >= wanted, "all messages that were not cancelled")
    assert all(relay.stop() for relay in relays)
    assert delivered() == wanted


def test_cancel_needs_a_transaction_of_the_same_kind_of_database(bench, tmp_path):
    """A connection in autocommit mode, or of another kind of database, is refused."""
    identity = bench.put(3600)
    engine = bench.world.new_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(FenceMisuseError, match="autocommit"):
        bench.producer.cancel(identity, connection)
    unfenced = TransactionProducer(MemoryBackend(bench.broker), GROUP)
    with bench.world.engine.connect() as connection, pytest.raises(TransactionStateError, match="fence=SqlFence"):
        unfenced.cancel(identity, connection)
    if bench.world.kind != "sqlite":
        other = create_engine(f"sqlite:///{tmp_path}/other.db")
        with other.connect() as connection, pytest.raises(FenceMisuseError, match="the database that has"):
            bench.producer.cancel(identity, connection)
        other.dispose()


def test_operator_cancels_with_a_reason_that_stays(bench):
    """The table keeps the operator's name and reason, and needs one."""
    identity = bench.put(3600)
    table = bench.relay().table
    with pytest.raises(UsageError, match="say why"):
        table.cancel(identity, " ", "ann")
    assert table.cancel(identity, "a test order", "ann") is CANCELLED
    with bench.world.engine.connect() as connection:
        sql = text(f"SELECT note, body FROM {bench.world.fence_table}_later")
        note, body = connection.execute(sql).one()
    assert note.startswith("cancelled by ann at ")
    assert (note.endswith(": a test order"), body) == (True, None)


def test_asyncio_producer_delays_and_cancels(sqlite):
    """The producer for asyncio has the same delays and the same cancel."""
    path = sqlite.url.removeprefix("sqlite:///")
    broker = MemoryBroker()

    async def run():
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        fence = AsyncSqlFence(engine, table=sqlite.fence_table)
        async with AsyncTransactionProducer(MemoryBackend(broker), GROUP, fence=fence) as producer:
            async with producer.transaction(engine) as tx:
                tx.publish(Message(TOPIC, b"x", delay_s=3600))
            async with engine.begin() as connection:
                state = await producer.cancel(tx.transaction_id, connection)
        await engine.dispose()
        return state

    assert asyncio.run(run()) is CANCELLED


def test_open_cancel_holds_up_no_producer(server_bench):
    """Another transaction commits its delayed message while a cancel of the newest one is open."""
    server_bench.put(3600)
    identity = server_bench.put(3600)
    with server_bench.world.engine.connect() as connection:
        assert server_bench.producer.cancel(identity, connection) is CANCELLED
        engine = server_bench.world.new_engine()
        event.listen(engine, "begin", lambda begun: begun.execute(text(LOCK_WAIT[server_bench.world.kind])))
        with server_bench.producer.transaction(engine) as tx:
            tx.publish(Message(TOPIC, b"other", b"key", delay_s=3600))
        connection.commit()
    assert server_bench.cancel(tx.transaction_id) is CANCELLED


# -- what is refused -------------------------------------------------------------------------------------------------

NOW = datetime.now(UTC)
REFUSED = {
    "both": ({"deliver_at": NOW, "delay_s": 1}, "deliver_at", "were both given"),
    "naive": ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at", "has no time zone"),  # noqa: DTZ001 - the mistake
    "no time": ({"deliver_at": 5}, "deliver_at", "must be a datetime"),
    "too late": ({"deliver_at": NOW + timedelta(days=401)}, "deliver_at", "more than 400 days"),
    "too long": ({"delay_s": 401 * 86_400}, "delay_s", "at most 34560000 seconds"),
    "negative": ({"delay_s": -1}, "delay_s", "more than 0"),
    "not a number": ({"delay_s": float("nan")}, "delay_s", "more than 0"),
    "a text": ({"delay_s": "5"}, "delay_s", "must be a number"),
    "header": ({"headers": {"x-delay": "5"}}, 'headers["x-delay"]', "give the message deliver_at=… or delay_s=…"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_delay_is_refused_by_name(sqlite_bench, what):
    """The error names the field, and nothing was sent."""
    options, field, why = REFUSED[what]
    tx = sqlite_bench.producer.begin()
    with pytest.raises(MessageRejectedError, match=why) as caught:
        tx.publish(Message(TOPIC, b"x", **options))
    assert caught.value.reason == field


def test_producer_that_cannot_delay_refuses_by_name(sqlite_bench):
    """Without a fence, in the listener style, and without a connection there is no table that could hold it."""
    message = Message(TOPIC, b"x", delay_s=5)
    unfenced = TransactionProducer(MemoryBackend(sqlite_bench.broker), GROUP)
    with pytest.raises(MessageRejectedError, match="fence=SqlFence"):
        unfenced.begin().publish(message)

    backend, fence = MemoryBackend(sqlite_bench.broker), sqlite_bench.world.fence
    listening = TransactionProducer(backend, GROUP, fence=fence, listener=Answers())
    with pytest.raises(MessageRejectedError, match="database style"):
        listening.send_message_in_transaction(message)
    (result,) = listening.send_many([(message, None)])
    assert isinstance(result.error, MessageRejectedError)
    tx = sqlite_bench.producer.begin()
    tx.publish(message)
    with pytest.raises(TransactionStateError, match="prepare\\(connection\\)"):
        tx.prepare()


# -- tables of an older version, prune --------------------------------------------------------------------------------


def test_tables_of_an_older_txcore_relay_as_before_and_are_completed_by_create(bench):
    """Without the table of delayed messages, undelayed ones work, a delay fails clearly, and `create` adds it."""
    with bench.world.engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {bench.world.fence_table}_later"))
    fence = SqlFence(bench.world.new_engine(), table=bench.world.fence_table)
    producer = TransactionProducer(MemoryBackend(bench.broker), GROUP, fence=fence, mode="table")
    with producer.transaction() as tx:
        tx.publish(Message(TOPIC, b"now"))
    assert fence.check([tx.transaction_id], GROUP)[tx.transaction_id].answer is FenceAnswer.VIA_TABLE
    with pytest.raises(Exception, match="fence create"), producer.transaction() as delayed:
        delayed.publish(Message(TOPIC, b"later", delay_s=0.001))
    engine = bench.world.new_engine()
    relay = Relay(MemoryBackend(bench.broker), GROUP, engine, table=bench.world.fence_table)
    assert (relay.run_once().sent, relay.waiting().later) == (1, 0)
    with fence.engine.begin() as connection:
        assert producer.cancel(tx.transaction_id, connection) is TOO_LATE
    fence.create()
    with producer.transaction() as delayed:
        delayed.publish(Message(TOPIC, b"later", delay_s=0.001))
    wait_until(lambda: relay.run_once().sent, "the delayed message")


def test_prune_counts_from_the_time_of_the_last_message(bench):
    """A fence row stays while a message of it waits, and as long after its due time as others after their birth."""
    waiting, turned, cancelled = bench.put(36_000), bench.put(3600), bench.put(3600)
    bench.cancel(cancelled)
    bench.pass_time()
    bench.relay().run_once()
    bench.pass_time(-2 * HOUR_MS)  # both were due two hours after their birth
    fence = bench.world.new_fence(sleep=lambda seconds: None)

    def prune(hours):
        fence.prune(first_id_at(SystemClock().wall_ms() + hours * HOUR_MS), lambda ids: ids)

    prune(1)
    assert [bench.world.row(each) for each in (waiting, turned, cancelled)] == [FenceAnswer.VIA_TABLE] * 3
    assert bench.cancel(cancelled) is CANCELLED
    prune(3)
    answers = [bench.world.row(each) for each in (waiting, turned, cancelled)]
    assert answers == [FenceAnswer.VIA_TABLE, FenceAnswer.PRUNED, FenceAnswer.PRUNED]
    assert [bench.cancel(each) for each in (turned, cancelled)] == [NOT_FOUND, NOT_FOUND]


def test_prune_keeps_what_is_turned_meanwhile(server_bench):
    """A row that is turned between the statements of a prune counts as waiting, in one table or the other."""
    world, identity, table = server_bench.world, server_bench.put(3600), server_bench.relay().table
    server_bench.pass_time(3 * HOUR_MS)
    engine, turned = world.new_engine(), []

    def turn(_, __, statement, *___):
        if statement.startswith("SELECT DISTINCT") and not turned:
            turned.append(table.turn_due(GROUP, 10).count)

    event.listen(engine, "after_cursor_execute", turn)
    fence = world.new_fence(engine, sleep=lambda seconds: None)
    result = fence.prune(first_id_at(SystemClock().wall_ms() + 1), lambda ids: ids)
    assert (turned, result.deleted, world.row(identity)) == ([1], 0, FenceAnswer.VIA_TABLE)


def test_group_without_a_relay_is_seen(bench):
    """Messages that wait while no relay has noted that it runs are unserved, until one does."""
    bench.put(3600)
    assert bench.relay().waiting().is_unserved
    bench.relay().run_once()
    stats = bench.relay().waiting()
    assert (stats.is_unserved, stats.relay_seen_s < 60) == (False, True)
    with bench.world.engine.begin() as connection:
        connection.execute(text(f"UPDATE {bench.world.fence_table}_slot SET until_ms = until_ms - 61000"))
    assert bench.relay().waiting().is_unserved
    assert not replace(bench.relay().waiting(), later=0).is_unserved


def test_stats_count_what_waits_and_what_was_cancelled(bench):
    """Delayed rows are counted apart from those that can be sent now, with the time of the next one."""
    bench.put(None, 3600)
    bench.cancel(bench.put(60))
    stats = bench.relay().waiting()
    assert (stats.waiting, stats.later, stats.cancelled) == (1, 1, 1)
    assert 3500 < stats.next_due_s <= 3601
