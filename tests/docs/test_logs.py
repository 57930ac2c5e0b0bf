"""The page on logs shows what the service of its own example logs, and has every warning."""

from __future__ import annotations

import io
import logging
import re

import scenes
from blocks import ROOT, blocks_of

from txcore.runtime.instrumentation import ALERTS

PAGE = "docs/logs.md"


def masked(text):
    """Return a log without its times and ids."""
    text = re.sub(r"^[\d-]+ [\d:,]+", "TIME", text, flags=re.MULTILINE)
    return re.sub(r"(transaction_id|took_s)=\S+", r"\1=", text)


def test_the_page_shows_what_its_program_logs(tmp_path, monkeypatch):
    """The page's two programs log the lines that the page shows."""
    monkeypatch.chdir(tmp_path)
    log = io.StringIO()
    own = logging.getLogger("txcore")
    before = list(own.handlers)
    blocks = blocks_of(PAGE)
    (shown,) = [block.text for block in blocks if block.language == "text"]
    try:
        with scenes.scene(PAGE) as namespace:
            monkeypatch.setattr("sys.stderr", log)
            for block in blocks:
                if block.language == "python":
                    exec(compile(block.text, PAGE, "exec", dont_inherit=True), namespace)
    finally:
        own.handlers[:] = before
        own.setLevel(logging.NOTSET)
    assert masked(shown) == masked(log.getvalue())


def test_every_warning_is_on_the_page():
    """The page's table has the name of each event that a person should hear of."""
    page = (ROOT / PAGE).read_text(encoding="utf-8").partition("## The warnings")[2]
    assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", page)) == ALERTS
