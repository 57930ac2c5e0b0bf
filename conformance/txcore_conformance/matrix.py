"""The version matrix: the whole suite on one broker version after another, and a table of the results.

    python -m txcore_conformance.matrix --page versions.md --run "kafka newest,3.9 txcore_kafka.testing:KafkaHarness"

Each version runs in a process of its own against a broker started for it alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from txcore_conformance import brokers
from txcore_conformance.server_packages import ServerUnavailableError

PLUGIN: Final = "txcore_conformance.pytest_plugin"
SUITE: Final = "txcore_conformance.suite"
HEAD: Final = """\
# Broker versions that the conformance suite ran on

Made by `make matrix`. The default is the newest version; another one is chosen with `TXCORE_KAFKA_VERSION`,
`TXCORE_RABBITMQ_VERSION` or `TXCORE_NATS_VERSION`. A skipped test needs a capability that this form of the backend
does not have.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One broker, the requested versions, and the harnesses that run on each."""

    broker: str
    versions: tuple[str, ...]
    harnesses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one harness on one version; *version* is the version that the server reports."""

    broker: str
    asked: str
    version: str
    harness: str
    passed: int
    failed: int
    skipped: int
    took_s: float
    trouble: str = ""

    @property
    def is_good(self) -> bool:
        """Whether at least one test ran and all tests that ran passed."""
        return not self.failed and not self.trouble and self.passed > 0


def parse_run(text: str) -> Run:
    """Read `broker version,version harness [harness ...]`."""
    broker, versions, *harnesses = text.split()
    return Run(broker, tuple(versions.split(",")), tuple(harnesses))


def carry_out(run: Run, options: Sequence[str]) -> Iterator[Row]:
    """Run the suite for every version and harness of *run*."""
    for asked in run.versions:
        try:
            broker = brokers.start(run.broker, asked, own=True)
        except ServerUnavailableError as error:
            yield from (Row(run.broker, asked, "?", name, 0, 0, 0, 0.0, str(error)) for name in run.harnesses)
            continue
        try:
            for name in run.harnesses:
                yield _one(run.broker, asked, broker.version, name, broker, options)
        finally:
            broker.remove()


def _one(name: str, asked: str, version: str, harness: str, broker: brokers.Broker, options: Sequence[str]) -> Row:
    environment = os.environ | brokers.environment({name: broker}) | {f"TXCORE_{name.upper()}_VERSION": asked}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="txcore-matrix-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "--pyargs", SUITE]
        chosen = [f"--junitxml={report}", "--harness", harness, *options]
        subprocess.run([*command, *chosen], env=environment, check=False)  # noqa: S603 - txcore's own command
        took_s = time.monotonic() - began_s
        if not report.exists():
            return Row(name, asked, version, harness, 0, 0, 0, took_s, "pytest did not end in time")
        totals = ET.parse(report).getroot().find("testsuite")  # noqa: S314 - pytest's own file
        assert totals is not None
        count, bad, skipped = (int(totals.get(key, 0)) for key in ("tests", "failures", "skipped"))
        bad += int(totals.get("errors", 0))
        return Row(name, asked, version, harness, count - bad - skipped, bad, skipped, took_s)


def page(rows: Iterable[Row]) -> str:
    """Return the table as Markdown."""
    lines = [
        HEAD,
        "| broker | asked for | server | harness | passed | failed | skipped | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.broker, row.asked, row.version, f"`{row.harness.rpartition(':')[2]}`")
        figures = (row.passed, row.failed, row.skipped, f"{row.took_s:.0f} s")
        lines.append(f"| {' | '.join(map(str, (*cells, *figures)))} |" + (f" {row.trouble}" if row.trouble else ""))
    return "\n".join([*lines, "", f"Last run: {datetime.now(UTC):%Y-%m-%d}.", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m txcore_conformance.matrix", description=__doc__)
    parser.add_argument("--run", action="append", required=True, type=parse_run, help="broker versions harness...")
    parser.add_argument("--page", type=Path, help="file for the table")
    chosen, options = parser.parse_known_args(arguments)
    rows = []
    for run in chosen.run:
        for row in carry_out(run, options):
            rows.append(row)
            print(f"{row.broker} {row.version} {row.harness}: {row.passed} passed, {row.failed} failed, {row.trouble}")
    text = page(rows)
    print(text)
    if chosen.page:
        chosen.page.write_text(text, encoding="utf-8")
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
