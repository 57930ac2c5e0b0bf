"""The service as it is, its checker included, on the test kit's broker; a request is one call in the test's event loop.

pip install "txcore[fastapi]" aiosqlite httpx pytest
python -m pytest test_service.py
"""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy
from service import make_app

import txcore
from txcore.testing import Kit

pytestmark = pytest.mark.anyio  # FastAPI brings anyio and its plugin for pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run in asyncio."""
    return "asyncio"


@pytest.fixture
async def client(txcore_kit: Kit, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the running service."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    txcore_kit.checker("shop", fence=txcore.SqlFence(engine))  # decides in drain(); the service's own is idle
    app = make_app(txcore_kit.url, f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        yield client
    engine.dispose()


async def test_an_order_is_announced(txcore_kit: Kit, client: httpx.AsyncClient) -> None:
    """Two endpoints, two messages; a refused request sends none."""
    assert (await client.post("/orders", json={"item": "tea"})).json() == {"order": 1}
    assert (await client.post("/orders/1/payment")).json() == {"paid": True}
    assert (await client.post("/orders/1/payment")).status_code == 409
    txcore_kit.assert_published("orders.created", body="1", count=1)
    txcore_kit.assert_published("orders.paid", body="1", count=1)


async def test_process_dies_right_after_its_commit(txcore_kit: Kit, client: httpx.AsyncClient) -> None:
    """The checker announces the order."""
    with txcore_kit.crash_after("database commit"):
        await client.post("/orders", json={"item": "tea"})
    txcore_kit.assert_not_published("orders.created")
    assert txcore_kit.drain().committed == 1
    txcore_kit.assert_published("orders.created", count=1)


async def test_process_dies_before_its_commit(txcore_kit: Kit, client: httpx.AsyncClient) -> None:
    """The order stays unpaid, and no payment is announced."""
    await client.post("/orders", json={"item": "tea"})
    with txcore_kit.crash_before("database commit"):
        await client.post("/orders/1/payment")
    assert txcore_kit.drain().rolled_back == 1
    txcore_kit.assert_not_published("orders.paid")
