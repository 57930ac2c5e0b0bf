"""The inbox accepts messages in the form that the brokers' clients give them, and asynchronous connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pika
import pytest
from nats.aio.msg import Msg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from txcore.errors import UsageError
from txcore.ids import id_text
from txcore.inbox import AsyncInbox, Inbox, MessageId, headers_of, message_id_of

IDENTITY = b"\x01" * 16
TEXTS = {"txcore-id": f"{id_text(IDENTITY)}:3", "txcore-group": "orders", "kind": "order"}
RAW = [(name, value.encode()) for name, value in TEXTS.items()]


class KafkaMessage:
    """A message like confluent-kafka's, whose headers are a method."""

    def __init__(self, headers):
        self._headers = headers

    def headers(self):
        return self._headers


@dataclass
class Received:
    """A message like those of txcore's own consumers."""

    headers: dict[str, str | bytes] = field(default_factory=dict)


PROPERTIES = pika.BasicProperties(headers=TEXTS)
DELIVERY = pika.spec.Basic.Deliver("tag", 7, False, "", "orders")


@pytest.mark.parametrize(
    "message",
    [
        KafkaMessage(RAW),
        (DELIVERY, PROPERTIES, b"body"),
        PROPERTIES,
        Msg(None, subject="orders", data=b"body", headers=TEXTS),
        Received(TEXTS),
        TEXTS,
        RAW,
        tuple(RAW),
    ],
    ids=["confluent-kafka", "pika", "pika properties", "nats-py", "txcore", "mapping", "list", "tuple"],
)
def test_a_message_is_known_in_the_form_its_client_gives_it(message):
    """The inbox reads a message in its client's form, without the driver."""
    assert message_id_of(message) == MessageId("orders", IDENTITY, 3)


@pytest.mark.parametrize("message", [KafkaMessage(None), (DELIVERY, pika.BasicProperties(), b""), Msg(None), {}, ()])
def test_message_without_headers_is_refused_as_foreign(message):
    """A message without headers is refused, and the error names the missing ones."""
    assert {} == headers_of(message)
    with pytest.raises(UsageError, match="no txcore-id and no txcore-group header"):
        message_id_of(message)


@pytest.mark.parametrize("thing", ["text", 7, object(), b"bytes"])
def test_object_that_is_not_a_message_is_one_clear_error(thing):
    """An object that is no message, such as a body, is refused with one sentence."""
    with pytest.raises(UsageError, match="neither a message with headers nor headers"):
        message_id_of(thing)


@pytest.fixture(params=["postgresql", "sqlite"])
def asynchronous(request, make_world):
    """A world and the URL of an asynchronous engine on it."""
    world = make_world(request.param)
    name = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}[world.kind]
    return world, world.engine.url.set(drivername=name)


def test_asynchronous_connections_receive(asynchronous):
    """An asynchronous inbox receives on connections and sessions, and makes and prunes its tables."""
    world, url = asynchronous
    headers = [{**TEXTS, "txcore-id": f"{id_text(world.new_id())}:0"} for _ in range(2)]

    async def run():
        engine = create_async_engine(url)
        inbox = AsyncInbox(engine, table=f"inbox_{world.number}")
        await inbox.create()
        seen = []
        async with engine.connect() as connection:
            async with inbox.receive(connection, headers[0]) as first:
                seen.append(first)
            await connection.rollback()
        for _ in range(2):
            async with engine.begin() as connection, inbox.receive(connection, headers[0]) as first:
                seen.append(first)
                if first:
                    await connection.execute(text(f"INSERT INTO {world.orders_table} VALUES ('one')"))
        async with AsyncSession(engine) as session, session.begin(), inbox.receive(session, headers[1]) as first:
            seen.append(first)
        result = await inbox.prune(keep_s=3_600)
        await engine.dispose()
        return seen, result.deleted

    assert ([True, True, False, True], 0) == asyncio.run(run())


def test_connections_of_the_other_kind_are_refused(asynchronous):
    """An inbox refuses a connection of the other kind, and the error names the class for it."""
    world, url = asynchronous

    async def run():
        engine = create_async_engine(url)
        try:
            async with engine.connect() as connection:
                with pytest.raises(UsageError, match="use AsyncSqlFence and AsyncInbox with that"):
                    Inbox(world.engine).receive(connection, TEXTS).__enter__()
            blocking = world.engine.connect()
            with blocking, pytest.raises(UsageError, match="use SqlFence and Inbox with that"):
                await AsyncInbox(engine).receive(blocking, TEXTS).__aenter__()
        finally:
            await engine.dispose()

    asyncio.run(run())
