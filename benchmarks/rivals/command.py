"""The command: one system at a time, all of them in each round, the order turned from round to round."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks import machine
from benchmarks.drive import Drive
from benchmarks.rivals.dtm import Dtm
from benchmarks.rivals.fast_stream import FastStreamOutbox
from benchmarks.rivals.outbox import Outbox
from benchmarks.rivals.raw import RawKafka
from benchmarks.rivals.report import print_table, records_of
from benchmarks.rivals.rocketmq import RocketMQ
from benchmarks.rivals.system import Figures, MissingError, Plan, System
from benchmarks.rivals.txcore_kafka import TxcoreKafka

SYSTEMS: Final[dict[str, System]] = {
    "txcore": TxcoreKafka(),
    "raw": RawKafka(),
    "outbox-poll": Outbox("poll"),
    "outbox-notify": Outbox("notify"),
    "faststream": FastStreamOutbox("default"),
    "faststream-tuned": FastStreamOutbox("tuned"),
    "dtm": Dtm(),
    "rocketmq": RocketMQ(),
}


def prepared(names: Sequence[str]) -> tuple[list[System], list[str]]:
    """Return the systems that are available here, and a sentence for each other one."""
    found, missing = [], []
    for name in names:
        try:
            SYSTEMS[name].prepare()
        except MissingError as error:
            missing.append(str(error))
        else:
            found.append(SYSTEMS[name])
    return found, missing


def measure(
    systems: Sequence[System], plan: Plan, round_count: int, incident_rounds: int, limit_s: float, missing: list[str]
) -> dict[str, list[Figures]]:
    """Measure every system once in each round; a failure ends that system's turn, not the run.

    Past *limit_s* no further turn is begun, except in the first round.
    """
    run_begin_s = time.monotonic()
    rounds: dict[str, list[Figures]] = {system.name: [] for system in systems}
    for number in range(round_count):
        shift = number * len(systems) // round_count
        for system in (*systems[shift:], *systems[:shift]):
            begin_s = time.monotonic()
            if number and begin_s - run_begin_s > limit_s:
                missing.append(f"time was up: {system.name} has no round {number + 1}")
                continue
            turn = Plan(plan.seconds, plan.rate, plan.in_doubt, plan.overload_s, has_incidents=number < incident_rounds)
            try:
                rounds[system.name].append(system.measure(turn))
            except Exception as error:  # noqa: BLE001 - after any exception of one system the others are measured
                missing.append(f"{system.name} failed in round {number + 1}: {' '.join(str(error).split())[-300:]}")
            gc.collect()
            took_s = time.monotonic() - begin_s
            print(f"round {number + 1}: {system.name}, {took_s:.0f} s", file=sys.stderr, flush=True)
    return rounds


def head(report: dict[str, Any]) -> str:
    """Return the lines above the table."""
    facts, plan = report["machine"], report["plan"]
    lines = [
        (
            f"{report['round_count']} rounds, {plan['seconds']:g} s a row, {report['elapsed_s'] / 60:.0f} min; "
            f"recovery and overload ({plan['overload_s']:g} s) in {report['incident_rounds']} of them"
        ),
        f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, {facts['os']}, {facts['python']}",
        *([f"producers in Python: each {machine.AS_ADVISED}"] if report["as_advised"] else []),
        f"txcore {facts['txcore']}; 300 B a message; everything on loopback, PostgreSQL without fsync",
        f"load average (1, 5, 15 min) before {report['load_average_before']}, after {report['load_average_after']}",
        *([warning] if (warning := machine.load_warning(report["load_average_before"], facts["cores"])) else []),
        *report["missing"],
    ]
    return "\n".join([*lines, ""])


def run(
    only: Annotated[
        list[str] | None, typer.Option(help=f"System to measure: {', '.join(SYSTEMS)}. Repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; each measures every system once.")] = 3,
    incident_rounds: Annotated[
        int | None, typer.Option(min=0, help="Number of rounds with recovery and overload.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds per row and round.")] = 5.0,
    rate: Annotated[int, typer.Option(min=20, help="Transactions a second of the steady load.")] = 500,
    in_doubt: Annotated[int, typer.Option(min=100, help="Transactions left undecided.")] = 10_000,
    overload_s: Annotated[float, typer.Option(min=1, help="Seconds of the overload.")] = 60.0,
    minutes: Annotated[
        float, typer.Option(help="Minutes after which no turn begins, except in the first round.")
    ] = 120.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Store all figures in this file.")] = None,
    as_advised: Annotated[bool, typer.Option("--as-advised", help="Run producers as advised.")] = False,  # noqa: FBT002
) -> None:
    """Measure txcore and its alternatives."""
    unknown = [name for name in only or [] if name not in SYSTEMS]
    if unknown:
        raise typer.BadParameter(f"knows {', '.join(SYSTEMS)}, not {', '.join(unknown)}")
    plan = Plan(seconds, rate, in_doubt, overload_s)
    Drive.is_as_advised = as_advised
    incident_rounds = rounds if incident_rounds is None else min(incident_rounds, rounds)
    systems, missing = prepared(only or list(SYSTEMS))
    before, begin_s = machine.load_average(), time.monotonic()
    figures = measure(systems, plan, rounds, incident_rounds, minutes * 60, missing)
    report: dict[str, Any] = {
        **machine.occasion(),
        "machine": machine.facts(Path(tempfile.gettempdir())),
        "plan": {"seconds": seconds, "rate": rate, "in_doubt": in_doubt, "overload_s": overload_s},
        "round_count": rounds,
        "incident_rounds": incident_rounds,
        "as_advised": as_advised,
        "load_average_before": before,
        "load_average_after": machine.load_average(),
        "elapsed_s": time.monotonic() - begin_s,
        "missing": missing,
        "rows": records_of(figures),
    }
    print_table(report["rows"], head(report))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    typer.run(run)
