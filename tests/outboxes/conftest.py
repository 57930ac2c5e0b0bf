"""A broker of each kind, and shops on it whose outbox another library has made."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest
from txcore_conformance import brokers
from txcore_conformance.required import obtained

sys.path.insert(0, str(Path(__file__).parent))
from outbox_shop import Shop


@pytest.fixture(scope="module", params=["sqlite", "kafka", "rabbitmq", "nats"])
def broker_url(request, tmp_path_factory):
    """The URL of a broker of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('broker')}/broker.db"
        return
    yield obtained(request.param, lambda: brokers.start(request.param)).url


@pytest.fixture
def make_shop(broker_url, tmp_path):
    """A function that makes a shop with an outbox of one library, on new topics of the broker."""
    made = []

    def make(layout: str, database: str = "") -> Shop:
        tag = secrets.token_hex(4)
        ends = "/key" if broker_url.startswith("rabbitmq") else ""
        topics = (f"orders-{tag}{ends}", f"mail-{tag}{ends}")
        made.append(Shop(layout, broker_url, database or f"sqlite:///{tmp_path}/shop.db", topics))
        return made[-1]

    yield make
    for each in made:
        each.close()
