"""The looks of the pages: light and dark, wide and narrow, measured and kept as pictures."""

from __future__ import annotations

import math
from collections import deque

import pytest
from txcore_conformance.kit import Recorder

import txcore
from txcore.records import HalfRecord
from txcore.sidecar.web.app import make_app
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.history import COUNTED, History, Sample

SHAPES = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
MEASURE = """
() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.5) return colour;
    }
    return rgb(getComputedStyle(document.body).backgroundColor);
  };
  const weak = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(".skip")) continue;
    const colour = rgb(getComputedStyle(node)[node.namespaceURI.endsWith("svg") ? "fill" : "color"]);
    const [a, b] = [light(colour), light(ground(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) weak.push(`${node.tagName} ${node.textContent.trim().slice(0, 40)}: ${contrast}`);
  }
  const nameless = [...document.querySelectorAll("input:not([type=hidden]), textarea, button, a, select")]
    .filter((each) => !(each.labels?.length || each.textContent.trim() || each.getAttribute("aria-label")))
    .map((each) => each.outerHTML);
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((each) => Number(each.tagName[1]));
  const jumps = levels.some((each, n) => n && each > levels[n - 1] + 1);
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  return {
    weak, nameless, jumps,
    headings: levels.filter((each) => each === 1).length,
    twice: ids.filter((each, n) => ids.indexOf(each) !== n),
    pictures: [...document.querySelectorAll("img:not([alt]), svg[role=img]:not([aria-label])")].length,
    wider: document.documentElement.scrollWidth - window.innerWidth,
    scrolled: [...document.querySelectorAll(".scroll > table:not(.small)")]
      .filter((each) => each.scrollWidth > each.parentElement.clientWidth).length,
    language: document.documentElement.lang,
  };
}
"""
WELL = {
    "weak": [],
    "nameless": [],
    "jumps": False,
    "headings": 1,
    "twice": [],
    "pictures": 0,
    "language": "en",
}


@pytest.fixture
def busy(site, world, shop, wait_until):
    """A console with finished, pending and parked transactions, so that no page is empty."""
    console = site()
    shop.orphans(40, group="bills", immunity_s=0.01)
    backend = shop.backend
    with_poison(backend)
    running = console.running
    wait_until(lambda: running.metric("txcore_ends_total", group="bills") >= 40, "the ends")
    wait_until(lambda: running.metric("txcore_parked_total", group="bills") >= 1, "the poison")
    return console


def with_poison(backend):
    """Append a half whose body cannot be decoded."""
    batch = Recorder([HalfRecord("bills", 0, b"\x00" * 16, 0, b"\xc1 nothing that can be read", ())])
    backend.append_halves(batch)
    batch.wait(backend, 10.0)


@pytest.mark.parametrize(("scheme", "width"), SHAPES, ids=str)
def test_every_page_is_readable_in_each_scheme_and_width(busy, world, picture, scheme, width):
    """Each page has a contrast of 4.5 or more, one h1 and named controls, and nothing is wider than the window."""
    page = busy.signed_in(color_scheme=scheme, viewport={"width": width, "height": 900})
    page.goto("/console/groups/bills/parked")
    poison = page.locator("tbody a").first.get_attribute("href")
    pages = {
        "groups": "/console",
        "group": "/console/groups/bills",
        "pending": "/console/groups/orders/pending",
        "parked": "/console/groups/bills/parked",
        "transaction": f"/console/groups/orders/transactions/{world.silent}",
        "poison": poison,
        "finished": f"/console/groups/orders/transactions/{world.committed}",
        "decide": f"/console/groups/orders/transactions/{world.silent}/commit",
        "decisions": "/console/groups/orders/decisions",
        "resume": "/console/groups/bills/parked/resume",
        "nowhere": "/console/nowhere",
    }
    for name, path in pages.items():
        page.goto(path)
        picture(page, f"{name}-{scheme}-{width}")
        found = page.evaluate(MEASURE)
        assert 0 >= found.pop("wider"), name
        assert 0 == found.pop("scrolled") or width > 390, name
        assert found == WELL, name
    page.get_by_role("button", name="Sign out").click()
    picture(page, f"sign-in-{scheme}-{width}")
    assert txcore.__version__ in page.locator("footer").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_show_the_last_hour(served, make_client, chromium, picture, scheme):
    """The page draws six charts; each has a summary in words, and a table."""
    history = History(served.sidecar, served.sidecar.clock)
    figures = served.sidecar.runners["orders"].figures
    now_s, now_ms = served.sidecar.clock.elapsed_s(), served.sidecar.clock.wall_ms()
    buckets = [[0] * (len(each.bounds) + 1) for each in (figures.asked_s, figures.visible_s)]
    counts = [0] * len(COUNTED)
    samples = deque()
    for number in range(720):
        wave = 1 + math.sin(number / 40)
        counts = [count + round(wave * 60 / (n + 1)) for n, count in enumerate(counts)]
        for each in buckets:
            for index in range(3 + number % 3, len(each)):
                each[index] += round(5 * wave)
        ago_s = 5 * (719 - number)
        pending = round(300 * wave**2)
        samples.append(
            Sample(now_s - ago_s, now_ms - ago_s * 1000, pending, 4 + 9 * wave, tuple(counts), *map(tuple, buckets))
        )
    history._kept["orders"] = samples
    client = make_client(make_app(served.sidecar, Guard(), history=history))
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{client.url}/console/groups/orders?range=1h")
    assert 6 == page.locator("figure svg[role=img]").count()
    assert "Pending here, latest: pending " in page.locator("#chart-pending svg[role=img]").get_attribute("aria-label")
    page.locator("#chart-asked summary").click()
    assert 40 < page.locator("#chart-asked tbody tr").count() <= 60
    page.locator("#chart-asked summary").click()
    picture(page, f"charts-{scheme}")
    found = page.evaluate(MEASURE)
    context.close()
    assert (True, 0) == (found.pop("wider") <= 0, found.pop("scrolled"))
    assert found == WELL
