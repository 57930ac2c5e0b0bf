"""Messages of a SQLAlchemy Session are published only if its transaction commits."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from txcore_conformance import servers
from txcore_conformance.kit import FAST, wait_until
from txcore_conformance.required import obtained

import txcore
from txcore.integrations.session import SessionPublisher
from txcore.memory import Fate, Faults, MemoryBackend, MemoryBroker

INSERT = sqlalchemy.text("INSERT INTO orders VALUES (:name)")


class Refusing(Faults):
    """Refuses halves while `is_on` is set."""

    is_on = False

    def fate(self, what, transaction_ids):
        return Fate.REFUSED if self.is_on and what == "half" else Fate.DONE


class Shop:
    def __init__(self, engine):
        self.engine = engine
        self.faults = Refusing()
        self.broker = MemoryBroker(faults=self.faults)
        self.fence = txcore.SqlFence(engine)
        self.fence.create()
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE orders (name VARCHAR(20))"))
        self.backend = MemoryBackend(self.broker)
        producer = txcore.TransactionProducer(self.backend, "shop", fence=self.fence)
        self.publisher = SessionPublisher(producer)
        self.sessions = sessionmaker(engine)
        self.publisher.watch(self.sessions)

    def place(self, session, name):
        session.execute(INSERT, {"name": name})
        self.publisher.publish(session, txcore.Message("orders", name.encode()))

    @property
    def orders(self):
        with self.engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text("SELECT name FROM orders")).scalars())

    @property
    def messages(self):
        return [each.body.decode() for each in self.broker.topics.get("orders", [])]


@pytest.fixture(scope="session")
def server():
    """Return a function that starts a database server by name, each server once."""
    started = {}

    def get(name):
        if name not in started:
            started[name] = obtained(name, getattr(servers, name))
        return started[name]

    yield get
    for each in started.values():
        each.remove()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def shop(request, tmp_path, server):
    name = request.param
    url = f"sqlite:///{tmp_path / 'shop.db'}" if name == "sqlite" else server(name).fresh_database()
    engine = sqlalchemy.create_engine(url)
    yield Shop(engine)
    engine.dispose()


def test_a_commit_sends_all_that_was_published(shop):
    """The messages are sent in order, with a result; the next transaction of the Session has its own messages."""
    with shop.sessions() as session:
        shop.place(session, "one")
        shop.place(session, "two")
        assert [] == shop.messages
        session.commit()
        assert txcore.EndState.ACCEPTED is shop.publisher.result(session).state
        shop.place(session, "three")
        assert shop.publisher.result(session) is None
        session.commit()
    assert ["one", "two", "three"] == shop.orders == shop.messages


def test_a_commit_without_messages_sends_nothing(shop):
    """A commit without messages writes no fence row."""
    with shop.sessions.begin() as session:
        session.execute(INSERT, {"name": "silent"})
    assert ["silent"] == shop.orders
    assert {} == shop.fence.stats().states


def test_rollback_drops_the_published_messages(shop):
    """A later transaction of the same Session sends only its own messages."""
    with shop.sessions() as session:
        shop.place(session, "one")
        session.rollback()
        shop.place(session, "two")
        session.commit()
    assert ["two"] == shop.orders == shop.messages


def test_rollback_to_a_savepoint_drops_the_messages_after_it(shop):
    """Messages in released savepoints inside it are dropped too."""
    with shop.sessions.begin() as session:
        shop.place(session, "kept")
        with session.begin_nested():
            shop.place(session, "released")
        nested = session.begin_nested()
        shop.place(session, "dropped")
        with session.begin_nested():
            shop.place(session, "dropped, too")
        nested.rollback()
        shop.place(session, "last")
    assert ["kept", "released", "last"] == shop.orders == shop.messages


def test_a_refused_half_commits_nothing(shop):
    """The transaction stays uncommitted even if a program catches the error and commits again."""
    shop.faults.is_on = True
    with shop.sessions() as session:
        shop.place(session, "one")
        with pytest.raises(txcore.HalfRefusedError):
            session.commit()
        shop.faults.is_on = False
        with pytest.raises(Exception, match=r"roll it back|inactive|rolled back|invalid"):
            session.commit()
        session.rollback()
        shop.place(session, "two")
        session.commit()
    assert ["two"] == shop.orders == shop.messages


def test_a_failing_flush_comes_before_the_half(shop):
    """The error of the flush comes before the half is sent, so the broker has no half to roll back."""
    shop.faults.is_on = True
    base = sqlalchemy.orm.declarative_base()

    class Order(base):
        __tablename__ = "missing"
        name = sqlalchemy.Column(sqlalchemy.String(10), primary_key=True)

    with shop.sessions() as session:
        session.add(Order(name="one"))
        shop.publisher.publish(session, txcore.Message("orders", b"one"))
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="missing"):
            session.commit()
        session.rollback()
    assert [] == shop.messages


def test_closed_session_drops_the_published_messages(shop):
    """A Session that is used again does not send the messages of the earlier transaction."""
    session = shop.sessions()
    shop.place(session, "one")
    session.close()
    shop.place(session, "two")
    session.commit()
    session.close()
    assert ["two"] == shop.orders == shop.messages


def test_committed_session_does_not_fail_after_its_commit(shop, monkeypatch):
    """The commit succeeds with an unknown end and its reason; the checker delivers the message."""

    def busy(transaction):
        raise txcore.BusyError("no room")

    monkeypatch.setattr(txcore.Transaction, "commit", busy)
    with shop.sessions() as session:
        session.execute(INSERT, {"name": "one"})
        soon = txcore.CheckPolicy(immunity_s=2.1)
        shop.publisher.publish(session, txcore.Message("orders", b"one", check_policy=soon))
        session.commit()
        result = shop.publisher.result(session)
    assert (txcore.EndState.UNKNOWN, "no room") == (result.state, str(result.error))
    assert ["one"] == shop.orders
    monkeypatch.undo()
    checker = txcore.Checker(shop.backend, "shop", fence=shop.fence, limits=FAST)
    wait_until(lambda: checker.run_once() and shop.messages, "the message")
    checker.stop()
    assert ["one"] == shop.messages


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_as_many_sessions_commit_at_once_as_the_pool_has_connections(server, name):
    """Each row is read on the Session's own connection, so no Session waits for another one's connection."""
    engine = sqlalchemy.create_engine(server(name).fresh_database(), pool_size=4, max_overflow=0, pool_timeout=5)
    shop, together = Shop(engine), threading.Barrier(4)

    def place(number):
        with shop.sessions() as session:
            shop.place(session, str(number))
            together.wait(20)
            session.commit()
            return shop.publisher.result(session).state

    with ThreadPoolExecutor(4) as threads:
        states = [done.result(30) for done in [threads.submit(place, number) for number in range(4)]]
    engine.dispose()
    assert [txcore.EndState.ACCEPTED] * 4 == states
    assert ["0", "1", "2", "3"] == sorted(shop.messages)


def test_a_session_whose_commit_rolled_back_sends_nothing(server):
    """PostgreSQL reports no error for such a COMMIT: another listener of the Session caught one after the half."""
    engine = sqlalchemy.create_engine(server("postgresql").fresh_database())
    shop = Shop(engine)

    def fail(session):
        with contextlib.suppress(sqlalchemy.exc.ProgrammingError):
            session.connection().execute(sqlalchemy.text("SELECT nothing_of_that_name"))

    sqlalchemy.event.listen(shop.sessions, "before_commit", fail)
    with shop.sessions() as session:
        shop.place(session, "one")
        session.commit()
        assert txcore.EndState.CONFLICT is shop.publisher.result(session).state
    assert [] == shop.orders == shop.messages
    engine.dispose()


def test_a_session_within_a_transaction_of_the_program_sends_nothing_yet(shop):
    """The Session's commit does not end the outer transaction, so the end is unknown, and nothing is sent."""
    with shop.engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="rollback_only") as session:
            shop.publisher.watch(session)
            shop.place(session, "one")
            session.commit()
            assert txcore.EndState.UNKNOWN is shop.publisher.result(session).state
        outer.rollback()
    assert [] == shop.orders == shop.messages


def test_a_scoped_session_publishes(shop):
    """A scoped_session, as web frameworks use it, publishes its messages."""
    sessions = scoped_session(shop.sessions)
    shop.place(sessions, "one")
    sessions.commit()
    assert txcore.EndState.ACCEPTED is shop.publisher.result(sessions).state
    sessions.remove()
    assert ["one"] == shop.orders == shop.messages


def test_a_session_that_is_not_watched_is_refused(shop):
    """The publisher refuses the message, because it would never be sent."""
    with Session(shop.engine) as session, pytest.raises(txcore.UsageError, match="not watched"):
        shop.publisher.publish(session, txcore.Message("orders", b"one"))


def test_an_asynchronous_session_is_refused(shop):
    """The publisher refuses an AsyncSession, because a prepare would block its event loop."""
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(txcore.UsageError, match="AsyncSessionPublisher"):
        shop.publisher.publish(AsyncSession(engine), txcore.Message("orders", b"one"))


def test_a_two_phase_session_is_refused(shop):
    """The publisher refuses a two-phase Session, which commits elsewhere than it prepares."""
    with shop.sessions(twophase=True) as session, pytest.raises(txcore.UsageError, match="two-phase"):
        shop.publisher.publish(session, txcore.Message("orders", b"one"))


def test_a_message_that_no_backend_takes_is_refused_at_once(shop):
    """The publisher refuses the message before the Session commits."""
    with shop.sessions() as session, pytest.raises(txcore.MessageRejectedError):
        shop.publisher.publish(session, txcore.Message("orders", b"one", headers={"txcore-id": "mine"}))
