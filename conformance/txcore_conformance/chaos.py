"""The chaos run: a workload of real processes on a real broker, random faults, then the oracle.

    python -m txcore_conformance.chaos --broker kafka --seconds 300
    python -m txcore_conformance.chaos --broker nats --seed 4711 --json
    python -m txcore_conformance.chaos --broker kafka --release owner --order-keys 100 --heads 20

Producers in four styles and two checkers work through a proxy while producers, checkers and the broker are killed and
frozen and the network is cut, frozen, refused, or loses replies. Afterwards every half must be decided or parked within
60 s, nothing may be lost or leaked, and every duplicate needs a cause. The seed decides the kind, time and length of
each fault; the processes' steps at that time are not replayed. A failed run stores its seed, histories and broker logs
under `.artefacts`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from txcore.producer.arguments import ReleaseName
from txcore_conformance import chaos_heads, servers
from txcore_conformance.chaos_faults import Nemesis, Planned, shortfall
from txcore_conformance.harness import Harness
from txcore_conformance.live import Crew, Verdict
from txcore_conformance.live_actor import PRODUCERS

REST_TIME_MAX_S: Final = 60.0
READY_TIME_MAX_S: Final = 60.0
CHECKERS: Final = 2
RATE: Final = 12.0
HEADS_SPARE: Final = 2.5
"""Number of halves that stay UNKNOWN, as a multiple of those that must be parked and ended in a run."""
HEADS_TIME_MAX_S: Final = 60.0
"""Longest time, in seconds, until the last of these was parked and ended, beyond the time of all other halves."""
ACCEPTED_AFTER: Final = 20
STATUS_EVERY_S: Final = 10.0
ARTEFACTS: Final = Path(".artefacts")
PROBLEMS_SHOWN_MAX: Final = 20
WIDTH: Final = 80
LOG_BYTES_MAX: Final = 20_000_000


@dataclass(slots=True)
class Report:
    """Faults and findings of a run; `problems` is empty when the run passed."""

    broker: str
    version: str
    seed: str
    seconds: float
    faults: dict[str, int] = field(default_factory=dict)
    rest_s: float = 0.0
    heads: dict[str, int] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)
    artefacts: str = ""


def run(
    harness: Harness,
    seconds: float,
    seed: str,
    say: Callable[[str], None],
    *,
    folder: Path,
    database: str = "",
    plans: dict[str, list[Planned]] | None = None,
    producers: Sequence[str] = PRODUCERS,
    checkers: int = CHECKERS,
    release: ReleaseName = "producer",
    order_keys: int = 0,
    heads: int = 0,
    rate: float = RATE,
) -> Report:
    """Run the workload under faults on a started harness with a private broker, and judge it.

    Args:
        folder: Folder for the histories.
        database: SQLAlchemy URL of the service's database; a SQLite file in *folder* when empty.
        plans: Faults instead of those that *seed* gives; the run then requires no least number of faults.
        producers: The styles of the producers, one process each.
        checkers: Number of checkers.
        release: What publishes the halves.
        order_keys: Number of order keys of the messages, which an owner then publishes in order; 0 for none.
        heads: Least number of parked halves that hold order keys up until an operator ends them.
        rate: Transactions a second that each producer begins at most.
    """
    broker = getattr(harness, "broker", None)
    url = broker.proxied_url + harness.url_options if broker is not None else harness.url  # type: ignore[attr-defined]
    report = Report(getattr(broker, "name", type(harness).__name__), getattr(broker, "version", ""), seed, seconds)
    with Crew(harness, folder, seed=seed, url=url, database=database) as crew:
        crew.release, crew.order_keys = release, order_keys
        rates = dict.fromkeys(producers, rate) | ({chaos_heads.ROLE: HEADS_SPARE * heads / seconds} if heads else {})
        _start(crew, rates, checkers)
        operator = chaos_heads.Heads(crew, heads)
        nemesis = Nemesis(crew, broker, say, seed=seed, plans=plans)
        started_s = time.monotonic()
        status = _Status(crew, nemesis, say)

        def watch() -> None:
            operator.look()
            status.look()

        nemesis.run(seconds, watch)
        last_fault_s = time.monotonic()
        report.seconds = round(last_fault_s - started_s, 1)
        report.faults = dict(nemesis.counts)
        report.problems += nemesis.errors
        if plans is None:
            report.problems += shortfall(nemesis.counts, nemesis.lanes, seconds)
        report.problems += crew.unexpected_ends() + _stalled(crew)
        say(f"faults are over; {crew.accepted()} transactions were accepted; the checkers decide the rest")
        report.problems += crew.dismiss(crew.at_work(checkers=False))
        rest_time_max_s = REST_TIME_MAX_S + (HEADS_TIME_MAX_S if heads else 0.0)
        report.problems += _restless(crew, rest_time_max_s - (time.monotonic() - last_fault_s), watch)
        report.rest_s = time.monotonic() - last_fault_s
        report.problems += crew.dismiss(crew.at_work(checkers=True))
        report.verdict = crew.judge()
        report.problems += report.verdict.problems + operator.shortfall()
        report.heads = dict(operator.counts)
        if order_keys and not report.verdict.ordered:
            report.problems.append("no transaction with an order key was published")
        faults = [asdict(fault) for fault in crew.faults]
        (folder / "faults.json").write_text(json.dumps(faults, indent=1), encoding="utf-8")
    return report


def _start(crew: Crew, rates: Mapping[str, float], checkers: int) -> None:
    """Start a producer of each role with its rate, and checkers; return when all of them are at work."""
    for role, rate in rates.items():
        crew.start(role, rate=rate)
    for _ in range(checkers):
        crew.start("checker")
    crew.until(lambda: crew.count("ready") == len(crew.processes), "a start of every process", READY_TIME_MAX_S)
    crew.until(lambda: crew.accepted() > 0, "the first transaction", READY_TIME_MAX_S)


def _restless(crew: Crew, timeout_s: float, watch: Callable[[], None]) -> list[str]:
    """Wait for the decision of every half; returns the problem if some are still open."""
    try:
        crew.wait_for_rest(max(1.0, timeout_s), watch)
    except TimeoutError as error:
        for process in crew.at_work(checkers=True):
            process.send(signal.SIGUSR1)  # What it waits for is then in its log.
        return [f"L1: {error}"]
    return []


def _stalled(crew: Crew) -> list[str]:
    """Return the problem if the work does not continue by itself after the last fault."""
    before = crew.accepted()
    try:
        crew.until(lambda: crew.accepted() >= before + ACCEPTED_AFTER, "work after the last fault", REST_TIME_MAX_S / 2)
    except TimeoutError as error:
        return [str(error)]
    return []


class _Status:
    """Prints a line about the progress of the work from time to time."""

    def __init__(self, crew: Crew, nemesis: Nemesis, say: Callable[[str], None]) -> None:
        self._crew, self._nemesis, self._say = crew, nemesis, say
        self._started_s = self._last_s = time.monotonic()

    def look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= STATUS_EVERY_S:
            self._last_s = now_s
            total = self._nemesis.counts.total()
            self._say(f"{now_s - self._started_s:6.1f} s  {total} faults, {self._crew.accepted()} accepted")


def keep(report: Report, folder: Path, broker: Any) -> None:
    """Copy a failed run's histories and its broker's logs to `.artefacts`, and name the folder in *report*."""
    place = ARTEFACTS / f"chaos-{report.broker}-{report.seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    shutil.copytree(folder, place)
    if broker is not None:
        for path in Path(broker.folder).rglob("*.log*"):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size < LOG_BYTES_MAX:
                    name = "-".join(path.relative_to(broker.folder).parts)
                    shutil.copyfile(path, place / f"broker-{name}")
    report.artefacts = str(place)
    (place / "report.json").write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")


def lines_of(report: Report) -> list[str]:
    """Return the report as lines of at most 80 columns."""
    verdict = report.verdict
    ends = ", ".join(f"{count} {end}" for end, count in sorted(verdict.transactions.items()))
    duplicates = [f"{count} {cause}" for cause, count in verdict.duplicates.items()]
    kinds = [f"{count} {kind}" for kind, count in sorted(report.faults.items())]
    heads = [f"{count} {end}" for end, count in sorted(report.heads.items())]
    lines = [
        f"broker        {report.broker} {report.version}, {report.seconds:g} s, seed {report.seed}",
        *_wrapped("faults", f"{sum(report.faults.values())}: " + ", ".join(kinds)),
        f"transactions  {sum(verdict.transactions.values())}: {ends}",
        f"targets       {verdict.targets}; {verdict.lost} lost, {verdict.leaked} leaked",
        *([f"ordered       {verdict.ordered} transactions with an order key"] if verdict.ordered else []),
        *([f"heads         {', '.join(heads)}"] if heads else []),
        *_wrapped("duplicates", f"{sum(verdict.duplicates.values())}: " + ", ".join(duplicates or ["none"])),
        f"at rest       {report.rest_s:.1f} s after the last fault",
    ]
    for problem in report.problems[:PROBLEMS_SHOWN_MAX]:
        lines += _wrapped("PROBLEM", problem)
    if len(report.problems) > PROBLEMS_SHOWN_MAX:
        lines += _wrapped("", f"and {len(report.problems) - PROBLEMS_SHOWN_MAX} more")
    if report.artefacts:
        lines.append(f"artefacts     {report.artefacts}")
    return [*lines, "FAILED" if report.problems else "PASSED"]


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{title:<14}", subsequent_indent=" " * 14, break_on_hyphens=False)


def quiet_drivers(log: Path) -> None:
    """Send the drivers' logs about broken connections to a file; they would hide the progress."""
    logging.basicConfig(filename=log, level=logging.WARNING)


@contextlib.contextmanager
def started(name: str) -> Iterator[Harness]:
    """Start the harness `module:Class`, or a plugin's harness by its name, on a broker that may be killed."""
    from txcore_conformance.pytest_plugin import load_harness  # noqa: PLC0415 - needs pytest

    harness = load_harness(name if ":" in name else f"txcore_{name}.testing:{name.capitalize()}Harness")()
    private = harness.private()
    if private is None:
        private = harness
        harness.start()
    try:
        yield private
    finally:
        private.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if there are problems."""
    parser = argparse.ArgumentParser(
        prog="python -m txcore_conformance.chaos", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--broker", required=True, metavar="NAME", help="kafka, rabbitmq, nats, or MODULE:CLASS")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", nargs="?", const="", default="", help="seed of the faults; default: from the clock")
    parser.add_argument("--database", choices=("postgresql", "mariadb", "sqlite"), default="postgresql")
    parser.add_argument("--release", choices=("producer", "owner"), default="producer", help="what publishes halves")
    parser.add_argument("--order-keys", type=int, default=0, metavar="N", help="publish in order; --release owner")
    parser.add_argument("--heads", type=int, default=0, metavar="N", help="parked halves that hold order keys up")
    parser.add_argument("--rate", type=float, default=RATE, help="transactions a second of each producer")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, progress to standard error")
    chosen = parser.parse_args(arguments)
    if chosen.order_keys and chosen.release != "owner":
        parser.error("--order-keys needs --release owner: only a partition's owner keeps an order")
    if chosen.heads and not chosen.order_keys:
        parser.error("--heads needs --order-keys: a parked half holds an order key up")
    seed = chosen.seed or str(int(time.time()))

    def say(line: str) -> None:
        print(line, file=sys.stderr if chosen.json else sys.stdout, flush=True)

    say(f"chaos on {chosen.broker} for {chosen.seconds:g} s, seed {seed}")
    with (
        servers.database_url(chosen.database) as database,
        started(chosen.broker) as harness,
        tempfile.TemporaryDirectory(prefix="txcore-chaos-") as folder,
    ):
        quiet_drivers(Path(folder) / "run.log")
        options: dict[str, Any] = {"database": database, "release": chosen.release, "order_keys": chosen.order_keys}
        options |= {"heads": chosen.heads, "rate": chosen.rate}
        report = run(harness, chosen.seconds, seed, say, folder=Path(folder), **options)
        if report.problems:
            keep(report, Path(folder), getattr(harness, "broker", None))
    print(json.dumps(asdict(report)) if chosen.json else "\n".join(lines_of(report)))
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
