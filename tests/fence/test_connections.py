"""Each kind of connection carries the fence row in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from functools import partial

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from txcore.errors import BackendUnavailableError, CommitUnknownError, FencedError, FenceMisuseError, NotSentError
from txcore.fence import FenceAnswer
from txcore.sqlfence import AsyncSqlFence, SqlFence

GROUP = "orders"


@contextlib.contextmanager
def plain_connection(world):
    """Open a connection of the driver itself."""
    if world.kind == "sqlite":
        connection = sqlite3.connect(world.engine.url.database)
    else:
        url = world.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(url)
    with contextlib.closing(connection):
        yield connection


@pytest.fixture(params=["postgresql", "sqlite"])
def plain_world(request, make_world):
    return make_world(request.param)


@pytest.fixture(params=["postgresql", "sqlite"])
def async_world(request, make_world):
    return make_world(request.param)


def async_engine(world, **options):
    name = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}[world.kind]
    return create_async_engine(world.engine.url.set(drivername=name), **options)


def test_connection_that_the_fence_opens_is_committed_and_closed_by_it(world):
    """After begin, verify and commit, the business row and the check's answer agree."""
    transaction_id = world.new_id()
    connection = world.fence.begin(world.engine, transaction_id, GROUP)
    world.add_order(connection, transaction_id)
    world.fence.verify(connection, transaction_id)
    assert world.fence.is_open(connection)
    world.fence.commit(connection)
    assert connection.closed
    assert not world.fence.is_open(connection)
    assert world.has_order(transaction_id)
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_connection_that_the_fence_opens_is_rolled_back_and_closed_by_it(world):
    """A rollback closes the fence's connection and leaves no row."""
    transaction_id = world.new_id()
    connection = world.fence.begin(world.engine, transaction_id, GROUP)
    world.add_order(connection, transaction_id)
    world.fence.rollback(connection)
    assert connection.closed
    assert not world.has_order(transaction_id)
    assert world.engine.pool.checkedout() == 0


def test_refused_begin_gives_its_connection_back(world):
    """No connection leaks after a FencedError."""
    transaction_id = world.new_id()
    world.check(transaction_id)
    with pytest.raises(FencedError):
        world.fence.begin(None, transaction_id, GROUP)
    assert world.engine.pool.checkedout() == 0


def test_connection_of_the_caller_is_never_committed_or_closed_by_the_fence(world):
    """The caller commits its own connection; the fence may only roll it back."""
    transaction_id = world.new_id()
    with world.engine.connect() as connection:
        world.fence.insert(connection, transaction_id, GROUP)
        with pytest.raises(FenceMisuseError, match="commit this one yourself"):
            world.fence.commit(connection)
        world.fence.rollback(connection)
        assert not connection.closed
    assert world.row(transaction_id) is FenceAnswer.ABSENT


def test_only_the_transaction_with_the_row_counts_as_open(world):
    """A transaction that the program begins after the commit on the same connection does not count as open."""
    with world.engine.connect() as connection:
        world.fence.insert(connection, world.new_id(), GROUP)
        assert world.fence.is_open(connection)
        connection.commit()
        assert not world.fence.is_open(connection)
        world.add_order(connection, world.new_id())
        assert connection.in_transaction()
        assert not world.fence.is_open(connection)
    with Session(world.engine) as session:
        world.fence.insert(session, world.new_id(), GROUP)
        session.commit()
        world.add_order(session, world.new_id())
        assert not world.fence.is_open(session)


def test_mark_of_an_earlier_user_of_the_pooled_connection_is_not_taken_over(world):
    """A mark in `info` lives as long as the pooled connection and counts only for its own Connection object."""
    engine = world.new_engine(pool_size=1, max_overflow=0)
    world.fence.commit(world.fence.begin(engine, world.new_id(), GROUP))
    with engine.connect() as connection:
        world.add_order(connection, world.new_id())
        assert world.fence.is_open(connection)
        with pytest.raises(FenceMisuseError, match="commit this one yourself"):
            world.fence.commit(connection)


@pytest.mark.parametrize("make", [Session, lambda engine: scoped_session(sessionmaker(engine))])
def test_session_carries_the_row(world, make):
    """The ORM's Session, plain or scoped, carries the row."""
    transaction_id = world.new_id()
    session = make(world.engine)
    world.add_order(session, transaction_id)
    world.fence.insert(session, transaction_id, GROUP)
    world.fence.verify(session, transaction_id)
    assert world.fence.is_open(session)
    session.commit()
    assert not world.fence.is_open(session)
    session.close()
    assert world.has_order(transaction_id)
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_refused_session_is_rolled_back(world):
    """A refused session is rolled back, also within `with session.begin()`, which then refuses to continue."""
    transaction_id = world.new_id()
    world.check(transaction_id)

    def produce():
        with Session(world.engine) as session, session.begin():
            world.add_order(session, transaction_id)
            world.fence.insert(session, transaction_id, GROUP)

    with pytest.raises(FencedError):
        produce()
    assert not world.has_order(transaction_id)


def test_plain_driver_connection_carries_the_row(plain_world):
    """An sqlite3.Connection or psycopg.Connection carries the row without SQLAlchemy on the producer's side."""
    world, transaction_id = plain_world, plain_world.new_id()
    with plain_connection(world) as connection:
        world.fence.insert(connection, transaction_id, GROUP)
        connection.execute(f"INSERT INTO {world.orders_table} (number) VALUES ('{transaction_id.hex()}')")
        world.fence.verify(connection, transaction_id)
        assert world.fence.is_open(connection)
        assert world.check(transaction_id) is FenceAnswer.NO_ANSWER
        connection.commit()
        assert not world.fence.is_open(connection)
    assert not world.fence.is_open(connection)
    assert world.has_order(transaction_id)
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_refused_plain_driver_connection_is_rolled_back(plain_world):
    """A refused row rolls the business rows of a plain driver connection back."""
    world, transaction_id = plain_world, plain_world.new_id()
    world.check(transaction_id)
    with plain_connection(world) as connection:
        connection.execute(f"INSERT INTO {world.orders_table} (number) VALUES ('{transaction_id.hex()}')")
        with pytest.raises(FencedError):
            world.fence.insert(connection, transaction_id, GROUP)
        connection.commit()
    assert not world.has_order(transaction_id)


def test_plain_driver_connection_in_autocommit_is_refused_unless_a_transaction_was_begun(plain_world):
    """An autocommit connection is refused, and accepted after an explicit BEGIN."""
    world, transaction_id = plain_world, plain_world.new_id()
    with plain_connection(world) as connection:
        if world.kind == "sqlite":
            connection.isolation_level = None
        else:
            connection.autocommit = True
        with pytest.raises(FenceMisuseError, match="autocommit"):
            world.fence.insert(connection, transaction_id, GROUP)
        connection.execute("BEGIN")
        world.fence.insert(connection, transaction_id, GROUP)
        world.fence.rollback(connection)
        assert not world.fence.is_open(connection)
        connection.execute("BEGIN")
        world.fence.insert(connection, transaction_id, GROUP)
        world.fence.verify(connection, transaction_id)
        connection.execute("COMMIT")
    assert world.check(transaction_id) is FenceAnswer.COMMIT


def test_psycopg_transaction_block_carries_the_row(postgresql):
    """A refused `with connection.transaction()` block is rolled back even if the program swallows the error."""
    good, bad = postgresql.new_id(), postgresql.new_id()
    postgresql.check(bad)
    with plain_connection(postgresql) as connection:
        with connection.transaction():
            postgresql.fence.insert(connection, good, GROUP)
            postgresql.fence.verify(connection, good)
        with connection.transaction():
            connection.execute(f"INSERT INTO {postgresql.orders_table} (number) VALUES ('{bad.hex()}')")
            with contextlib.suppress(FencedError):
                postgresql.fence.insert(connection, bad, GROUP)
    assert postgresql.check(good) is FenceAnswer.COMMIT
    assert not postgresql.has_order(bad)


def test_async_connection_of_the_fence_is_awaited(async_world):
    """An asynchronous fence opens a connection, and its row is checked, peeked, counted and forced."""
    world, transaction_id = async_world, async_world.new_id()

    async def produce():
        engine = async_engine(world)
        fence = AsyncSqlFence(engine, table=world.fence_table)
        await fence.create()
        connection = await fence.begin(None, transaction_id, GROUP)
        await connection.run_sync(world.add_order, transaction_id)
        await fence.verify(connection, transaction_id)
        assert fence.is_open(connection)
        open_answer = (await fence.check([transaction_id], GROUP))[transaction_id].answer
        await fence.commit(connection)
        assert not fence.is_open(connection)
        closed_answer = (await fence.check([transaction_id], GROUP))[transaction_id].answer
        peeked = (await fence.peek([transaction_id]))[transaction_id].answer
        stats = await fence.stats()
        with pytest.raises(FencedError):
            await fence.begin(engine, transaction_id, GROUP)
        assert engine.pool.checkedout() == 0
        other = world.new_id()
        await fence.force(other, GROUP)
        assert (await fence.check([other], GROUP))[other].answer is FenceAnswer.FORCED
        await engine.dispose()
        return open_answer, closed_answer, peeked, stats.states

    assert asyncio.run(produce()) == (FenceAnswer.NO_ANSWER, FenceAnswer.COMMIT, FenceAnswer.COMMIT, {1: 1})
    assert world.has_order(transaction_id)


def test_async_connection_and_session_of_the_caller_carry_the_row(async_world):
    """An AsyncConnection, an AsyncSession and a scoped one carry the row, to a commit or a rollback."""
    world = async_world
    ids = [world.new_id() for _ in range(6)]

    async def produce():
        engine = async_engine(world)
        fence = AsyncSqlFence(engine, table=world.fence_table)
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
        openers = [engine.connect, partial(AsyncSession, engine), scoped]
        for number, opener in enumerate(openers * 2):
            async with opener() as connection:
                await fence.insert(connection, ids[number], GROUP)
                await fence.verify(connection, ids[number])
                assert fence.is_open(connection)
                await (connection.commit() if number < 3 else fence.rollback(connection))
                assert not fence.is_open(connection)
        await engine.dispose()

    asyncio.run(produce())
    answers = [world.check(transaction_id) for transaction_id in ids]
    assert answers == [FenceAnswer.COMMIT] * 3 + [FenceAnswer.ROLLBACK] * 3


def test_async_savepoint_and_autocommit_are_refused(async_world):
    """Asynchronous connections with a savepoint or in autocommit mode are refused."""
    world = async_world

    async def produce():
        engine = async_engine(world)
        fence = AsyncSqlFence(engine, table=world.fence_table)
        async with engine.connect() as connection:
            await connection.run_sync(world.add_order, world.new_id())
            await connection.begin_nested()
            with pytest.raises(FenceMisuseError, match="savepoint"):
                await fence.insert(connection, world.new_id(), GROUP)
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(FenceMisuseError, match="autocommit"):
            await fence.begin(autocommit, world.new_id(), GROUP)
        await engine.dispose()

    asyncio.run(produce())


def test_connection_that_the_program_closed_is_no_longer_written_to(world):
    """`verify` runs no statement on a driver's connection that the pool has given to another program meanwhile."""
    transaction_id, own_id = world.new_id(), world.new_id()
    engine = world.new_engine(pool_size=1, max_overflow=0)
    closed = world.fence.begin(engine, transaction_id, GROUP)
    driver = closed.connection.driver_connection
    closed.close()
    with engine.connect() as other:
        assert other.connection.driver_connection is driver
        world.fence.insert(other, own_id, GROUP)
        with pytest.raises(NotSentError, match="closed"):
            world.fence.verify(closed, transaction_id)
        world.fence.verify(other, own_id)
        other.commit()
    assert world.check(own_id) is FenceAnswer.COMMIT
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK


def test_driver_connection_that_is_replaced_gets_a_writer_of_its_own(world):
    """A Connection that connects again writes the next row on its new driver's connection."""
    with world.new_engine(pool_size=1, max_overflow=0).connect() as connection:
        for _ in range(2):
            transaction_id, driver = world.new_id(), connection.connection.driver_connection
            world.fence.insert(connection, transaction_id, GROUP)
            world.fence.verify(connection, transaction_id)
            connection.commit()
            assert world.check(transaction_id) is FenceAnswer.COMMIT
            connection.invalidate()
            assert connection.connection.driver_connection is not driver


def test_sqlalchemy_begin_hook_of_the_program_is_kept(sqlite):
    """The fence works with SQLAlchemy's recipe for SQLite, in which an event issues BEGIN instead of the driver."""
    engine = sqlite.new_engine()
    begun = []

    @event.listens_for(engine, "connect")
    def no_driver_transactions(connection, record):
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection):
        begun.append(connection.exec_driver_sql("BEGIN"))

    fence = sqlite.new_fence(engine)
    transaction_id = sqlite.new_id()
    connection = fence.begin(None, transaction_id, GROUP)
    sqlite.add_order(connection, transaction_id)
    fence.verify(connection, transaction_id)
    fence.commit(connection)
    assert fence.check([transaction_id], GROUP)[transaction_id].answer is FenceAnswer.COMMIT
    assert sqlite.has_order(transaction_id)
    assert len(begun) >= 2


def test_isolation_level_of_the_producer_is_left_alone(server_world):
    """The fence changes nothing of the user's transaction but its durability."""
    sql = {"postgresql": "SHOW transaction_isolation", "mariadb": "SELECT @@tx_isolation"}[server_world.kind]
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        engine = server_world.new_engine(isolation_level=level)
        connection = server_world.fence.begin(engine, server_world.new_id(), GROUP)
        shown = connection.execute(text(sql)).scalar_one()
        server_world.fence.rollback(connection)
        assert shown.upper().replace("-", " ") == level


def test_commit_that_fails_is_unknown(server_world):
    """A COMMIT whose connection dies before the answer is unknown; the check finds the result."""
    transaction_id = server_world.new_id()
    connection = server_world.fence.begin(None, transaction_id, GROUP)
    server_world.kill_session(server_world.session_id(connection))
    with pytest.raises(CommitUnknownError) as unknown:
        server_world.fence.commit(connection)
    assert unknown.value.transaction_id == transaction_id
    assert connection.closed
    assert server_world.check(transaction_id) is FenceAnswer.ROLLBACK


def test_unreachable_database_is_one_error_of_ours():
    """begin, force, stats and create report the unreachable database, without the password."""
    fence = SqlFence(create_engine("postgresql+psycopg://u:geheim@127.0.0.1:1/d"))
    calls = [
        lambda: fence.begin(None, bytes(16), GROUP),
        lambda: fence.force(bytes(16), GROUP),
        fence.stats,
        fence.create,
    ]
    for call in calls:
        with pytest.raises(BackendUnavailableError, match="lost or could not be made") as error:
            call()
        assert "geheim" not in str(error.value)


def test_import_of_txcore_does_not_need_sqlalchemy():
    """Without SQLAlchemy, txcore can be imported, and the fence's error names the package to install."""
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "import txcore, txcore.fence, txcore.errors\n"
        "for name in ('txcore.sqlfence', 'txcore.inbox'):\n"
        "    try: __import__(name)\n"
        "    except txcore.errors.BackendNotInstalledError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == """'SqlFence' needs SQLAlchemy; install it with: pip install "txcore[sql]\""""
    assert len(done.stdout.splitlines()) == 2


def test_connection_whose_server_went_away_is_rolled_back_and_closed(server_world):
    """A rollback of a dead connection raises no error, returns it to the pool, and does not connect again."""
    connection = server_world.fence.begin(None, server_world.new_id(), GROUP)
    server_world.kill_session(server_world.session_id(connection))
    with pytest.raises(Exception, match=r"terminat|Lost connection|gone away|server closed"):
        connection.execute(text("SELECT 1"))
    server_world.fence.rollback(connection)
    assert connection.closed
    assert server_world.engine.pool.checkedout() == 0


def test_session_whose_flush_failed_is_rolled_back(world):
    """A Session with a failed flush gives no connection any more, and is still rolled back."""

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = world.orders_table
        number: Mapped[str] = mapped_column(primary_key=True)

    transaction_id = world.new_id()
    with world.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {world.orders_table} (number) VALUES ('taken')"))
    with Session(world.engine) as session:
        world.fence.insert(session, transaction_id, GROUP)
        session.add(Order(number="taken"))
        with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
            session.flush()
        world.fence.rollback(session)
        assert not world.fence.is_open(session)
    assert world.check(transaction_id) is FenceAnswer.ROLLBACK
