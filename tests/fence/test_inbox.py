"""The inbox distinguishes a first delivery from a repeated one in the consumer's own transaction."""

from __future__ import annotations

import contextlib
import sqlite3

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from txcore.errors import ConfigError, UsageError
from txcore.ids import id_text
from txcore.inbox import Inbox, MessageId, message_id_of


@pytest.fixture
def inbox(world):
    made = Inbox(world.engine, table=f"inbox_{world.number}")
    made.create()
    return made


def headers_of(transaction_id, index=0, group="orders"):
    return {"txcore-id": f"{id_text(transaction_id)}:{index}", "txcore-group": group, "other": "kept"}


def test_second_delivery_is_not_the_first(world, inbox):
    """Each message is received once; index and group are part of its identity."""
    transaction_id = world.new_id()
    seen = []
    for headers in (
        headers_of(transaction_id),
        headers_of(transaction_id),
        headers_of(transaction_id, index=1),
        headers_of(transaction_id, group="billing"),
        headers_of(transaction_id, index=1),
    ):
        with world.engine.begin() as connection, inbox.receive(connection, headers) as first:
            seen.append(first)
    assert seen == [True, False, True, True, False]


def test_header_values_may_be_bytes_and_pairs(world, inbox):
    """The inbox accepts headers with bytes and as a list of pairs, as Kafka's client gives them."""
    headers = headers_of(world.new_id())
    raw = {name: value.encode() for name, value in headers.items()}
    seen = []
    for form in (headers, raw, list(raw.items())):
        with world.engine.begin() as connection, inbox.receive(connection, form) as first:
            seen.append(first)
    assert seen == [True, False, False]


def test_rolled_back_effect_is_not_remembered(world, inbox):
    """After a rolled back effect the next delivery is the first again, because both are one transaction."""
    headers = headers_of(world.new_id())
    with (
        contextlib.suppress(ZeroDivisionError),
        world.engine.begin() as connection,
        inbox.receive(connection, headers) as first,
    ):
        assert first
        _ = 1 / 0
    with world.engine.begin() as connection, inbox.receive(connection, headers) as first:
        assert first


def test_duplicate_leaves_the_callers_transaction_usable(world, inbox):
    """A duplicate leaves the transaction usable, also on PostgreSQL, where a failed statement would end it."""
    first_id, second_id = world.new_id(), world.new_id()
    with world.engine.begin() as connection, inbox.receive(connection, headers_of(first_id)):
        pass
    with world.engine.begin() as connection:
        world.add_order(connection, second_id)
        with inbox.receive(connection, headers_of(first_id)) as first:
            assert not first
        world.add_order(connection, first_id)
    assert world.has_order(first_id)
    assert world.has_order(second_id)


def test_second_consumer_waits_and_sees_that_the_first_has_committed(world, inbox, threads, eventually):
    """Of two concurrent consumers of a message, the second waits and is not the first."""
    headers = headers_of(world.new_id())
    engine = world.new_engine()
    entered = []

    def consume():
        with engine.begin() as connection:
            entered.append(True)
            with inbox.receive(connection, headers) as first:
                return first

    with world.engine.begin() as connection, inbox.receive(connection, headers) as first:
        assert first
        other = threads.submit(consume)
        eventually(lambda: entered and (world.kind == "sqlite" or world.waiters()))
        assert not other.done()
    assert other.result(20) is False


def test_second_consumer_is_first_when_the_first_one_rolls_back(world, inbox, threads, eventually):
    """A waiting consumer is the first one after the other one has rolled back."""
    headers = headers_of(world.new_id())
    engine = world.new_engine()

    def consume():
        with engine.begin() as connection, inbox.receive(connection, headers) as first:
            return first

    with world.engine.connect() as connection, inbox.receive(connection, headers) as first:
        assert first
        other = threads.submit(consume)
        if world.kind != "sqlite":
            eventually(world.waiters)
        connection.rollback()
    assert other.result(20) is True


def test_many_consumers_of_one_message_have_one_effect(world, inbox, threads):
    """Of eight concurrent consumers, the unique row admits only one."""
    headers = headers_of(world.new_id())
    engine = world.new_engine(pool_size=8)

    def consume(number):
        with engine.begin() as connection, inbox.receive(connection, headers) as first:
            if first:
                world.add_order(connection, world.new_id())
            return first

    seen = [done.result(30) for done in [threads.submit(consume, number) for number in range(8)]]
    assert sorted(seen) == [False] * 7 + [True]
    with world.engine.connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {world.orders_table}")).scalar_one() == 1


def test_session_receives(world, inbox):
    """The inbox uses the transaction of an ORM Session."""
    headers = headers_of(world.new_id())
    seen = []
    for _ in range(2):
        with Session(world.engine) as session, session.begin(), inbox.receive(session, headers) as first:
            seen.append(first)
    assert seen == [True, False]


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_plain_driver_connection_receives(make_world, kind):
    """The inbox receives on a psycopg.Connection and on an sqlite3.Connection."""
    world = make_world(kind)
    inbox = Inbox(world.engine, table=f"inbox_{world.number}")
    inbox.create()
    headers = headers_of(world.new_id())
    url = world.engine.url
    seen = []
    for _ in range(2):
        if kind == "sqlite":
            connection = sqlite3.connect(url.database)
        else:
            connection = psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
        with contextlib.closing(connection), connection, inbox.receive(connection, headers) as first:
            seen.append(first)
            connection.commit()
    assert seen == [True, False]


def test_autocommit_connection_is_refused(world, inbox):
    """The inbox refuses autocommit, which would remember the message before its effect is committed."""
    engine = world.new_engine(isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(UsageError, match="autocommit"),
        inbox.receive(connection, headers_of(world.new_id())),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({}, "no txcore-id and no txcore-group header"),
        ({"txcore-group": "orders"}, "no txcore-id header"),
        ({"txcore-id": f"{id_text(bytes(16))}:0"}, "no txcore-group header"),
        ({"txcore-id": "1", "txcore-group": "g"}, "must be <transaction_id>:<index>, not '1'"),
        ({"txcore-id": f"{id_text(bytes(16))}:-1", "txcore-group": "g"}, "must be <transaction_id>:<index>"),
        ({"txcore-id": "x:1", "txcore-group": "g"}, "'x' is not a transaction id"),
        ({"txcore-id": b"\xff:1", "txcore-group": "g"}, "txcore-id is no UTF-8 text"),
    ],
)
def test_missing_or_malformed_headers_are_one_clear_error(headers, sentence):
    """A message without valid headers, which txcore did not publish, is refused with one sentence."""
    with pytest.raises(UsageError, match=sentence):
        message_id_of(headers)


def test_identity_is_read_from_the_headers():
    """Group, transaction id and index are read from the headers."""
    assert message_id_of(headers_of(bytes(16), 7)) == MessageId("orders", bytes(16), 7)


def test_create_is_idempotent_and_safe_at_once(world, threads):
    """Several consumers may create the table at the same moment."""
    inbox = Inbox(world.engine, table=f"made_{world.number}")
    for done in [threads.submit(inbox.create) for _ in range(4)]:
        done.result(30)


def test_things_that_are_no_engine_are_refused():
    """The inbox refuses an object that is no engine, and a table name that is not plain."""
    with pytest.raises(ConfigError, match="Inbox takes a SQLAlchemy Engine, not"):
        Inbox("sqlite:///consumer.db")
    with pytest.raises(ConfigError, match="not a plain table name"):
        Inbox(create_engine("sqlite://"), table="in box")


def test_connection_of_another_database_is_refused(make_world, tmp_path):
    """The inbox refuses a connection of another database, where the effect would be without the row."""
    inbox = Inbox(make_world("sqlite").engine)
    server = make_world("postgresql")
    with (
        server.engine.begin() as connection,
        pytest.raises(UsageError, match="of postgresql, the inbox of sqlite"),
        inbox.receive(connection, headers_of(server.new_id())),
    ):
        pytest.fail("entered")


def test_missing_table_is_one_sentence(world):
    """A forgotten create() is a mistake of the program; the driver's error is its cause."""
    inbox = Inbox(world.engine, table=f"missing_{world.number}")
    sentence = rf"^table missing_{world.number} is missing: run create\(\) of the inbox once"
    with (
        pytest.raises(UsageError, match=sentence),
        world.engine.begin() as connection,
        inbox.receive(connection, headers_of(world.new_id())),
    ):
        pass


def test_forgotten_with_is_stopped_before_any_effect(world, inbox):
    """`if inbox.receive(…)` would apply every copy."""
    with world.engine.begin() as connection, pytest.raises(UsageError, match="before its block is entered"):
        assert inbox.receive(connection, headers_of(world.new_id()))
