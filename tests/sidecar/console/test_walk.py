"""An operator at the console, in a real browser: the operator opens a transaction, decides, and finds it in the log."""

from __future__ import annotations

from contextlib import closing

import pytest
from txcore_conformance.kit import hasty

import txcore
from txcore.ids import id_text

REASON = "customer called, order 42 is void"


def test_a_pending_transaction_is_seen_opened_forced_back_and_found_in_the_log(site, world, shop, picture):
    """An operator needs only clicks; the message is never delivered, and the log has the operator and the reason."""
    console = site()
    page = console.signed_in()
    picture(page, "walk-1-groups")
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="Pending").click()
    short = world.silent[-8:]
    page.get_by_role("link", name=short).click()
    picture(page, "walk-2-transaction")
    assert "pending" in page.locator("h1").inner_text()
    page.get_by_role("link", name="Force rollback").click()
    page.get_by_label("Why?").fill(REASON)
    page.get_by_label("to confirm").fill("rollback")
    page.get_by_role("button", name="Force rollback").click()
    assert f"type {short}" in page.get_by_role("alert").inner_text()
    assert REASON == page.get_by_label("Why?").input_value()
    page.get_by_label("to confirm").fill(short)
    picture(page, "walk-3-confirm")
    page.get_by_role("button", name="Force rollback").click()
    assert "requested; the log keeps the request" in page.get_by_role("status").inner_text()
    # The page renews itself without a reload.
    page.locator("h1", has_text="rolled back").wait_for()
    journey = page.locator(".timeline").inner_text()
    assert f"Ann Lee (console) asks for ROLLBACK, {REASON}" in journey
    assert "never to be delivered" in page.locator("main").inner_text()
    picture(page, "walk-4-done")
    page.get_by_role("link", name="Decisions").click()
    page.wait_for_url("**/decisions")
    rows = page.locator("tbody tr").all_inner_texts()
    assert any("Ann Lee (console)" in row and "asked for ROLLBACK" in row and REASON in row for row in rows)
    assert any("executed ROLLBACK" in row and short in row for row in rows)
    picture(page, "walk-5-decisions")
    assert world.silent not in shop.delivered()
    assert ["the server responded with a status of 400 (Bad Request)"] == [
        each.removeprefix("Failed to load resource: ") for each in console.trouble
    ], "only the confirmation that was wrong"


def test_everything_can_be_done_with_the_keyboard_alone(site, world):
    """An operator signs in, finds and decides with Tab, Enter and typing; the focused element has an outline."""
    console = site()
    page = console.page()
    page.goto("/console/groups/orders")
    page.keyboard.type("Bo")
    page.keyboard.press("Tab")
    page.keyboard.type("a-token-for-the-console")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{console.url}/console/groups/orders")
    _tab_to(page, "input#find")
    page.keyboard.type(world.silent[-6:])
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/transactions/{world.silent}")
    page.keyboard.press("Tab")
    assert "Skip to content" == page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    _tab_to(page, "a#do-commit")
    assert "none" != page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    page.wait_for_url("**/commit")
    page.keyboard.type("it was paid")
    page.keyboard.press("Tab")
    page.keyboard.type(world.silent[-8:])
    page.keyboard.press("Enter")
    page.locator("h1", has_text="committed").wait_for()
    assert [] == console.trouble


def _tab_to(page, selector):
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} is not reached by Tab")


def test_it_works_without_scripts(site, world):
    """An operator can force a rollback without scripts, because the scripts only renew pages."""
    console = site()
    page = console.signed_in(f"/console/groups/orders/transactions/{world.silent}", java_script_enabled=False)
    page.get_by_role("link", name="Force rollback").click()
    page.get_by_label("Why?").fill("no scripts")
    page.get_by_label("to confirm").fill(world.silent[-8:])
    page.get_by_role("button", name="Force rollback").click()
    assert "requested" in page.get_by_role("status").inner_text()


def test_without_a_token_everything_is_shown_and_nothing_can_be_changed(site, world):
    """Without a token the console only shows; the page names the setting that is missing."""
    console = site(token="")
    page = console.page()
    page.goto(f"/console/groups/orders/transactions/{world.silent}")
    assert "read only" in page.locator("header").inner_text()
    assert "configure http.token_file" in page.locator("main").inner_text()
    assert 0 == page.get_by_role("link", name="Force rollback").count()
    page.goto(f"/console/groups/orders/transactions/{world.silent}/rollback")
    assert "configure http.token_file" in page.get_by_role("alert").inner_text()
    assert 0 == page.locator("form.decide").count()


def test_bodies_are_hidden_unless_the_configuration_shows_them(site, world):
    """No page shows a body without `bodies = true`; keys and headers are shown, as text."""
    paths = ("", "/pending", "/parked", "/decisions", f"/transactions/{world.silent}")
    for extra, is_shown in (("", False), ("bodies = true", True)):
        page = site(extra).signed_in()
        pages = []
        for path in paths:
            page.goto(f"/console/groups/orders{path}")
            pages.append(page.content())
        assert is_shown == any("4111-secret" in each for each in pages)
        assert "<code>&lt;b&gt;: &amp;</code>" in pages[-1]
        for secret in ("a-token-for-the-console", str(page.context.cookies()[0]["value"]), "sqlite:///"):
            assert not any(secret in each for each in pages)


def test_signing_out_ends_it(site, world):
    """The next page after signing out asks for the token again."""
    page = site().signed_in()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/console/sign-in")
    page.goto("/console/groups/orders")
    assert page.url.endswith("/console/sign-in?to=/console/groups/orders")


def test_a_parked_transaction_is_resumed_when_the_service_knows_again(
    site, shop, callback_server, picture, screen, wait_until
):
    """The page shows a parked half with reason and checks; after a resume the checker asks again and delivers it."""
    callback_server.answer = lambda _: (200, {}, b'{"state": "UNKNOWN"}')
    console = site(callback=callback_server.start().url, policy="policy.check_max = 2\npolicy.interval_s = 0.2")
    ((silent,), _) = shop.orphans(1, fenced=False).values()
    wait_until(lambda: console.running.metric("txcore_parked_total", group="orders"), "parking")
    page = console.signed_in("/console/groups/orders/parked")
    assert "CHECKS_EXHAUSTED" in page.locator("tbody").inner_text()
    page.get_by_role("link", name=silent[-8:]).click()
    assert "answered UNKNOWN, 2 times now" in page.locator(".timeline").inner_text()
    picture(page, "parked-transaction")
    if path := screen("console", page.locator("main").inner_html()):
        page.set_viewport_size({"width": 1100, "height": 600})
        page.screenshot(path=path, full_page=True)
    callback_server.answer = lambda _: (200, {}, b'{"state": "COMMIT"}')
    page.get_by_role("link", name="Resume").click()
    page.get_by_label("Why?").fill("the service is back")
    page.get_by_label("to confirm").fill(silent[-8:])
    page.get_by_role("button", name="Resume").click()
    page.locator("h1", has_text="committed").wait_for()
    assert "Ann Lee (console): the service is back" in page.locator(".timeline").inner_text()
    picture(page, "resumed-transaction")
    page.get_by_role("link", name="Decisions").click()
    page.wait_for_url("**/decisions")
    assert "resumed" in page.locator("tbody tr", has_text="the service is back").inner_text()
    assert [silent] == shop.delivered()
    assert [] == console.trouble


def test_going_against_the_fence_takes_a_confirmation_of_its_own(site, shop, picture):
    """The page shows the database's answer; the log keeps that an operator decided against it."""
    console = site(policy="policy.immunity_s = 600")
    found = shop.orphans(1, committed=lambda _: True)
    (identity,) = found[True]
    page = console.signed_in(f"/console/groups/orders/transactions/{identity}")
    assert "COMMIT: the local transaction committed" in page.locator("main").inner_text()
    assert "state 1 (committed)" in page.locator("main").inner_text()
    page.get_by_role("link", name="Decide against the fence").click()
    assert "decides against the database" in page.get_by_role("alert").inner_text()
    picture(page, "against-the-fence")
    page.get_by_label("Why?").fill("by contract")
    page.get_by_label("to confirm").fill(f"override {identity[-8:]}")
    page.get_by_role("button", name="Force rollback against the fence").click()
    assert "AGAINST THE FENCE" in page.locator(".timeline").inner_text()
    page.get_by_role("link", name="Decisions").click()
    page.wait_for_url("**/decisions")
    assert "against the fence" in page.locator("tbody").inner_text()
    assert [] == console.trouble


@pytest.fixture
def parked(site, shop, callback_server, wait_until):
    """A console with four parked transactions, one of them to another topic and with another key; and its callback."""
    callback_server.answer = lambda _: (200, {}, b'{"state": "UNKNOWN"}')
    console = site(callback=callback_server.start().url, policy="policy.check_max = 1\npolicy.interval_s = 0.2")
    found = set.union(*shop.orphans(3, fenced=False).values())
    other = orphan(shop, "invoices", b"42")
    wait_until(lambda: console.running.metric("txcore_parked_halves", group="orders") == 4, "parking")
    return console, found, other


def orphan(shop, topic, key):
    """Leave one half without an end, and return its id."""
    policy = txcore.CheckPolicy(immunity_s=0.01)
    with closing(txcore.TransactionProducer(hasty(shop.backend), "orders", policy=policy, partition_count=2)) as made:
        transaction = made.begin()
        transaction.publish(txcore.Message(topic, b"1", key=key))
        transaction.prepare()
    return id_text(transaction.transaction_id)


def test_what_a_filter_shows_is_resumed_with_one_confirmation(parked, callback_server, shop, picture, wait_until):
    """The page names the count, wants a reason and the count typed, and resumes exactly what the filter shows."""
    console, found, other = parked
    page = console.signed_in("/console/groups/orders/parked")
    page.get_by_label("Topic").fill("orders.created")
    page.get_by_label("Key").fill("k")
    page.get_by_label("Code").select_option("CHECKS_EXHAUSTED")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**/parked?*")
    assert {each[-8:] for each in found} == set(page.locator("tbody th").all_inner_texts())
    assert "orders.created" == page.get_by_label("Topic").input_value()
    picture(page, "parked-filtered")
    page.get_by_role("link", name="Resume these 3").click()
    page.get_by_label("Why?").fill("the service is back")
    page.get_by_label("to confirm").fill("resume 4")
    page.get_by_role("button", name="Resume 3 transactions").click()
    assert "type resume 3" in page.get_by_role("alert").inner_text()
    picture(page, "resume-all")
    callback_server.answer = lambda _: (200, {}, b'{"state": "COMMIT"}')
    page.get_by_label("to confirm").fill("Resume 3")
    page.get_by_role("button", name="Resume 3 transactions").click()
    assert "3 transactions resumed" in page.get_by_role("status").inner_text()
    assert "Nothing like that is parked." in page.locator("main").inner_text()
    wait_until(lambda: sorted(found) == sorted(shop.delivered()), "the deliveries")
    page.get_by_role("link", name="Show all").click()
    page.locator("tbody th", has_text=other[-8:]).wait_for()
    assert [other[-8:]] == page.locator("tbody th").all_inner_texts()
    page.get_by_role("link", name="Decisions").click()
    page.wait_for_url("**/decisions")
    assert 3 == page.locator("tbody tr", has_text="Ann Lee (console)").filter(has_text="the service is back").count()
    assert "operator.asked" in console.running.text


def test_a_list_that_has_changed_is_not_resumed(parked, shop):
    """If another operator has decided one of them meanwhile, nothing is done, and the page says why."""
    console, found, _ = parked
    page = console.signed_in()
    page.goto("/console/groups/orders/parked/resume?topic=orders.created")
    page.get_by_label("Why?").fill("the service is back")
    page.get_by_label("to confirm").fill("resume 3")
    operator = txcore.Operator(shop.backend, "orders")
    operator.rollback(txcore.TransactionId.parse(min(found)), "a test order")
    page.get_by_role("button", name="Resume 3 transactions").click()
    assert "no longer parked" in page.get_by_role("alert").inner_text()
    assert 3 == len(operator.parked())
