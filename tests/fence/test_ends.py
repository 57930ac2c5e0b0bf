"""The ends of transactions after unexpected events of the database, the listener or a second holder of the handle."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import InvalidRequestError, ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance.kit import Observed

import txcore
from txcore.errors import CommitUnknownError, FenceMisuseError, NotSentError, TransactionStateError
from txcore.fence import FenceAnswer
from txcore.memory import KAFKA_LIKE, MemoryBackend, MemoryBroker
from txcore.records import LogKind
from txcore.sqlfence import AsyncSqlFence, SqlFence

GROUP = "orders"
SOON = txcore.CheckPolicy(immunity_s=2.1, interval_s=0.1)
COMMIT = txcore.LocalTransactionState.COMMIT


class Crash(BaseException):
    """The exception that ends a listener as the death of its process would."""


class Shop:
    """A producer and a checker on a broker in memory."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(KAFKA_LIKE)
        self.backend = MemoryBackend(self.broker)
        self.events = Observed()

    def producer(self, fence, **options):
        return txcore.TransactionProducer(
            self.backend, GROUP, fence=fence, partition_count=1, plugins=[self.events], **options
        )

    def checker(self, **options):
        limits = txcore.Limits(poll_s=0.001)
        return txcore.Checker(self.backend, GROUP, policy=SOON, limits=limits, plugins=[self.events], **options)

    @property
    def delivered(self):
        return [message.body for message in self.broker.topics.get("t", [])]


@pytest.fixture
def shop():
    return Shop()


class Listener(txcore.TransactionListener):
    """A listener that commits an order, with or without the fence, and may die before or after that."""

    def __init__(self, world):
        self.world, self.forgets, self.dies_before, self.dies_after = world, False, False, False
        self.asked = []

    def execute_local_transaction(self, message, arg):
        transaction = txcore.current_transaction()
        if self.dies_before:
            raise Crash
        with self.world.engine.begin() as connection:
            if not self.forgets:
                transaction.fence(connection)
            self.world.add_order(connection, transaction.transaction_id)
        if self.dies_after:
            raise Crash
        return COMMIT

    def check_local_transaction(self, half):
        self.asked.append(half.transaction_id)
        is_there = self.world.has_order(half.transaction_id)
        return COMMIT if is_there else txcore.LocalTransactionState.ROLLBACK


def send(producer, body=b"tea"):
    try:
        return producer.send_message_in_transaction(txcore.Message("t", body))
    except Crash:
        return None


# A listener that forgets the fence ----------------------------------------------------------------------------------


def test_forgotten_fence_is_seen_the_first_time(sqlite, shop):
    """A forgotten fence gives an event and an error in the result, also with `send_many`; the message is delivered."""
    listener = Listener(sqlite)
    listener.forgets = True
    producer = shop.producer(sqlite.fence, listener=listener)
    result = send(producer)
    assert result.end.state is txcore.EndState.ACCEPTED
    assert isinstance(result.error, FenceMisuseError)
    assert "fence(connection)" in str(result.error)
    (many,) = producer.send_many([(txcore.Message("t", b"milk"), None)])
    assert isinstance(many.error, FenceMisuseError)
    assert len(shop.events.named("fence.forgotten")) == 2
    assert shop.delivered == [b"tea", b"milk"]


@pytest.mark.parametrize(
    ("promised", "words"),
    [(False, "only the answer of check_local_transaction"), (True, "the check would have dropped the message")],
)
def test_forgotten_fence_says_what_a_crash_would_have_done(sqlite, shop, promised, words):
    """A crash would have lost the message only if its listener had promised the row; the error says which."""
    listener = Listener(sqlite)
    listener.forgets = True
    result = send(shop.producer(sqlite.fence, listener=listener, listener_fences=promised))
    assert words in str(result.error)


def test_forgotten_fence_is_logged_without_a_plugin(sqlite, shop, caplog):
    """The alert about a forgotten fence is logged even if the producer has no plugin."""
    listener = Listener(sqlite)
    listener.forgets = True
    producer = txcore.TransactionProducer(shop.backend, GROUP, fence=sqlite.fence, listener=listener, partition_count=1)
    send(producer)
    assert "fence.forgotten" in caplog.text


def test_forgotten_fence_and_a_crash_lose_nothing(world, shop, eventually):
    """Without a row the checker writes a tombstone and then asks the listener (forgot_fence.py)."""
    listener = Listener(world)
    listener.forgets = listener.dies_after = True
    assert send(shop.producer(world.fence, listener=listener, policy=SOON)) is None
    checker = shop.checker(fence=world.fence, listener=listener)
    eventually(lambda: checker.run_once().committed)
    assert shop.delivered == [b"tea"]
    assert len(listener.asked) == 1


def test_fence_that_was_called_decides_without_the_listener(world, shop, eventually):
    """A half with a fence row is committed, and the checker does not ask the listener."""
    listener = Listener(world)
    listener.dies_after = True
    send(shop.producer(world.fence, listener=listener, policy=SOON))
    checker = shop.checker(fence=world.fence)
    eventually(lambda: checker.run_once().committed)
    assert shop.delivered == [b"tea"]
    assert listener.asked == []


def test_process_that_died_before_the_fence_is_rolled_back(world, shop, eventually):
    """Without a row and an order, the tombstone and the listener's answer roll the half back."""
    listener = Listener(world)
    listener.dies_before = True
    send(shop.producer(world.fence, listener=listener, policy=SOON))
    checker = shop.checker(fence=world.fence, listener=listener)
    eventually(lambda: checker.run_once().rolled_back)
    assert shop.delivered == []
    assert world.row(listener.asked[0]) is FenceAnswer.ROLLBACK


def test_half_without_a_row_waits_where_no_listener_can_be_asked(sqlite, shop, eventually):
    """A half without a row stays pending if the checker has no listener, and an alert reports it."""
    listener = Listener(sqlite)
    listener.forgets = listener.dies_after = True
    send(shop.producer(sqlite.fence, listener=listener, policy=SOON))
    checker = shop.checker(fence=sqlite.fence)
    eventually(lambda: checker.run_once().pending and shop.events.named("check.wrong_listener"))
    assert "listener_fences=True" in shop.events.named("check.wrong_listener")[0]["reason"]
    report = checker.run_once()
    assert (report.committed, report.rolled_back, report.parked, report.pending) == (0, 0, 0, 1)


def test_promise_that_the_listener_fences_lets_the_fence_decide_alone(sqlite, shop, eventually):
    """With `listener_fences`, the fence rolls a half without a row back and asks no listener."""
    listener = Listener(sqlite)
    listener.dies_before = True
    send(shop.producer(sqlite.fence, listener=listener, policy=SOON, listener_fences=True))
    checker = shop.checker(fence=sqlite.fence)
    eventually(lambda: checker.run_once().rolled_back)


# A listener that says COMMIT, and did not commit ----------------------------------------------------------------------


class Believed(Listener):
    """A listener that fences its transaction, ends it as *local* does, and returns COMMIT."""

    def __init__(self, world, local):
        super().__init__(world)
        self.local = local

    def execute(self, transaction, message, arg):
        self.local(self.world, transaction)
        return COMMIT


def catch_an_error(world, transaction):
    """Make PostgreSQL turn COMMIT into ROLLBACK without an error, by a failed statement in the transaction."""
    with world.engine.begin() as connection:
        transaction.fence(connection)
        with contextlib.suppress(ProgrammingError):
            connection.execute(text("SELECT nothing_of_that_name"))


def forget_commit(world, transaction):
    """Leave a connection's block, which does not commit by itself, without a commit."""
    with world.engine.connect() as connection:
        transaction.fence(connection)
        world.add_order(connection, transaction.transaction_id)


def swallow_refusal(world, transaction):
    """Continue although the fence has refused the transaction and rolled it back."""
    with world.engine.connect() as connection:
        world.add_order(connection, transaction.transaction_id)
        nested = connection.begin_nested()
        with contextlib.suppress(FenceMisuseError):
            transaction.fence(connection)
        with contextlib.suppress(InvalidRequestError):
            nested.commit()
        connection.commit()


@pytest.mark.parametrize("listener_fences", [True, False])
@pytest.mark.parametrize("is_many", [True, False])
@pytest.mark.parametrize(
    ("kind", "local"),
    [
        ("postgresql", catch_an_error),
        ("postgresql", forget_commit),
        ("mariadb", forget_commit),
        ("sqlite", forget_commit),
        ("sqlite", swallow_refusal),
    ],
)
def test_rolled_back_transaction_is_not_sent_on_any_answer_of_the_listener(
    make_world, shop, eventually, kind, local, is_many, listener_fences
):
    """A COMMIT without a row is a conflict if the fence decides alone; otherwise the listener is asked."""
    world = make_world(kind)
    listener = Believed(world, local)
    producer = shop.producer(world.fence, listener=listener, policy=SOON, listener_fences=listener_fences)
    (result,) = producer.send_many([(txcore.Message("t", b"tea"), None)]) if is_many else (send(producer),)
    state = txcore.EndState.CONFLICT if listener_fences else txcore.EndState.TOO_LATE
    assert (result.local_transaction_state, result.end.state) == (COMMIT, state)
    assert isinstance(result.end.error, TransactionStateError)
    checker = shop.checker(fence=world.fence, listener=listener)
    eventually(lambda: checker.run_once().rolled_back)
    assert shop.delivered == []


def test_open_transaction_of_a_listener_is_left_to_the_check(world, shop, eventually):
    """A listener's COMMIT before its database commits is UNKNOWN; a check sends the message after the commit."""
    opened = []

    def leave_open(world, transaction):
        opened.append(world.engine.connect())
        transaction.fence(opened[0])

    producer = shop.producer(world.fence, listener=Believed(world, leave_open), policy=SOON)
    result = send(producer)
    assert result.end.state is txcore.EndState.UNKNOWN
    assert shop.delivered == []
    opened[0].commit()
    opened[0].close()
    checker = shop.checker(fence=world.fence)
    eventually(lambda: checker.run_once().committed)
    assert shop.delivered == [b"tea"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(("awaits", "state"), [(True, txcore.EndState.TOO_LATE), (False, txcore.EndState.ACCEPTED)])
def test_asynchronous_listener_is_believed_by_its_row(tmp_path, shop, awaits, state):
    """A rolled back transaction has no row and is not sent; a fence that was not awaited counts as forgotten."""

    async def run():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
        fence = AsyncSqlFence(engine)
        await fence.create()

        class Forgetful(txcore.AsyncTransactionListener):
            async def execute(self, transaction, message, arg):
                async with engine.connect() as connection:
                    fenced = transaction.fence(connection)
                    if awaits:
                        await fenced
                return COMMIT

        producer = txcore.AsyncTransactionProducer(
            shop.backend, GROUP, fence=fence, listener=Forgetful(), partition_count=1
        )
        result = await producer.send_message_in_transaction(txcore.Message("t", b"tea"))
        await engine.dispose()
        return result

    result = asyncio.run(run())
    assert result.end.state is state
    assert shop.delivered == ([] if awaits else [b"tea"])
    assert isinstance(result.error, FenceMisuseError) is not awaits


# A COMMIT that fails ------------------------------------------------------------------------------------------------


def test_serialization_failure_at_commit_says_that_nothing_was_sent(postgresql, shop, threads, eventually):
    """A COMMIT with error 40001 has certainly failed, and the check closes the half (serializable.py)."""
    engine = postgresql.new_engine(isolation_level="SERIALIZABLE")
    with postgresql.engine.begin() as connection:
        connection.execute(text("CREATE TABLE duty (id int, on_call int)"))
        connection.execute(text("INSERT INTO duty VALUES (1, 1), (2, 1)"))
    producer, together = shop.producer(postgresql.fence, policy=SOON), threading.Barrier(2)

    def leave(number):
        try:
            with producer.transaction(engine) as transaction:
                transaction.connection.execute(text("SELECT sum(on_call) FROM duty")).scalar_one()
                together.wait(20)
                sql = text("UPDATE duty SET on_call = 0 WHERE id = :number")
                transaction.connection.execute(sql, {"number": number})
                transaction.publish(txcore.Message("t", b"%d" % number))
                event.listen(transaction.connection, "commit", lambda _connection: together.wait(20))
        except Exception as error:  # noqa: BLE001 - it is looked at
            return error
        return None

    errors = [done.result(60) for done in [threads.submit(leave, number) for number in (1, 2)]]
    with postgresql.engine.begin() as connection:
        connection.execute(text("DROP TABLE duty"))
    (error,) = [each for each in errors if each is not None]
    assert type(error) is NotSentError
    assert "at its COMMIT" in str(error)
    assert "40001" in str(error)
    checker = shop.checker(fence=postgresql.fence)
    eventually(lambda: checker.run_once().rolled_back)
    assert len(shop.delivered) == 1


def test_deferred_constraint_at_commit_says_that_nothing_was_sent(postgresql, shop):
    """A deferred constraint that fails at COMMIT certainly undoes the transaction on PostgreSQL."""
    producer = shop.producer(postgresql.fence)
    with postgresql.engine.begin() as connection:
        connection.execute(text("CREATE TABLE seats (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    try:
        with pytest.raises(NotSentError, match="23505"), producer.transaction(postgresql.engine) as transaction:  # noqa: PT012
            transaction.connection.execute(text("INSERT INTO seats VALUES (1), (1)"))
            transaction.publish(txcore.Message("t", b"tea"))
    finally:
        with postgresql.engine.begin() as connection:
            connection.execute(text("DROP TABLE seats"))
    assert shop.delivered == []


def _busy_at_commit(path):
    """Let a reader hold the file in rollback-journal mode, so that COMMIT gives SQLITE_BUSY."""
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    return reader


def test_busy_commit_on_sqlite_leaves_nothing_open(tmp_path, shop):
    """A busy COMMIT leaves the transaction open on SQLite, so the producer rolls it back for certain."""
    path = tmp_path / "shop.db"
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.1})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number TEXT)"))
    fence = SqlFence(engine)
    fence.create()
    reader = _busy_at_commit(path)
    producer = shop.producer(fence)
    with pytest.raises(NotSentError, match="SQLITE_BUSY"), producer.transaction(engine) as transaction:  # noqa: PT012
        transaction.connection.execute(text("INSERT INTO orders VALUES ('tea')"))
        transaction.publish(txcore.Message("t", b"tea"))
    reader.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0
    assert fence.stats().states == {}
    engine.dispose()


def test_busy_commit_on_sqlite_with_asyncio(tmp_path, shop):
    """A busy COMMIT is rolled back for certain through an AsyncEngine, too."""

    async def run():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db", connect_args={"timeout": 0.1})
        fence = AsyncSqlFence(engine)
        await fence.create()
        reader = _busy_at_commit(tmp_path / "shop.db")
        producer = txcore.AsyncTransactionProducer(shop.backend, GROUP, fence=fence, partition_count=1)
        with pytest.raises(NotSentError, match="SQLITE_BUSY"):
            async with producer.transaction(engine) as transaction:
                transaction.publish(txcore.Message("t", b"tea"))
        reader.close()
        states = (await fence.stats()).states
        await engine.dispose()
        return states

    assert asyncio.run(run()) == {}


def test_commit_whose_answer_is_lost_stays_unknown(server_world, shop):
    """A COMMIT whose session was killed is unknown, because the database gives no answer."""
    producer = shop.producer(server_world.fence)
    with pytest.raises(CommitUnknownError), producer.transaction(server_world.engine) as transaction:  # noqa: PT012
        transaction.publish(txcore.Message("t", b"tea"))
        number = server_world.session_id(transaction.connection)

        def kill(_connection):
            server_world.kill_session(number)

        event.listen(transaction.connection, "commit", kill)


# Two holders of one handle ------------------------------------------------------------------------------------------


def prepared(world, shop, *, rolls_back=False):
    """Return a producer, and a transaction whose caller has ended its database transaction."""
    producer = shop.producer(world.fence)
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with world.engine.connect() as connection:
        world.add_order(connection, transaction.transaction_id)
        transaction.prepare(connection)
        if rolls_back:
            connection.rollback()
        else:
            connection.commit()
    return producer, transaction


def test_commit_after_another_holders_rollback_is_a_conflict(world, shop):
    """A commit after another holder's rollback publishes nothing, because the tombstone is in the database."""
    producer, transaction = prepared(world, shop, rolls_back=True)
    first, second = (producer.attach(transaction.handle()) for _ in range(2))
    assert first.rollback().state is txcore.EndState.ACCEPTED
    for holder in (second, transaction):
        result = holder.commit()
        assert result.state is txcore.EndState.CONFLICT
        assert isinstance(result.error, TransactionStateError)
    assert shop.delivered == []


def test_commit_after_the_callers_own_rollback_is_a_conflict(world, shop):
    """A commit after the caller's own rollback finds no row, writes a tombstone, and is a conflict."""
    _, transaction = prepared(world, shop, rolls_back=True)
    assert transaction.commit().state is txcore.EndState.CONFLICT
    assert world.row(transaction.transaction_id) is FenceAnswer.ROLLBACK
    assert shop.delivered == []


@pytest.mark.parametrize("is_attached", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_commit_by_the_message_table_says_what_the_database_did(world, shop, is_attached, commits):
    """In mode table a commit is a conflict after a rollback, because no message waits in the table."""
    producer = shop.producer(world.fence, mode="table")
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with world.engine.connect() as connection:
        transaction.prepare(connection)
        connection.commit() if commits else connection.rollback()
    holder = producer.attach(transaction.handle()) if is_attached else transaction
    assert holder.commit().state is (txcore.EndState.VIA_TABLE if commits else txcore.EndState.CONFLICT)
    assert world.row(transaction.transaction_id) is (FenceAnswer.VIA_TABLE if commits else FenceAnswer.ROLLBACK)


def test_message_table_that_cannot_be_looked_at_is_left_to_its_relay(sqlite, shop, monkeypatch):
    """If the fence cannot be read, a commit in mode table is UNKNOWN and writes no op."""
    producer = shop.producer(sqlite.fence, mode="table")
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with sqlite.engine.connect() as connection:
        transaction.prepare(connection)
        connection.commit()
    monkeypatch.setattr(sqlite.fence, "settled", _unreachable)
    assert transaction.commit().state is txcore.EndState.UNKNOWN
    assert list(shop.broker.log(GROUP, LogKind.OP, 0)) == []


def test_commit_by_an_attached_holder_of_what_committed_is_accepted(world, shop):
    """An attached holder's commit is accepted, because the fence shows the row."""
    producer, transaction = prepared(world, shop)
    assert producer.attach(transaction.handle()).commit().state is txcore.EndState.ACCEPTED
    assert shop.delivered == [b"tea"]


def test_second_commit_of_one_handle_is_reported_where_the_store_can_know(sqlite):
    """A second commit is ALREADY_DONE on a store with unique ends; on others it is a cause of duplicates."""
    shop = Shop()
    shop.backend = txcore.connect("memory://")
    producer, transaction = prepared(sqlite, shop)
    handle = transaction.handle()
    states = [producer.attach(handle).commit().state for _ in range(2)]
    assert states == [txcore.EndState.ACCEPTED, txcore.EndState.ALREADY_DONE]


def test_holder_without_a_fence_leaves_a_fenced_transaction_to_the_checker(sqlite, shop):
    """A holder without a fence publishes nothing and rolls nothing back, because it cannot read the row."""
    _, transaction = prepared(sqlite, shop)
    other = shop.producer(None)
    assert other.attach(transaction.handle()).commit().state is txcore.EndState.TOO_LATE
    assert other.attach(transaction.handle()).rollback().state is txcore.EndState.UNKNOWN
    assert shop.delivered == []


def test_fence_that_does_not_answer_keeps_an_attached_commit_back(sqlite, shop, monkeypatch):
    """An attached holder's commit is UNKNOWN and publishes nothing if the fence does not answer."""
    producer, transaction = prepared(sqlite, shop)
    holder = producer.attach(transaction.handle())
    monkeypatch.setattr(sqlite.fence, "settled", _unreachable)
    assert holder.commit().state is txcore.EndState.UNKNOWN
    assert shop.delivered == []


def _unreachable(*_):
    raise OSError("unreachable")


def test_second_holder_publishes_nothing_while_the_database_transaction_is_open(server_world, shop):
    """A second holder publishes nothing before the commit, even if the fence reads uncommitted rows."""
    dirty = server_world.new_engine(isolation_level="READ UNCOMMITTED")
    fence = server_world.new_fence(dirty)
    producer = shop.producer(fence)
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"never"))
    with dirty.connect() as connection:
        transaction.prepare(connection)
        second = producer.attach(transaction.handle())
        assert second.commit().state is txcore.EndState.UNKNOWN
        connection.rollback()
    assert transaction.commit().state is txcore.EndState.CONFLICT
    assert shop.delivered == []


def test_caller_that_still_holds_its_connection_needs_no_other_one(world, shop):
    """The producer reads the row on the connection that the caller still holds, and leaves it unchanged."""
    engine = world.new_engine(pool_size=1, max_overflow=0, pool_timeout=0.05)
    transaction = shop.producer(world.new_fence(engine)).begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with engine.connect() as connection:
        transaction.prepare(connection)
        connection.commit()
        assert transaction.commit().state is txcore.EndState.ACCEPTED
        assert not connection.in_transaction()
        with connection.begin():
            world.add_order(connection, transaction.transaction_id)
    assert shop.delivered == [b"tea"]
    assert world.has_order(transaction.transaction_id)


def test_caller_that_has_begun_its_next_transaction_waits_for_the_pool_only_once(world, shop, monkeypatch):
    """If the pool has no free connection in time, the commit is UNKNOWN without a check after that."""
    engine = world.new_engine(pool_size=1, max_overflow=0, pool_timeout=0.05)
    transaction = shop.producer(world.new_fence(engine)).begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with engine.connect() as connection:
        transaction.prepare(connection)
        connection.commit()
        connection.execute(text("SELECT 1"))
        connect, asked = engine.connect, []
        monkeypatch.setattr(engine, "connect", lambda: asked.append(1) or connect())
        result = transaction.commit()
    assert (result.state, len(asked)) == (txcore.EndState.UNKNOWN, 1)
    assert "pool" in str(result.error)


def test_caller_of_asyncio_that_still_holds_its_connection_needs_no_other_one(tmp_path, shop):
    """The asynchronous producer, too, reads the row on the connection that the caller still holds."""

    async def run():
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path}/shop.db", pool_size=1, max_overflow=0, pool_timeout=0.05
        )
        fence = AsyncSqlFence(engine)
        await fence.create()
        producer = txcore.AsyncTransactionProducer(shop.backend, GROUP, fence=fence, partition_count=1)
        transaction = producer.begin()
        transaction.publish(txcore.Message("t", b"tea"))
        async with engine.connect() as connection:
            await transaction.prepare(connection)
            await connection.commit()
            result = await transaction.commit()
            assert not connection.in_transaction()
        await engine.dispose()
        return result.state

    assert asyncio.run(run()) is txcore.EndState.ACCEPTED


def test_database_style_does_not_look_again(sqlite, shop, monkeypatch):
    """In the database style the producer has seen the COMMIT, and does not read the fence again."""
    monkeypatch.setattr(sqlite.fence, "settled", _unreachable)
    monkeypatch.setattr(sqlite.fence, "check", _unreachable)
    with shop.producer(sqlite.fence).transaction(sqlite.engine) as transaction:
        transaction.publish(txcore.Message("t", b"tea"))
    assert transaction.result.state is txcore.EndState.ACCEPTED


# A statement that commits by itself ----------------------------------------------------------------------------------


def test_ddl_between_prepare_and_commit_shows_at_the_rollback(mariadb, shop):
    """On MariaDB and MySQL DDL commits the row; a later rollback by the caller reports the conflict."""
    producer = shop.producer(mariadb.fence)
    transaction = producer.begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with mariadb.engine.connect() as connection:
        mariadb.add_order(connection, transaction.transaction_id)
        transaction.prepare(connection)
        connection.execute(text(f"CREATE TABLE {mariadb.orders_table}_new (id int)"))
        mariadb.add_order(connection, b"lost")
        connection.rollback()
    assert mariadb.has_order(transaction.transaction_id)
    assert not mariadb.has_order(b"lost")
    assert transaction.rollback().state is txcore.EndState.CONFLICT
    assert shop.delivered == []


def test_ddl_in_the_database_style_is_refused_before_anything_is_sent(mariadb, shop):
    """In the database style, the row is verified before the half is written, so DDL is refused in time."""
    with pytest.raises(FenceMisuseError, match="ended"), shop.producer(mariadb.fence).transaction(mariadb.engine) as tx:  # noqa: PT012
        tx.connection.execute(text(f"CREATE TABLE {mariadb.orders_table}_new (id int)"))
        tx.publish(txcore.Message("t", b"tea"))
    assert shop.delivered == []
