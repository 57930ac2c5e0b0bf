"""The page on logs shows what the service of its own example logs, and has every warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import scenes
from blocks import ROOT, blocks_of

from txcore.runtime.instrumentation import ALERTS

PAGE = "docs/logs.md"
SOURCES = [path for path in sorted(ROOT.glob("plugins/*/txcore_*/*.py")) if "_log." in path.read_text(encoding="utf-8")]


def masked(text):
    """Return a log without its times and ids."""
    text = re.sub(r"^[\d-]+ [\d:,]+", "TIME", text, flags=re.MULTILINE)
    return re.sub(r"(transaction_id|took_s)=\S+", r"\1=", text)


def test_the_page_shows_what_its_program_logs(tmp_path):
    """The page's two programs log the lines that the page shows, in a process whose logging no other test has set."""
    (shown,) = [block.text for block in blocks_of(PAGE) if block.language == "text"]
    command = [sys.executable, str(Path(__file__))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert masked(shown) == masked(done.stderr)


def run_programs():
    """Run the page's programs, which log to standard error."""
    with scenes.scene(PAGE) as namespace:
        for block in blocks_of(PAGE):
            if block.language == "python":
                exec(compile(block.text, PAGE, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_plugins_event_has_its_facts_where_the_page_says(source):
    """They are in `record.txcore`; an ordinary event is DEBUG, and nothing is INFO."""
    text = source.read_text(encoding="utf-8")
    assert re.findall(r"extra=\{\s*(?!\"txcore\")\S+", text) == []
    assert re.findall(r"_log\.info|logging\.INFO", text) == []


def test_every_warning_is_on_the_page():
    """The page's table has the name of each event that a person should hear of."""
    page = (ROOT / PAGE).read_text(encoding="utf-8").partition("## The warnings")[2]
    assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", page)) == ALERTS


if __name__ == "__main__":
    run_programs()
