"""Draws the figures of speed: `python docs/site/speed.py BENCH.json RIVALS.json…`, or without files once more.

The files are those of `make bench JSON=` and `make bench-rivals JSON=`, one run each. What is shown of them is kept in
`docs/pictures/speed.json`, and becomes `speed.svg` beside it and the table in `docs/performance.md`, between its two
marks. Figures of different runs never share a scale: each run has lines of its own in the table, and panels of its own
in the picture. A file replaces all runs that were kept, so name every file that is to be shown.

An SVG has both colour schemes, and the reader's system, or the page around it, chooses.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, NamedTuple

DOCS: Final = Path(__file__).parents[1]
KEPT: Final = DOCS / "pictures" / "speed.json"
PICTURE: Final = DOCS / "pictures" / "speed.svg"
PAGE: Final = DOCS / "performance.md"
MARKED: Final = re.compile(r"(?<=<!-- figures: docs/site/speed.py -->\n).*?(?=<!-- end -->\n)", re.DOTALL)
SHOWN: Final = ("min", "median", "max", "own_cpu_us", "broker_cpu_us", "latency_p50_ms", "latency_p99_ms")

TXCORE: Final = "txcore, Kafka"
ROCKETMQ: Final = "RocketMQ ?.?.?"
POLL: Final = "outbox by hand, 50 ms poll"
NOTIFY: Final = "outbox by hand, NOTIFY"
FASTSTREAM: Final = "faststream-outbox, default"
TUNED: Final = "faststream-outbox, tuned"
DATABASE: Final = "transactional, 16 threads, psycopg"
TASKS: Final = "transactional, 16 tasks, SQLAlchemy"
BUSINESS: Final = f"{TXCORE}: business only, 16 threads, psycopg"
MANY: Final = (f"{TXCORE}: transactional, pipelined, send_many", "kafka/send_many/batch/*/300")
RAW: Final = "raw Kafka"
PIPELINED_RAW: Final = (f"{RAW}: messages, pipelined", "kafka/raw/batch/1000/300")

Run = Mapping[str, Any]


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        cells: For each column of `COLUMNS`, the patterns of the rows whose figures it shows.
        figures: The figures of a row, separated by a stroke.
    """

    measure: str
    load: str
    cells: Mapping[str, Sequence[str]]
    figures: Sequence[str] = ("median",)


class Panel(NamedTuple):
    """A part of the picture with a scale of its own: its bars by their labels, each the first row that there is."""

    title: str
    bars: Sequence[tuple[str, Sequence[str]]]
    is_time: bool = False
    figure: str = "median"


COLUMNS: Final = ("txcore", "raw", "RocketMQ", "outbox by hand: poll / NOTIFY", "faststream-outbox: default / tuned")


def _threads(count: str) -> dict[str, Sequence[str]]:
    raw = (f"{RAW}: messages, {count} threads", f"kafka/raw/threads/{count}/300")
    if count == "1":
        raw = (f"{RAW}: two messages in a row, 1 thread", "kafka/raw, 2 in a row/threads/1/300")
    load = f"transactional, {count} thread{'' if count == '1' else 's'}"
    return {
        "txcore": (f"{TXCORE}: {load}", f"kafka/listener/threads/{count}/300"),
        "raw": raw,
        "RocketMQ": (f"{ROCKETMQ}: {load}",),
    }


def _each(measure: str, *, load: str = "", few: str = "", other: str = "", tasks: str = "") -> dict[str, Sequence[str]]:
    """Return a measure's rows of each system; *few*, *other* and *tasks* replace the load of some."""
    return {
        "txcore": (f"{TXCORE}: {measure}, {load}",),
        "raw": (f"{RAW}: {measure}, {load}",),
        "RocketMQ": (f"{ROCKETMQ}: {measure}, {other or load}",),
        COLUMNS[3]: (f"{POLL}: {measure}, {other or load}", f"{NOTIFY}: {measure}, {other or load}"),
        COLUMNS[4]: (
            f"{FASTSTREAM}: {measure}, {few or tasks or load}",
            f"{TUNED}: {measure}, {few or tasks or load}",
        ),
    }


_CPU: Final = ("own_cpu_us", "broker_cpu_us")
_MANY: Final = {"txcore": MANY, "raw": PIPELINED_RAW}
_TASKS: Final = {"txcore": (f"{TXCORE}: transactional, 1,000 asyncio tasks", "kafka/listener/tasks/1000/300")}
_DATABASE: Final = {
    "txcore": (f"{TXCORE}: {DATABASE}", "kafka/database, psycopg/threads/16/300"),
    "raw": (BUSINESS,),
    COLUMNS[3]: (f"{POLL}: {DATABASE}", f"{NOTIFY}: {DATABASE}"),
    COLUMNS[4]: (f"{FASTSTREAM}: {TASKS}", f"{TUNED}: {TASKS}"),
}
TABLE: Final = (
    Line("transactions/s", "pipelined (`send_many`)", _MANY),
    Line("CPU us, client / broker", "the same", _MANY, _CPU),
    Line("transactions/s", "1,000 asyncio tasks", _TASKS),
    Line("CPU us, client / broker", "the same", _TASKS, _CPU),
    Line("transactions/s", "256 threads", _threads("256")),
    Line("transactions/s", "64 threads", _threads("64")),
    Line("transactions/s", "16 threads", _threads("16")),
    Line("transactions/s", "1 thread (raw: two messages)", _threads("1")),
    Line("transactions/s, with PostgreSQL", "16 callers", _DATABASE),
    Line(
        "transactions/s, with PostgreSQL",
        "16 callers, mode `table`",
        {"txcore": (f"{TXCORE}: {DATABASE}, mode table",)},
    ),
    Line("commit to visible p50, ms", "idle, 10/s", _each("commit to visible p50", load="idle, 10/s")),
    Line(
        "commit to visible p50, ms",
        "idle, 10/s, mode `table`",
        {"txcore": (f"{TXCORE}: commit to visible p50, idle, 10/s, mode table",)},
    ),
    Line("commit to visible p99, ms", "idle, 10/s", _each("commit to visible p99", load="idle, 10/s")),
    Line("relay drain, messages/s", "10,000 waiting", _each("relay drain", load="10,000 waiting", few="2,000 waiting")),
    Line("recovery, s", "10,000 (faststream: 2,000)", _each("recovery", load="of 10,000", few="of 2,000")),
    Line("messages that it repeats", "the same", _each("recovery: duplicates", load="of 10,000", few="of 2,000")),
    Line(
        "missing 60 s after overload",
        "64 callers (txcore: 4 pipelines)",
        _each("overload: missing after 60 s", load="4 pipelines", other="64 threads", tasks="64 tasks"),
    ),
)
PANELS: Final = (
    Panel(
        "Transactions/s; raw: Kafka messages/s",
        (
            ("raw, pipelined", PIPELINED_RAW),
            ("raw, 16 threads", _threads("16")["raw"]),
            ("txcore, send_many", MANY),
            ("txcore, 1,000 tasks", _TASKS["txcore"]),
            ("txcore, 16 threads", _threads("16")["txcore"]),
        ),
    ),
    Panel(
        "Transactions/s without a database",
        (
            ("txcore, send_many", MANY[:1]),
            ("txcore, 1,000 tasks", _TASKS["txcore"][:1]),
            ("txcore, 64 threads", _threads("64")["txcore"]),
            ("RocketMQ, 256 threads", _threads("256")["RocketMQ"]),
            ("RocketMQ, 64 threads", _threads("64")["RocketMQ"]),
            ("txcore, 16 threads", _threads("16")["txcore"][:1]),
            ("RocketMQ, 16 threads", _threads("16")["RocketMQ"]),
            ("txcore, 1 thread", _threads("1")["txcore"][:1]),
            ("RocketMQ, 1 thread", _threads("1")["RocketMQ"]),
        ),
    ),
    Panel(
        "Transactions/s with PostgreSQL, 16 callers",
        (
            ("no message at all", (BUSINESS,)),
            ("txcore, mode table", (f"{TXCORE}: {DATABASE}, mode table",)),
            ("txcore, mode half", (f"{TXCORE}: {DATABASE}",)),
            ("outbox by hand, poll", (f"{POLL}: {DATABASE}",)),
            ("outbox by hand, NOTIFY", (f"{NOTIFY}: {DATABASE}",)),
            ("faststream-outbox", (f"{FASTSTREAM}: {TASKS}",)),
            ("faststream-outbox, tuned", (f"{TUNED}: {TASKS}",)),
        ),
    ),
    Panel(
        "Commit to visible p50, idle, ms",
        tuple(
            (label, (f"{system}: commit to visible p50, idle, 10/s{suffix}",))
            for label, system, suffix in (
                ("raw, from its hand-over", RAW, ""),
                ("txcore", TXCORE, ""),
                ("txcore, mode table", TXCORE, ", mode table"),
                ("RocketMQ", ROCKETMQ, ""),
                ("outbox by hand, NOTIFY", NOTIFY, ""),
                ("outbox by hand, poll", POLL, ""),
                ("faststream-outbox", FASTSTREAM, ""),
                ("faststream-outbox, tuned", TUNED, ""),
            )
        ),
        is_time=True,
    ),
    Panel(
        "Commit to visible p50, 50/s, ms",
        (
            ("raw", ("kafka/raw visible, idle/threads/1/300",)),
            ("txcore", ("kafka/visible, idle/threads/1/300",)),
        ),
        is_time=True,
        figure="latency_p50_ms",
    ),
)


def kept_of(report: Mapping[str, Any]) -> Run:
    """Return what is shown of a report of `benchmarks` or of `benchmarks.rivals`."""
    facts, rows, before = report["machine"], report["rows"], report["load_average_before"][0]
    is_rivals = any("system" in row for row in rows)
    count = report["round_count"]
    arguments = " ".join(_without_file(report["arguments"]))
    return {
        "date": report["date"],
        "command": f"python -m benchmarks{'.rivals' if is_rivals else ''} {arguments}".strip(),
        "conditions": [
            f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, {facts['os']}, {facts['python']}.",
            f"Medians of {count} round{'' if count == 1 else 's'}. Load average {before:g} before the run.",
        ],
        "rows": {
            _key(row): _figures(row) for row in rows if any(fnmatchcase(_key(row), pattern) for pattern in patterns())
        },
    }


def patterns() -> Iterator[str]:
    """Return the patterns of the rows that table and picture show."""
    for line in TABLE:
        for each in line.cells.values():
            yield from each
    for panel in PANELS:
        for _, each in panel.bars:
            yield from each


def _key(row: Mapping[str, Any]) -> str:
    if "system" in row:
        return f"{row['system']}: {row['measure']}, {row['load']}"
    return str(row["key"])


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    found = row | row.get("transactions_per_s", {})
    return {name: float(f"{found[name]:.4g}") for name in SHOWN if name in found}


def _without_file(arguments: Sequence[str]) -> Iterator[str]:
    """Leave out where the report was stored, which is a path of one machine."""
    is_path = False
    for each in arguments:
        if not is_path and each != "--json":
            yield each
        is_path = each == "--json"


def _rows(run: Run, patterns: Sequence[str]) -> list[Mapping[str, float]]:
    """Return the rows that the patterns name, in the patterns' order, one for each at most."""
    return [
        found[-1]
        for pattern in patterns
        if (found := [row for key, row in run["rows"].items() if fnmatchcase(key, pattern)])
    ]


def letters(runs: Sequence[Run]) -> str:
    """Return the names of the runs."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(runs)]


def table(runs: Sequence[Run]) -> str:
    """Return the table and the list of its runs."""
    made = [f"| | | run | {' | '.join(COLUMNS)} |", f"|---|---|---|{'---:|' * len(COLUMNS)}"]
    before = ""
    for line in TABLE:
        for letter, run in zip(letters(runs), runs, strict=True):
            cells = [_cell(_rows(run, line.cells.get(column, ())), line.figures) for column in COLUMNS]
            if any(cells):
                measure = "" if line.measure == before else line.measure
                made.append(f"| {measure} | {line.load} | {letter} | {' | '.join(cells)} |")
                before = line.measure
    made.append("")
    for letter, run in zip(letters(runs), runs, strict=True):
        made.append(f"* **Run {letter}**, recorded on {run['date']}: `{run['command']}`.")
        made += wrap(" ".join(run["conditions"]), 120, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(made) + "\n"


def _cell(rows: Sequence[Mapping[str, float]], figures: Sequence[str]) -> str:
    return " / ".join(number(row[name]) for row in rows for name in figures if name in row)


def number(value: float) -> str:
    """Return a figure as the table and the picture show it."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


WIDTH: Final = 430
LABEL: Final = 16
LEFT: Final = 192
BAR: Final = 160
HIGH: Final = 15
STEP: Final = 22
STYLE: Final = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1c2b33 }
.page { fill: #ffffff; stroke: #d5dde1 } .title { font-weight: 600; font-size: 14px }
.note { font-size: 12px; fill: #55656e } .own { fill: #0b7a8f } .other { fill: #b3c0c7 } .range { stroke: #1c2b33 }
@media (prefers-color-scheme: dark) {
text { fill: #e3eaed } .page { fill: #131719; stroke: #36434a } .note { fill: #a3b1b8 }
.own { fill: #35a6ba } .other { fill: #53626a } .range { stroke: #e3eaed }
}
"""
TITLE: Final = "Speed of txcore beside raw Kafka, RocketMQ, outboxes by hand and faststream-outbox"


def drawn(runs: Sequence[Run]) -> str:
    """Return the picture: for each run the panels of which it has txcore's row and another one."""
    made: list[str] = []
    y = 16
    for panel in PANELS:
        for letter, run in zip(letters(runs), runs, strict=True):
            bars = [(label, rows[0]) for label, patterns in panel.bars if (rows := _rows(run, patterns))]
            bars = [(label, row) for label, row in bars if panel.figure in row]
            if len({label.startswith("txcore") for label, _ in bars}) == 2:
                note = f"run {letter}, {run['date']}; {'shorter' if panel.is_time else 'longer'} is faster"
                made += [_text(panel.title, LABEL, y + 16, "title"), _text(note, LABEL, y + 33, "note")]
                made += _bars(bars, panel.figure, y + 42)
                y += 42 + STEP * len(bars) + 16
    size = f'viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(TITLE)}">',
            f"<title>{escape(TITLE)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{y - 1}" rx="8"/>',
            *made,
            "</svg>\n",
        ]
    )


def _bars(bars: Sequence[tuple[str, Mapping[str, float]]], figure: str, y: int) -> Iterator[str]:
    """Draw one bar below the other, each with its figure, and a line from the minimum to the maximum."""
    is_rate = figure == "median"
    scale = BAR / max(max(row[figure], row.get("max", 0.0) if is_rate else 0.0) for _, row in bars)
    for count, (label, row) in enumerate(bars):
        top, long = y + STEP * count, max(1.0, row[figure] * scale)
        kind, end = "own" if label.startswith("txcore") else "other", LEFT + long
        yield _text(label, LABEL, top + 12)
        yield f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{long:.1f}" height="{HIGH}" rx="2"/>'
        if is_rate and "max" in row:
            start, end = LEFT + row.get("min", row[figure]) * scale, LEFT + row["max"] * scale
            middle = top + HIGH / 2
            yield f'<path class="range" d="M{start:.1f} {middle}H{end:.1f}m0 -3v6"/>'
            end = max(end, LEFT + long)
        yield _text(number(row[figure]), round(end) + 6, top + 12)


def _text(text: str, x: int, y: int, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y}">{escape(text, quote=False)}</text>'


def page(text: str, runs: Sequence[Run]) -> str:
    """Return the page with the table of these runs."""
    return MARKED.sub(lambda _: f"{table(runs)}", text, count=1)


def kept() -> list[Run]:
    """Return the runs that are kept."""
    runs: list[Run] = json.loads(KEPT.read_text(encoding="utf-8"))["runs"]
    return runs


def main(files: Sequence[str]) -> None:
    """Keep what is shown of the files, if any are given, and draw what is kept."""
    if files:
        runs = [kept_of(json.loads(Path(each).read_text(encoding="utf-8"))) for each in files]
        KEPT.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
    PICTURE.write_text(drawn(kept()), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
