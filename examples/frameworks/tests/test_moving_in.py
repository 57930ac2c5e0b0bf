"""The shadow run beside faststream-outbox: what the outbox would relay is what the shadow topic has."""

from __future__ import annotations

import asyncio

import pytest
from faststream_outbox_shadow import open_shop
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance import servers
from txcore_conformance.required import obtained
from txcore_sqlite.consumer import read_topic


@pytest.fixture
def database():
    server = obtained("postgresql", servers.postgresql)
    yield server.url
    server.remove()


def test_outbox_and_shadow_topic_have_the_same_orders(database, tmp_path):
    """An order that the database refuses is in neither."""

    async def work():
        engine = create_async_engine(database)
        async with open_shop(engine, f"sqlite:///{tmp_path}/broker.db") as shop:
            for item in ("tea", "cake", "milk"):
                await shop.place(item)
            with pytest.raises(Exception, match="null value"):
                await shop.place(None)
        async with engine.connect() as connection:
            kept = [bytes(each) for each in (await connection.execute(text("SELECT payload FROM outbox"))).scalars()]
        await engine.dispose()
        return kept

    kept = asyncio.run(work())
    shadow = [message.body for message in read_topic(tmp_path / "broker.db", "shadow.orders")]
    assert [b"1", b"2", b"3"] == sorted(shadow)
    assert sorted(kept) == sorted(shadow)
