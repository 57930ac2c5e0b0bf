"""The command: measures every row in interleaved rounds, prints the table, stores the figures.

Each row runs once per round, in a fresh place. The order is rotated from round to round, so that a slow minute of the
machine does not affect the same rows each time. A broker's server is started once, and only one in a run, because an
idle server uses the machine too.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks import databases, machine
from benchmarks.brokers import NAMES, SERVERS, start_server
from benchmarks.drive import Drive, Sample
from benchmarks.place import Stage
from benchmarks.report import figures, print_profiles, print_table
from benchmarks.rows import BATCH, QUICK, Row, Sizes, make_rows
from benchmarks.sampling import Profile

LIMIT_S: Final = 600.0
QUICK_LIMIT_S: Final = 90.0
ROW_S: Final = 0.8
QUICK_ROW_S: Final = 0.3
WARM_UP_S: Final = 5.0
"""Warm-up, in seconds, of each of a server's fastest rows; one on Java compiles itself in ten seconds of load."""


def measure(
    rows: Sequence[Row],
    round_count: int,
    row_s: float,
    limit_s: float,
    stage: Stage | None = None,
    profiles: dict[str, Profile] | None = None,
) -> dict[str, list[Sample]]:
    """Run the rows *round_count* times; past *limit_s* no further round's row is begun, except in the first round."""
    samples: dict[str, list[Sample]] = {row.key: [] for row in rows}
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="txcore-bench-") as folder:
        for number in range(round_count):
            shift = number * len(rows) // round_count
            for row in [*rows[shift:], *rows[:shift]]:
                if number and time.perf_counter() - begin_s > limit_s:
                    return samples
                gc.collect()
                profile = None if profiles is None else profiles.setdefault(row.key, Profile())
                samples[row.key].append(row.run(Path(folder), row_s, stage, profile))
    return samples


def warm_up(rows: Sequence[Row], stage: Stage, row_s: float) -> None:
    """Load a server as its fastest rows do, and discard the results."""
    with tempfile.TemporaryDirectory(prefix="txcore-bench-") as folder:
        for row in rows:
            if row.broker in stage.servers and row.driver == BATCH:
                row.run(Path(folder), row_s, stage)


def head(report: dict[str, Any]) -> str:
    """Return the lines above the table."""
    facts, before, after = report["machine"], report["load_average_before"], report["load_average_after"]
    servers = "".join(f", {name} {version}" for name, version in report["servers"].items())
    lines = [
        (
            f"txcore {facts['txcore']}{servers}, {report['round_count']} rounds of {report['row_s']:g} s per row, "
            f"{report['elapsed_s']:.0f} s in total"
        ),
        f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, {facts['os']}",
        f"{facts['python']}, SQLite {facts['sqlite']} on {facts['file_system']}, {facts['drivers']}",
        f"business database: {report['database']}",
        *([f"this process {machine.AS_ADVISED}"] if report["as_advised"] else []),
        f"load average (1, 5, 15 min) before {before}, after {after}",
        *([warning] if (warning := machine.load_warning(before, facts["cores"])) else []),
        "load: blocking threads, asyncio tasks, or transactions per batch; p50, p99: one call or whole batch",
        "CPU: processor time per transaction of this process, of the driver's threads in it, of broker and database",
        "ratio: transactions/s, and p50, divided by those of the yardstick, median over rounds",
    ]
    if report["cut_short"]:
        lines.append(f"time was up: some rows have fewer than {report['round_count']} rounds")
    return "\n".join([*lines, ""])


def chosen(rows: Sequence[Row], styles: Sequence[str]) -> list[Row]:
    """Return the rows whose style begins with one of *styles*, and their yardsticks; all rows without *styles*."""
    wanted = {row.key for row in rows if not styles or row.style.startswith(tuple(styles))}
    yardsticks = {row.against for row in rows if row.key in wanted}
    return [row for row in rows if row.key in wanted | yardsticks]


def run(
    broker: Annotated[str, typer.Option(help="Brokers to measure, separated by commas.")] = "memory,sqlite",
    json_file: Annotated[Path | None, typer.Option("--json", help="Store all figures in this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and shorter runs: about a minute.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; each measures every row once.")] = 3,
    row_s: Annotated[float | None, typer.Option("--seconds", min=0.001, help="Seconds per row and round.")] = None,
    style: Annotated[list[str] | None, typer.Option(help="Only styles with this prefix. Repeatable.")] = None,
    database: Annotated[str, typer.Option(help="sqlite or postgresql; empty: as suits the brokers.")] = "",
    profile: Annotated[bool, typer.Option("--profile", help="Print the processor time by code.")] = False,  # noqa: FBT002
    as_advised: Annotated[bool, typer.Option("--as-advised", help="Run as advised for busy processes.")] = False,  # noqa: FBT002
) -> None:
    """Measure the producer's styles against raw yardsticks of the same run."""
    brokers = [name.strip() for name in broker.split(",") if name.strip()]
    unknown = [name for name in brokers if name not in NAMES]
    if unknown or not brokers:
        raise typer.BadParameter(f"knows {', '.join(NAMES)}, not {', '.join(unknown) or 'nothing'}")
    served = [name for name in brokers if name in SERVERS]
    if len(served) > 1:
        raise typer.BadParameter(f"one broker with a server in a run, not {' and '.join(served)}")
    database = database or ("postgresql" if served else "sqlite")
    if database not in databases.NAMES:
        raise typer.BadParameter(f"knows {', '.join(databases.NAMES)}, not {database}")
    row_s = row_s or (QUICK_ROW_S if quick else ROW_S)
    Drive.is_as_advised = as_advised
    before, begin_s = machine.load_average(), time.perf_counter()
    stage = Stage(databases.start_database(database), {})
    profiles: dict[str, Profile] | None = {} if profile else None
    try:
        for name in served:
            stage.servers[name] = start_server(name)
        all_rows = make_rows(brokers, QUICK if quick else Sizes(), has_plain_driver=stage.database.has_plain_driver)
        rows = chosen(all_rows, style or ())
        warm_up(rows, stage, min(WARM_UP_S, 5 * row_s))
        samples = measure(rows, rounds, row_s, QUICK_LIMIT_S if quick else LIMIT_S, stage, profiles)
        versions = {name: server.version for name, server in stage.servers.items()}
    finally:
        stage.close()
    report: dict[str, Any] = {
        **machine.occasion(),
        "machine": machine.facts(Path(tempfile.gettempdir())),
        "servers": versions,
        "database": stage.database.description,
        "load_average_before": before,
        "load_average_after": machine.load_average(),
        "round_count": rounds,
        "row_s": row_s,
        "as_advised": as_advised,
        "elapsed_s": time.perf_counter() - begin_s,
        "cut_short": any(len(own) < rounds for own in samples.values()),
        "rows": figures(rows, samples),
        "profiles": {key: each.figures() for key, each in (profiles or {}).items()},
    }
    print_table(report["rows"], head(report))
    print_profiles(report["profiles"])
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the exit ends the servers
    typer.run(run)
