"""The site in a real headless Chromium, from its files and without a network: on a phone, copying, searching."""

from __future__ import annotations

import pytest
from blocks import documents

pytest.importorskip("furo", reason="the site needs txcore[docs]")
pytest.importorskip("playwright", reason="no Playwright: pip install playwright")

PHONE = {"width": 390, "height": 844}
CUT = """
() => {
  const wide = document.documentElement.clientWidth, content = document.querySelector(".content");
  const scrolls = (node) => {
    for (let above = node.parentElement; above !== content; above = above.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(above).overflowX)) return true;
    return false;
  };
  const isMoved = [document.documentElement, content].some((each) => each.scrollWidth > each.clientWidth);
  const cut = isMoved ? ["the page scrolls"] : [];
  for (const node of document.querySelectorAll(".content *")) {
    const { left, right, width } = node.getBoundingClientRect();
    const { overflowX } = getComputedStyle(node);
    const isOutside = width && (left < -1 || right > wide + 1) && !scrolls(node);
    const isClipped = node.clientWidth > 2 && overflowX === "hidden" && node.scrollWidth > node.clientWidth + 1;
    if (isOutside || isClipped) cut.push(node.outerHTML.slice(0, 99));
  }
  return cut;
}
"""
"""What is wider than the window, or clipped, and does not scroll by itself."""


@pytest.fixture
def visit(chromium, site):
    """Open pages of the site from its files; other hosts cannot be reached, and each attempt fails the test."""
    contexts, trouble = [], []

    def opened(name, **settings):
        context = chromium.new_context(offline=True, **settings)
        context.set_default_timeout(60_000)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or trouble.append(asked.url))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto((site / name).as_uri())
        return page

    yield opened
    for each in contexts:
        each.close()
    assert [] == trouble


def test_on_a_phone_no_page_is_wider_than_the_window(visit, site):
    """Tables, code and pictures scroll inside themselves, and no text is clipped."""
    page = visit("index.html", viewport=PHONE, is_mobile=True, has_touch=True)
    found = {"index": page.evaluate(CUT)}
    for document in (*documents(), "search.md"):
        built = (site / document).with_suffix(".html")
        if built.is_file():
            page.goto(built.as_uri(), wait_until="domcontentloaded")
            found[document] = page.evaluate(CUT)
    assert {} == {document: cut for document, cut in found.items() if cut}
    assert len(found) > 60
    page.evaluate("document.querySelector('article').innerHTML = '<p style=\"width: 500px\">wide</p>'")
    assert "the page scrolls" in page.evaluate(CUT)


def test_a_block_of_code_is_copied(visit):
    """The button copies a program as it is, and the commands of a session without prompts and answers."""
    page = visit("README.html")
    page.locator("div.highlight").nth(1).hover()
    page.locator("button.copy").nth(1).click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("from collections.abc import AsyncIterator\n")
    compile(copied, "copied", "exec")
    page = visit("docs/operating.html")
    page.locator("div.highlight-console button.copy").first.click()
    session = page.locator("div.highlight-console pre").first.inner_text()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert session.startswith(f"$ {copied.splitlines()[0]}")
    assert "$ " not in copied
    assert len(copied) < len(session)


def test_the_search_works_without_a_server(visit):
    """A search in the sidebar, from the files, finds the page of a word."""
    page = visit("index.html")
    page.get_by_placeholder("Search").fill("tombstone")
    page.keyboard.press("Enter")
    page.locator("#search-results li a", has_text="Glossary").first.wait_for()
