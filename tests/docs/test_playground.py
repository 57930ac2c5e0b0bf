"""The playground's page in a real headless Chromium; pictures of it are kept in `.artefacts/playground`.

With Python for browsers it is `make playground`, which needs npm. Without it, the page says what is missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

pytest.importorskip("furo", reason="the site needs txcore[docs]")
pytest.importorskip("playwright", reason="no Playwright: pip install playwright")

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / ".artefacts" / "playground"
PATIENCE_MS = 120_000
STEPS_MAX = 60
SHAPES = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


class Quiet(SimpleHTTPRequestHandler):
    """Writes no line for each request, and has an empty icon, for which every browser asks."""

    def do_GET(self):
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def served():
    """Serves a folder on loopback, and returns its URL."""
    servers = []

    def serve(folder):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def playable(site, tmp_path_factory):
    """The site with Python for browsers."""
    if (site / "_static" / "playground" / "manifest.json").is_file():
        return site
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine")
    folder = tmp_path_factory.mktemp("playable") / "html"
    shutil.copytree(site, folder)
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "playground.py", folder], check=True, timeout=600)
    return folder


@pytest.fixture
def visit(chromium, served, playable):
    """Opens the playground's page; a complaint of the browser or a request to another host fails the test."""
    contexts, trouble = [], []

    def open_page(address="", width=1280, **settings):
        url = served(playable)
        context = chromium.new_context(viewport={"width": width, "height": 900}, **settings)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: trouble.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(url) else trouble.append(asked.url))
        page.goto(f"{url}/docs/playground.html{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [] == trouble


def figure(name, text):
    """Keep a measured figure, which `make playground` prints."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    (ARTEFACTS / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")


def click(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def shown(page, name):
    return page.locator(f'[data-at="{name}"]').inner_text()


def start(page):
    click(page, "Start the playground")
    page.locator('#txcore-playground[data-state="ready"] [data-at="now"]:has-text("CLAIM")').wait_for()


def step_until(page, text):
    """Step until the newest sentences contain *text*."""
    for _ in range(STEPS_MAX):
        click(page, "Step")
        if text in shown(page, "now"):
            return
    pytest.fail(f"{text!r} was never said: {shown(page, 'past')}")


def commit_and_kill(page):
    """Place an order and kill its producer right after the database's commit."""
    click(page, "Place an order")
    step_until(page, "The database commits")
    click(page, "Kill the producer")


def test_a_site_without_python_says_how_to_add_it(chromium, served, tmp_path):
    """Without Python for browsers the page names the command that adds it; opened as a file, the one that serves it."""
    text = (ROOT / "docs" / "playground.md").read_text(encoding="utf-8")
    parts = [token.content for token in MarkdownIt().parse(text) if token.type == "html_block"]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "playground.html").write_text("".join(parts), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "site" / "static", tmp_path / "_static")
    page = chromium.new_page()
    page.goto(f"{served(tmp_path)}/docs/playground.html")
    page.locator('[data-state="missing"]').wait_for(timeout=PATIENCE_MS)
    assert "no Python for browsers" in page.locator("#txcore-playground").inner_text()
    assert "make playground" in page.locator("#txcore-playground").inner_text()
    page.goto((tmp_path / "docs" / "playground.html").as_uri())
    page.locator('[data-state="file"]').wait_for(timeout=PATIENCE_MS)
    assert "python -m http.server" in page.locator("#txcore-playground").inner_text()
    page.close()


@pytest.mark.heavy
def test_a_killed_producers_message_is_recovered(visit):
    """A producer that is killed after the database's commit: the checker publishes its message. The time is kept."""
    page = visit()
    page.get_by_role("button", name="Start the playground").wait_for()
    began_s = time.monotonic()
    start(page)
    loaded_s = time.monotonic()
    commit_and_kill(page)
    click(page, "Play")
    page.locator('[data-at="now"]:has-text("so the checker publishes the message")').wait_for()
    page.locator('[data-at="messages"]:has-text("{\\"order\\": 1}")').wait_for()
    recovered_s = time.monotonic()
    loading_s = loaded_s - began_s
    figure(
        "recovery",
        f"first click to first recovered message: {recovered_s - began_s:.1f} s, {loading_s:.1f} s of loading",
    )
    page.locator('[data-at="now"]:has-text("All is decided: each order is in the database")').wait_for()
    assert re.search(r"COMMIT order 1 · by the checker", shown(page, "ops"))
    assert "order 1 · fence row: committed" in shown(page, "database")
    assert "killed" == shown(page, "producer-text")


@pytest.mark.heavy
def test_an_order_that_was_not_committed_is_dropped_by_the_next_checker(visit):
    """Both are killed before the commit: nothing is decided until another checker leaves a tombstone.

    The address then replays the visit in another window, sentence by sentence, with the same trace.
    """
    page = visit()
    start(page)
    click(page, "Place an order")
    step_until(page, "is stored in the half log")
    click(page, "Kill the producer")
    click(page, "Kill the checker")
    step_until(page, "no checker runs")
    page.locator('[data-at="checker"]').get_by_role("button", name="Start another").click()
    step_until(page, "ROLLBACK is in the op log")
    step_until(page, "All is decided: no order is in the database, and no message in the topic.")
    assert "order 1 · fence row: tombstone" in shown(page, "database")
    assert "empty" == shown(page, "messages")
    again = visit(page.evaluate("location.hash"))
    click(again, "Start the playground")
    again.get_by_text("Seed, broker, rules, replay").click()
    again.locator('[data-at="same"]:has-text("The replay has the same trace.")').wait_for()
    assert shown(page, "past").splitlines() == shown(again, "past").splitlines()


@pytest.mark.heavy
def test_it_looks_well_and_plays_whole_seeds(visit):
    """On a phone and in the dark no part is wider than the page; pictures are kept.

    Without a rule an invariant is broken, and the page names it. Whole seeds break none.
    """
    page = visit()
    start(page)
    commit_and_kill(page)
    step_until(page, "COMMIT is in the op log")
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.get_by_text("Freeze it before the commit").wait_for()  # the text below is still there
    for scheme, width in SHAPES:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        page.screenshot(path=ARTEFACTS / f"page-{scheme}-{width}.png", full_page=True)
    page.get_by_text("Seed, broker, rules, replay").click()
    page.get_by_label("Without rule").select_option("no_fence")
    click(page, "Begin anew with these")
    click(page, "Place an order")
    step_until(page, "is stored in the half log")
    click(page, "Freeze it 10 s")
    step_until(page, "A rule is broken: S4")
    page.screenshot(path=ARTEFACTS / "broken-rule.png")
    page.get_by_label("Without rule").select_option("")
    click(page, "Begin anew with these")
    page.get_by_text("Whole seeds of the simulator").click()
    began_s = time.monotonic()
    click(page, "Play 20 from here")
    page.locator('[data-at="results"] tr:nth-child(20)').wait_for()
    figure("seeds", f"20 seeds of the simulator: {time.monotonic() - began_s:.1f} s")
    rows = [row.split("\t") for row in page.locator('[data-at="results"]').inner_text().splitlines()]
    assert {"none"} == {row[7] for row in rows}
    assert sum(int(row[3]) for row in rows) > 5
