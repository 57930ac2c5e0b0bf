"""Pictures and `llms.txt` are those that the scripts make now, and the recorded demo shows what the demo prints."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from xml.etree import ElementTree as ET

import pytest
from blocks import ROOT

from benchmarks.drive import Sample
from benchmarks.report import figures
from benchmarks.rivals.report import records_of
from benchmarks.rivals.system import TRANSACTIONAL, Row
from benchmarks.rows import Sizes, make_rows

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


def test_the_figures_of_speed_are_drawn_from_those_that_are_kept():
    """`docs/site/speed.py` draws picture and table again; the picture is valid, has a title and fetches nothing."""
    speed = script("speed")
    text = speed.PICTURE.read_text(encoding="utf-8")
    assert speed.drawn(speed.kept()) == text
    assert speed.PAGE.read_text(encoding="utf-8") == speed.page(speed.PAGE.read_text(encoding="utf-8"), speed.kept())
    assert speed.table(speed.kept()) in speed.PAGE.read_text(encoding="utf-8")
    assert ET.fromstring(text).find("{http://www.w3.org/2000/svg}title").text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)


def test_every_kept_figure_of_speed_is_shown():
    """A row that neither table nor picture names would be kept for nothing, or have a misspelt name."""
    speed = script("speed")
    patterns = list(speed.patterns())
    keys = [key for run in speed.kept() for key in run["rows"]]
    assert [] == [key for key in keys if not any(fnmatchcase(key, each) for each in patterns)]


def comparison(*loads):
    """Return a report of the comparison, as the command writes it."""
    rounds = {
        "txcore, Kafka": [
            {Row(TRANSACTIONAL, load, "/s"): rate for load in loads} for rate in (900.0, 1_000.0, 1_200.0)
        ],
        "RocketMQ 5.5.0": [{Row(TRANSACTIONAL, load, "/s"): 2_000.0 for load in loads}],
    }
    facts = {"cores": 2, "cpu": "c", "memory_gib": 4, "os": "o", "python": "p"}
    report = {"date": "2026-01-02", "arguments": ["--rounds", "3", "--json", "/some/where.json"], "machine": facts}
    return report | {"round_count": 3, "load_average_before": [0.1], "rows": records_of(rounds)}


def test_a_report_is_kept_with_what_is_shown_of_it():
    """The command, the machine and the figures are kept, and not where the report was stored."""
    run = script("speed").kept_of(comparison("64 threads", "3 threads"))
    assert "python -m benchmarks.rivals --rounds 3" == run["command"]
    assert {"min": 900.0, "median": 1000.0, "max": 1200.0} == run["rows"]["txcore, Kafka: transactional, 64 threads"]
    assert ["txcore, Kafka", "RocketMQ 5.5.0"] == [key.partition(":")[0] for key in run["rows"]]
    assert "where.json" not in json.dumps(run)
    assert "Medians of 3 rounds. Load average 0.1 before the run." == run["conditions"][1]


def test_the_files_that_are_named_replace_what_was_kept(tmp_path, monkeypatch):
    """The script keeps the runs of its files, and draws picture and table from them; what is around the table stays."""
    speed = script("speed")
    for name, file in (("KEPT", "speed.json"), ("PICTURE", "speed.svg"), ("PAGE", "page.md")):
        monkeypatch.setattr(speed, name, tmp_path / file)
    speed.PAGE.write_text("above\n<!-- figures: docs/site/speed.py -->\nold\n<!-- end -->\nbelow\n", encoding="utf-8")
    (tmp_path / "rivals.json").write_text(json.dumps(comparison("64 threads")), encoding="utf-8")
    speed.main([str(tmp_path / "rivals.json")])
    page = speed.PAGE.read_text(encoding="utf-8")
    assert ("above", "below", False) == (page.splitlines()[0], page.splitlines()[-1], "old" in page)
    assert "|  | 64 threads | A | 1,000 |  | 2,000 |  |  |" in page.replace("| transactions/s |", "|  |")
    assert "RocketMQ, 64 threads" in speed.PICTURE.read_text(encoding="utf-8")
    before = speed.KEPT.read_text(encoding="utf-8")
    speed.main([])
    assert (before, page) == (speed.KEPT.read_text(encoding="utf-8"), speed.PAGE.read_text(encoding="utf-8"))


def test_a_benchmark_is_kept_with_its_processor_time():
    """The rows of `make bench` are shown with CPU of client and broker, of the largest batch."""
    rows = [
        row
        for row in make_rows(["kafka"], Sizes())
        if (row.style, row.driver) in {("raw", "batch"), ("send_many", "batch")}
    ]
    samples = {row.key: [Sample([0.01] * 10, row.size, 1.0, own_cpu_s=0.5, broker_cpu_s=0.25)] for row in rows}
    speed = script("speed")
    run = speed.kept_of(comparison() | {"rows": figures(rows, samples)})
    (line,) = [each for each in speed.table([run]).splitlines() if each.startswith("| CPU us, client / broker")]
    assert "| CPU us, client / broker | the same | A | 5 / 2.5 | 50 / 25 |" in line


def test_runs_share_no_scale():
    """Each run has panels and lines of its own, and a panel needs txcore and another system."""
    speed = script("speed")
    runs = [speed.kept_of(comparison("64 threads")), speed.kept_of(comparison("64 threads", "16 threads"))]
    assert ["run A, 2026-01-02; longer is faster", "run B, 2026-01-02; longer is faster"] == re.findall(
        r"run ., [^<]+", speed.drawn(runs)
    )
    lone = speed.kept_of(comparison("1 thread"))
    lone["rows"].pop("RocketMQ 5.5.0: transactional, 1 thread")
    assert "run A" not in speed.drawn([lone])


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
