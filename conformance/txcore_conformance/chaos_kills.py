"""Kills the broker itself repeatedly by SIGKILL, under a live workload."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from txcore.producer.arguments import ReleaseName
from txcore_conformance.chaos import Report, keep, lines_of, quiet_drivers, run
from txcore_conformance.chaos_faults import Planned
from txcore_conformance.harness import Harness

__all__ = ["kill_broker", "lines_of"]

GAP_S: Final = 1.0
TIME_MAX_S: Final = 3_600.0
ACCEPTED_MIN: Final = 20
DOWN_S: Final = 0.3


def kill_broker(harness: Harness, count: int, say: Callable[[str], None], release: ReleaseName = "producer") -> Report:
    """Kill and restart the broker of a started harness *count* times under a live workload, and judge the run.

    Raises:
        ValueError: the harness has no broker process.
    """
    private = harness.private()
    if private is None:
        raise ValueError("there is no broker process to kill")
    plan = [Planned(GAP_S, "kill-broker", DOWN_S, 0.0, ACCEPTED_MIN)] * count
    try:
        with tempfile.TemporaryDirectory(prefix="txcore-kills-") as folder:
            quiet_drivers(Path(folder) / "run.log")
            seed = f"{count}-broker-kills"
            plans = {"broker": plan}
            report = run(private, TIME_MAX_S, seed, say, folder=Path(folder), plans=plans, checkers=1, release=release)
            if report.faults.get("kill-broker", 0) < count:
                report.problems.append(
                    f"the broker was killed {report.faults.get('kill-broker', 0)} times, not {count}"
                )
            if report.problems:
                keep(report, Path(folder), getattr(private, "broker", None))
    finally:
        private.stop()
    return report
