"""Pictures and `llms.txt` are those that the scripts make now, and the recorded demo shows what the demo prints."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from blocks import ROOT

SITE = ROOT / "docs" / "site"
PICTURES = ROOT / "docs" / "pictures"


def script(name):
    """Return a script of the site as a module."""
    found = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_picture_is_drawn_from_its_source(source):
    """`make pictures` draws it; it is valid, has a title for screen readers, and fetches nothing."""
    text = source.with_suffix(".svg").read_text(encoding="utf-8")
    assert script("pictures").drawn(source) == text
    root = ET.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title").text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)


def test_a_line_that_is_no_step_is_an_error(tmp_path):
    """A misspelt step of a source is named."""
    (tmp_path / "a.txt").write_text("lane a A\na => a: no arrow\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a => a: no arrow"):
        script("pictures").drawn(tmp_path / "a.txt")


def test_llms_txt_lists_the_pages():
    """`make pictures` writes it; each page that it names is there."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert script("llms").text() == text
    named = re.findall(r"^- \[.+?\]\((.+?)\): ", text, re.MULTILINE)
    assert [] == [name for name in named if not (ROOT / name).is_file()]
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(named)


def words(text):
    """Return the words of an output, without its figures."""
    return re.findall(r"[A-Za-z]{2,}", text)


def test_the_recorded_demo_shows_what_the_demo_prints(tmp_path):
    """The last screen of the picture has the demo's words of today, and proves the promise."""
    root = ET.fromstring((PICTURES / "demo.svg").read_text(encoding="utf-8"))
    lasting = [
        "".join(each.itertext())
        for each in root.iter("{http://www.w3.org/2000/svg}text")
        if each.get("class") in {"f", None}
    ]
    command = [sys.executable, "-m", "txcore.cli", "demo", "--orders", "60", "--kills", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if not re.match(r" *[\d.]+ s ", line)]
    assert words("\n".join(lasting)) == ["txcore", "demo", *words("\n".join(printed))]
    assert any(re.match(r"lost +0 ", line) for line in lasting)


def test_a_terminal_obeys_what_progress_bars_send():
    """A bar that is drawn again replaces the one before; colours and bold end where they are reset."""
    terminal = script("recording").Terminal()
    terminal.feed("\x1b[1mtitle\x1b[0m\r\nbar 1\r\n\x1b[1A\x1b[2K\x1b[32mbar 22\x1b[0m!\r\n")
    assert '<tspan class="b">title</tspan>' == terminal.spans(0)
    assert '<tspan class="c2">bar 22</tspan>!' == terminal.spans(1)
    assert "" == terminal.spans(2)
