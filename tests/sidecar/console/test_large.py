"""The console on a bad night: 10,000 pending transactions, 50 parked ones, and a relay that can send nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine

import txcore

PENDING, PARKED = 10_000, 50
SHAPES = ((1280, "desktop"), (390, "phone"))
GROUPS = """
[databases.mail]
url = "{mail}"
[groups.mail]
database = "mail"
partitions = 2
[groups.archive]
database = "shop"
partitions = 2
"""


@pytest.fixture
def mail(shop):
    """A database of its own for the relay that fails; it has a message that waits."""
    file = shop.folder / "mail.db"
    engine = create_engine(f"sqlite:///{file}")
    fence = txcore.SqlFence(engine)
    fence.create()
    with (
        closing(txcore.TransactionProducer(shop.backend, "mail", fence=fence, mode="table", partition_count=2)) as made,
        made.transaction(engine) as transaction,
    ):
        transaction.publish(txcore.Message("mail", b"waits"))
    engine.dispose()
    return file


@pytest.fixture
def night(site, shop, mail, callback_server, wait_until):
    """A console with everything that is wrong, and the lock that stops the relay."""
    callback_server.answer = lambda _: (200, {}, b'{"state": "UNKNOWN"}')
    shop.orphans(PENDING, group="archive", fenced=False, immunity_s=86_400.0)
    shop.orphans(PARKED, fenced=False)
    lock = sqlite3.connect(mail, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    console = site(
        callback=callback_server.start().url,
        policy=f"policy.check_max = 1\npolicy.interval_s = 0.2\n{GROUPS.format(mail=f'sqlite:///{mail}')}",
    )
    running = console.running
    wait_until(lambda: running.metric("txcore_parked_halves", group="orders") == PARKED, "parking")
    wait_until(lambda: running.metric("txcore_pending_halves", group="archive") == PENDING, "the pending ones")
    wait_until(lambda: running.metric("txcore_relay_up", group="mail") == 0, "the relay's failure")
    yield console
    lock.close()


@pytest.mark.heavy
def test_console_shows_a_bad_night_and_resumes_fifty_at_once(night, picture, wait_until):
    """Each page is there at both widths within seconds; the parked ones are resumed with one confirmation."""
    for width, shape in SHAPES:
        page = night.signed_in(viewport={"width": width, "height": 900})
        assert f"{PENDING:,}" in page.locator("main").inner_text().replace("\u202f", ",")
        picture(page, f"night-groups-{shape}")
        for path in ("archive/pending", "orders/parked", "mail"):
            page.goto(f"/console/groups/{path}")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            picture(page, f"night-{path.replace('/', '-')}-{shape}")
    page.goto("/console/groups/orders/parked?code=CHECKS_EXHAUSTED")
    page.get_by_role("link", name=f"Resume these {PARKED}").click()
    page.get_by_label("Why?").fill("the service is back")
    page.get_by_label("to confirm").fill(f"resume {PARKED}")
    page.get_by_role("button", name=f"Resume {PARKED} transactions").click()
    assert f"{PARKED} transactions resumed" in page.get_by_role("status").inner_text()
    # The service still says UNKNOWN, so that they are asked once more, and parked again.
    wait_until(lambda: night.running.metric("txcore_parked_total", group="orders") >= 2 * PARKED, "the second checks")
    assert [] == night.trouble
