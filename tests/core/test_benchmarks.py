"""The benchmark runs, and every row of it has figures; what they are is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS_MAX = 128


def test_quick_benchmark_fills_every_row(tmp_path):
    """Each row has a rate, latencies and, unless it is a yardstick, a ratio; nothing is left behind."""
    report = tmp_path / "figures.json"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ["-m", "benchmarks", "--quick", "--broker", "memory", "--rounds", "1", "--seconds", "0.001"]
    done = subprocess.run(
        [sys.executable, *command, "--json", str(report)],
        cwd=ROOT,
        env={"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert [] == [line for line in done.stdout.splitlines() if len(line) > COLUMNS_MAX]
    assert [] == list(temporary.iterdir())
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    assert {"raw commit", "business, core", "raw halves", "database, core", "listener", "primitives", "send_many"} == {
        row["style"] for row in rows
    }
    for row in rows:
        rates = row["transactions_per_s"]
        assert 0 < rates["min"] <= rates["median"] <= rates["max"], row["key"]
        assert 0 < row["latency_p50_ms"] <= row["latency_p99_ms"], row["key"]
        assert (row["ratio"] is None) == (row["against"] is None), row["key"]


def test_inbox_kills_run_and_are_judged():
    """A small run of the acceptance: each message has one effect, and the command says so."""
    command = ["-m", "benchmarks.inbox_kills", "run", "--deliveries", "200", "--kills", "2"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert "2 kills: 140 effects of 140 messages" in done.stdout
    assert "lost 0, applied again 0" in done.stdout
