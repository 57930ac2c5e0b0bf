"""Faults of a real broker and of its network under load: producers and a checker as processes, then the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from txcore_conformance.harness import Harness

pytest.importorskip("sqlalchemy", reason="the live run's programs use the fence")

from txcore_conformance import chaos
from txcore_conformance.chaos_faults import Planned

SECONDS_MAX = 120.0
LINES_SHOWN = 20
LINE_SIZE_MAX = 300
PRODUCERS = ("database", "pipelined")


def _run(harness: Harness, folder: Path, **lanes: list[Planned]) -> chaos.Report:
    report = chaos.run(
        harness, SECONDS_MAX, "suite", print, folder=folder, plans=lanes, producers=PRODUCERS, checkers=1
    )
    print("\n".join(chaos.lines_of(report)))
    if report.problems:
        print(*_last_words(folder), sep="\n")
    assert [] == report.problems
    assert sum(len(planned) for planned in lanes.values()) == sum(report.faults.values())
    assert report.verdict.transactions["commit"] > 0
    return report


def _last_words(folder: Path) -> Iterator[str]:
    """Return the last lines of each process's history and log, because the folder is deleted after the test."""
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.log")]):
        yield f"== {path.name}"
        yield from (line[:LINE_SIZE_MAX] for line in path.read_text(encoding="utf-8").splitlines()[-LINES_SHOWN:])


def test_a_broker_killed_under_load_and_restarted_loses_nothing(private: Harness, tmp_path: Path) -> None:
    """After a SIGKILL under load every process recovers by itself and every transaction is decided."""
    _run(private, tmp_path / "run", broker=[Planned(1.0, "kill-broker", 0.5, 0.0)])


def test_a_broker_frozen_for_ten_seconds_loses_nothing(private: Harness, tmp_path: Path) -> None:
    """A broker that is frozen under load loses no transaction; requests with a late effect only cause duplicates."""
    _run(private, tmp_path / "run", broker=[Planned(1.0, "pause-broker", 10.0, 0.0)])


def test_connections_that_are_cut_frozen_refused_or_lose_replies_lose_nothing(private: Harness, tmp_path: Path) -> None:
    """Lost replies, cut, frozen and refused connections, one after the other under load, lose no transaction."""
    _run(
        private,
        tmp_path / "run",
        network=[
            Planned(1.0, "swallow-replies", 1.0, 0.0),
            Planned(1.5, "cut", 0.0, 0.0),
            Planned(0.5, "freeze-network", 3.0, 0.0),
            Planned(1.0, "refuse-connections", 1.5, 0.0),
        ],
    )
