"""The command: measures every row in interleaved rounds, prints the table, keeps the figures.

Each row runs once per round, in a fresh place; the order is rotated from round to round, so that a slow minute of the
machine does not fall on the same rows each time.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks import machine
from benchmarks.drive import Sample
from benchmarks.place import BROKERS
from benchmarks.report import figures, print_table
from benchmarks.rows import QUICK, Row, Sizes, make_rows

LIMIT_S: Final = 225.0
QUICK_LIMIT_S: Final = 35.0
ROW_S: Final = 0.8
QUICK_ROW_S: Final = 0.1


def measure(rows: list[Row], round_count: int, row_s: float, limit_s: float) -> dict[str, list[Sample]]:
    """Run the rows *round_count* times; past *limit_s* no further round's row is begun, except in the first round."""
    samples: dict[str, list[Sample]] = {row.key: [] for row in rows}
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="txcore-bench-") as folder:
        for number in range(round_count):
            shift = number * len(rows) // round_count
            for row in rows[shift:] + rows[:shift]:
                if number and time.perf_counter() - begin_s > limit_s:
                    return samples
                gc.collect()
                samples[row.key].append(row.run(Path(folder), row_s))
    return samples


def head(report: dict[str, Any]) -> str:
    """Return the lines above the table."""
    facts, before, after = report["machine"], report["load_average_before"], report["load_average_after"]
    lines = [
        (
            f"txcore {facts['txcore']}, {report['round_count']} rounds of {report['row_s']:g} s per row, "
            f"{report['elapsed_s']:.0f} s in total"
        ),
        f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, {facts['os']}",
        (
            f"{facts['python']}, SQLite {facts['sqlite']} on {facts['file_system']}, "
            f"SQLAlchemy {facts['sqlalchemy']}, aiosqlite {facts['aiosqlite']}"
        ),
        f"load average (1, 5, 15 min) before {before}, after {after}",
        "load: blocking threads, asyncio tasks, or transactions per batch; p50, p99: one call or whole batch",
        "ratio: transactions/s divided by those of the yardstick, median over rounds",
    ]
    if report["cut_short"]:
        lines.append(f"time was up: some rows have fewer than {report['round_count']} rounds")
    return "\n".join([*lines, ""])


def run(
    broker: Annotated[str, typer.Option(help="Brokers to measure, with commas.")] = "memory,sqlite",
    json_file: Annotated[Path | None, typer.Option("--json", help="Keep all figures in this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and shorter runs: below 40 s.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=1, help="How often each row is measured.")] = 3,
    row_s: Annotated[float | None, typer.Option(min=0.001, help="Seconds per row and round.")] = None,
) -> None:
    """Measure the producer's styles against raw yardsticks; below 4 minutes."""
    brokers = [name.strip() for name in broker.split(",") if name.strip()]
    unknown = [name for name in brokers if name not in BROKERS]
    if unknown or not brokers:
        raise typer.BadParameter(f"knows {', '.join(BROKERS)}, not {', '.join(unknown) or 'nothing'}")
    row_s = row_s or (QUICK_ROW_S if quick else ROW_S)
    rows = make_rows(brokers, QUICK if quick else Sizes())
    before, begin_s = machine.load_average(), time.perf_counter()
    samples = measure(rows, rounds, row_s, QUICK_LIMIT_S if quick else LIMIT_S)
    report: dict[str, Any] = {
        "machine": machine.facts(Path(tempfile.gettempdir())),
        "load_average_before": before,
        "load_average_after": machine.load_average(),
        "round_count": rounds,
        "row_s": row_s,
        "elapsed_s": time.perf_counter() - begin_s,
        "cut_short": any(len(own) < rounds for own in samples.values()),
        "rows": figures(rows, samples),
    }
    print_table(report["rows"], head(report))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    typer.run(run)
