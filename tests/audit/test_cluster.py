"""The same job on a cluster of several executor processes: Spark's own small cluster on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark
from beds import Bed

from txcore.verdicts import Verdict

MASTER = "local-cluster[2,1,1024]"
TIMEOUT_S = 900


def audited(bed, *settings):
    """Run the audit as a process of its own; returns its summary."""
    command = [sys.executable, "-m", "txcore_spark", "--config", str(bed.config()), "--mode", "once", "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    environment = os.environ | {"SPARK_HOME": str(Path(pyspark.__file__).parent), "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    assert ended.stdout, ended.stderr[-3_000:]
    return json.loads(ended.stdout)


@pytest.mark.heavy
def test_a_cluster_gives_the_same_verdicts_as_one_process(tmp_path):
    """Sources, ranges and verdicts travel to other processes."""
    bed = Bed(tmp_path)
    bed.write(*[None] * 50, *(each for each in Verdict if each.name not in {"COVERAGE_GAP", "LATE_CHECK"}), size=2)
    alone = audited(bed, 'audit.master="local[1]"', "audit.range_records_max=1000")
    cluster = audited(bed, f'audit.master="{MASTER}"', "audit.range_records_max=1000")
    same = ("counts", "severities", "exit_code", "records", "gaps")
    assert {key: alone[key] for key in same} == {key: cluster[key] for key in same}
    assert 12 <= len(alone["counts"])
