"""The fixtures of txcore's test kit, and the shop's database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
import store

import txcore
from txcore.testing import Kit

pytest_plugins = ["txcore.testing.pytest"]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """Return a database of this test's own; for a server, an engine on an empty schema."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield engine
    engine.dispose()


@pytest.fixture
def producer(txcore_kit: Kit, engine: sqlalchemy.Engine) -> txcore.TransactionProducer:
    """Return the service's producer, on the kit's broker and clock."""
    return txcore_kit.producer(store.GROUP, fence=store.create_tables(engine))
