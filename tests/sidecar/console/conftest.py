"""A real checker with transactions to show, for a real headless Chromium that opens its pages.

Screenshots are kept in `.artefacts/console`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from txcore_conformance.kit import hasty

import txcore
from txcore.ids import id_text

ARTEFACTS = Path(__file__).parents[3] / ".artefacts" / "console"
TOKEN = "a-token-for-the-console"


@dataclass
class Site:
    """A running checker with a console.

    Attributes:
        trouble: The browser's complaints, requests to other hosts included.
    """

    running: object
    browser: object
    shop: object
    contexts: list = field(default_factory=list)
    trouble: list = field(default_factory=list)

    @property
    def url(self):
        return self.running.url

    def page(self, **settings):
        """Open a page in its own context, and record the browser's complaints."""
        context = self.browser.new_context(
            base_url=self.url, **({"viewport": {"width": 1280, "height": 900}} | settings)
        )
        context.set_default_timeout(30_000)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: self.trouble.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(self.url) else self.trouble.append(asked.url))
        return page

    def signed_in(self, path="/console", name="Ann Lee", **settings):
        """Open a page and sign in by its form."""
        page = self.page(**settings)
        page.goto(path)
        page.get_by_label("Your name").fill(name)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(self.url + path)
        return page

    def close(self):
        for context in self.contexts:
            context.close()


@dataclass
class World:
    """The transactions of the site, by their state."""

    silent: str
    committed: str
    rolled_back: str


def make_world(shop):
    """Make the transactions that an operator may find."""
    with closing(txcore.TransactionProducer(shop.backend, "orders", partition_count=2)) as producer:
        ended = []
        for end in ("commit", "rollback"):
            transaction = producer.begin()
            transaction.publish(txcore.Message("orders.created", b"1", key=b"1"))
            transaction.prepare()
            getattr(transaction, end)()
            ended.append(id_text(transaction.transaction_id))
    immune = txcore.CheckPolicy(immunity_s=0.1)
    with closing(txcore.TransactionProducer(hasty(shop.backend), "orders", policy=immune)) as producer:
        silent = producer.begin()
        headers = {"kind": "order", "<b>": "&"}
        silent.publish(txcore.Message("orders.created", b'{"card": "4111-secret"}', key=b"42", headers=headers))
        silent.publish(txcore.Message("invoices", b'{"total": 12}', key=b"42"))
        silent.prepare()
    return World(id_text(silent.transaction_id), *ended)


@pytest.fixture
def site(shop, checkers, chromium, wait_until):
    """A checker whose callback is down, so that a silent transaction stays pending until an operator decides."""
    sites = []

    def make(extra="", token=TOKEN, callback="http://127.0.0.1:9/check", policy=""):
        (shop.folder / "token").write_text(TOKEN)
        named = 'token_file = "token"' if token else ""
        (shop.folder / "txcore.toml").write_text(
            f'[http]\n{named}\n{extra}\n[backends.main]\nurl = "{shop.broker_url}"\n'
            f'[databases.shop]\nurl = "{shop.database_url}"\n'
            '[groups.orders]\ndatabase = "shop"\npartitions = 2\nlimits.idle_poll_s = 0.05\n'
            f'callback.url = "{callback}"\n{policy}\n'
            '[groups.bills]\ndatabase = "shop"\npartitions = 2\nlimits.idle_poll_s = 0.2\n'
        )
        sites.append(Site(checkers.ready(), chromium, shop))
        return sites[-1]

    yield make
    for each in sites:
        each.close()


@pytest.fixture
def world(shop):
    return make_world(shop)


@pytest.fixture
def picture():
    """Keep a screenshot of the whole page."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return lambda page, name: page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)
