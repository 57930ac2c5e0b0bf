"""The digest in the fence row: each way of sending writes that of its messages, in the database transaction."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import psycopg
import pytest
from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import txcore
from txcore.digest import DIGEST_BYTES, digest_of
from txcore.errors import FenceMisuseError
from txcore.fence import FenceAnswer
from txcore.records import TargetMessage

GROUP = "orders"
MESSAGES = [
    txcore.Message("orders", b"tea", key=b"k", headers={"trace": "abc", "sig": b"\xff\0"}),
    txcore.Message("audit", b""),
]
DIGEST = digest_of([TargetMessage(each.topic, each.key, each.body, dict(each.headers)) for each in MESSAGES])
SOME = bytes(range(DIGEST_BYTES))


def stored(world, transaction_id):
    """Return the digest in a committed row; None where there is none."""
    found = text(f"SELECT digest FROM {world.fence_table} WHERE transaction_id = :id")
    identity = transaction_id.hex() if world.kind == "postgresql" else bytes(transaction_id)
    with world.spare.connect() as connection:
        (value,) = connection.execute(found, {"id": identity}).one()
    return None if value is None else bytes(value)


class Listener(txcore.TransactionListener):
    """Commits an order, with or without the fence's row."""

    def __init__(self, world, *, fences):
        self.world, self.fences = world, fences

    def execute(self, transaction, message, arg):
        with self.world.engine.begin() as connection:
            if self.fences:
                transaction.fence(connection)
            self.world.add_order(connection, transaction.transaction_id)
        return txcore.LocalTransactionState.COMMIT


@pytest.fixture
def producer_of(world):
    def make(fence=None, mode="half", **options):
        return txcore.TransactionProducer(
            txcore.connect("memory://"), GROUP, fence=fence or world.fence, mode=mode, **options
        )

    return make


def in_block(producer, world):
    """Send in the database style."""
    with producer.transaction(world.engine) as transaction:
        world.add_order(transaction.connection, transaction.transaction_id)
        for message in MESSAGES:
            transaction.publish(message)
    return transaction.transaction_id


def prepared(producer, connection, commit):
    """Send with the primitives on an open connection."""
    transaction = producer.begin()
    for message in MESSAGES:
        transaction.publish(message)
    transaction.prepare(connection)
    commit()
    transaction.commit()
    return transaction.transaction_id


@pytest.mark.parametrize("mode", ["half", "table", "auto"])
def test_block_writes_the_digest_of_its_messages(world, producer_of, mode):
    """The row was written with BEGIN, before there were messages; a later statement adds their digest."""
    assert DIGEST == stored(world, in_block(producer_of(mode=mode), world))


@pytest.mark.parametrize("mode", ["half", "table"])
def test_primitives_write_the_digest_with_the_row(world, producer_of, mode):
    """On a Connection and on a Session, the insert has it already."""
    producer = producer_of(mode=mode)
    with world.engine.connect() as connection, Session(world.engine) as session:
        assert DIGEST == stored(world, prepared(producer, connection, connection.commit))
        assert DIGEST == stored(world, prepared(producer, session, session.commit))


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_plain_connections_write_it_too(make_world, kind):
    """As do psycopg's, also with the statements that it has prepared, and sqlite3's."""
    world = make_world(kind)
    producer = txcore.TransactionProducer(txcore.connect("memory://"), GROUP, fence=world.fence)
    url = world.engine.url.set(drivername="postgresql")
    connect = {
        "postgresql": lambda: psycopg.connect(url.render_as_string(hide_password=False)),
        "sqlite": lambda: sqlite3.connect(world.engine.url.database),
    }[kind]
    with contextlib.closing(connect()) as connection:
        if kind == "sqlite":
            connection.execute("PRAGMA synchronous = FULL")
        for _ in range(8):
            assert DIGEST == stored(world, prepared(producer, connection, connection.commit))


@pytest.mark.parametrize("fences", [True, False])
def test_listener_style_writes_it(world, producer_of, fences):
    """Also in the row that the producer writes for a listener that forgot it."""
    producer = producer_of(listener=Listener(world, fences=fences))
    sent = producer.send_message_in_transaction(MESSAGES[0], None)
    assert sent.end.state is txcore.EndState.ACCEPTED
    message = MESSAGES[0]
    wanted = digest_of([TargetMessage(message.topic, message.key, message.body, dict(message.headers))])
    assert wanted == stored(world, sent.transaction_id)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_asyncio_writes_it(make_world, kind):
    """An asynchronous fence writes the same digest, in a block and with the primitives."""
    world = make_world(kind)
    driver = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}[kind]

    async def run():
        engine = create_async_engine(world.engine.url.set(drivername=driver))
        fence = txcore.AsyncSqlFence(engine, table=world.fence_table)
        async with txcore.AsyncTransactionProducer(txcore.connect("memory://"), GROUP, fence=fence) as producer:
            async with producer.transaction() as block:
                for message in MESSAGES:
                    block.publish(message)
            begun = producer.begin()
            for message in MESSAGES:
                begun.publish(message)
            async with engine.connect() as connection:
                await begun.prepare(connection)
                await connection.commit()
            await begun.commit()
        await engine.dispose()
        return block.transaction_id, begun.transaction_id

    assert [DIGEST, DIGEST] == [stored(world, each) for each in asyncio.run(run())]


def test_fence_without_digests_writes_none(world, producer_of):
    """`digest=False` is a fence as it was."""
    producer = producer_of(world.new_fence(digest=False))
    assert stored(world, in_block(producer, world)) is None
    with world.engine.connect() as connection:
        assert stored(world, prepared(producer, connection, connection.commit)) is None


def test_table_without_the_column_works_until_create_adds_it(world, producer_of):
    """Tables of an earlier schema version work without digests; rows that are there stay, without one."""
    with world.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {world.fence_table} DROP COLUMN digest"))
    for engine in world.engines:
        engine.dispose()
    producer = producer_of()
    old = in_block(producer, world)
    with world.engine.connect() as connection:
        prepared(producer, connection, connection.commit)
    assert world.check(old) is FenceAnswer.COMMIT
    identity = world.fence.identity()
    world.new_fence().create()
    assert identity.current == world.fence.identity().current
    assert stored(world, old) is None
    for engine in world.engines:
        engine.dispose()
    assert DIGEST == stored(world, in_block(producer, world))
    assert "digest" == inspect(world.engine).get_columns(world.fence_table)[-1]["name"]


def test_row_that_is_gone_gets_no_digest(world):
    """The statement that writes the digest finds, as one without a digest does, that the row is gone."""
    transaction_id = world.new_id()
    with world.engine.connect() as connection:
        world.fence.insert(connection, transaction_id, GROUP)
        connection.rollback()
        with pytest.raises(FenceMisuseError, match="the fence row is gone"):
            world.fence.verify(connection, transaction_id, SOME)


def test_row_of_another_transaction_gets_no_digest(postgresql):
    """A row that was committed by itself stays as it was."""
    transaction_id = postgresql.new_id()
    with postgresql.engine.connect() as connection:
        postgresql.fence.insert(connection, transaction_id, GROUP, digest=SOME)
        connection.connection.driver_connection.commit()
        with pytest.raises(FenceMisuseError, match="does not belong to the open top-level transaction"):
            postgresql.fence.verify(connection, transaction_id, bytes(DIGEST_BYTES))
    assert stored(postgresql, transaction_id) == SOME


def test_digest_that_is_written_inside_a_savepoint_counts(postgresql):
    """A savepoint of the program that is still open is released by COMMIT, as before."""
    transaction_id = postgresql.new_id()
    connection = postgresql.fence.begin(None, transaction_id, GROUP)
    connection.execute(text("SAVEPOINT s"))
    postgresql.fence.verify(connection, transaction_id, SOME)
    postgresql.fence.commit(connection)
    assert stored(postgresql, transaction_id) == SOME
