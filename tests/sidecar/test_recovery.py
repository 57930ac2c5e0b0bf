"""The benchmark of recovery runs a real producer and a real checker process; its figures are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_recovery_of_orphans_is_measured(tmp_path):
    """A small run on files delivers each committed message once."""
    report = tmp_path / "figures.json"
    command = ["-m", "benchmarks.recovery", "--broker", "sqlite", "--fence", "listener", "--count", "20"]
    done = subprocess.run(
        [sys.executable, *command, "--lead-s", "1", "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("LOADED MACHINE: ")]
    assert (0, []) == (done.returncode, said)
    found = json.loads(report.read_text(encoding="utf-8"))
    assert (20, found["expected"], 0) == (found["decided"], found["delivered"], found["duplicates"])
    assert 0 < found["from_first_due_s"]
