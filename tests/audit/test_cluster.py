"""The same job on a cluster of several executor processes: Spark's own small cluster on one machine."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from beds import Bed
from spark_processes import SAME, SUBMIT, environment

from txcore.audit.verdicts import Verdict

MASTER = "local-cluster[2,1,1024]"
TIMEOUT_S = 900
ROOT = Path(__file__).parents[2]
PACKAGES = ("txcore", "spark/txcore_spark", "plugins/sqlite/txcore_sqlite")


def audited(command, bed, *settings, **more):
    """Run the audit in its own process, and return its summary."""
    command = [*command, "--config", str(bed.config()), "--mode", "once", "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(**more), check=False, cwd=bed.folder
    )
    assert ended.stdout, ended.stderr[-3_000:]
    return json.loads(ended.stdout)


@pytest.fixture
def bed(tmp_path):
    """A bed with every kind of fault."""
    made = Bed(tmp_path)
    made.write(*[None] * 50, *(each for each in Verdict if each.name not in {"COVERAGE_GAP", "LATE_CHECK"}), size=2)
    return made


@pytest.mark.heavy
def test_a_cluster_gives_the_same_verdicts_as_one_process(bed):
    """The cluster's processes get sources, ranges and verdicts, and the package as docs/audit.md ships it."""
    module = [sys.executable, "-m", "txcore_spark"]
    alone = audited(module, bed, "audit.master=local[1]", "audit.range_records_max=1000")
    cluster = audited(module, bed, f"audit.master={MASTER}", "audit.range_records_max=1000")
    assert {key: alone[key] for key in SAME} == {key: cluster[key] for key in SAME}
    assert 12 <= len(alone["counts"])
    script = bed.folder / "audit.py"
    script.write_text("from txcore_spark.command import main\nraise SystemExit(main())\n", encoding="utf-8")
    submit = [SUBMIT, "--master", MASTER, "--py-files", str(zipped(bed.folder))]
    shipped = audited([*submit, str(script)], bed, PYSPARK_PYTHON=str(bare_python(bed.folder)))
    assert {key: alone[key] for key in SAME} == {key: shipped[key] for key in SAME}


def zipped(folder):
    """Return the package as one file."""
    path = folder / "txcore.zip"
    with zipfile.ZipFile(path, "w") as file:
        for package in PACKAGES:
            for each in (ROOT / package).rglob("*"):
                if each.is_file() and "__pycache__" not in each.parts:
                    file.write(each, each.relative_to((ROOT / package).parent))
    return path


def bare_python(folder):
    """Return a Python with the dependencies but without txcore: it runs without `site` and finds no linked package."""
    path = folder / "python"
    packages = sysconfig.get_path("purelib")
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    missing = subprocess.run([path, "-c", "import txcore"], capture_output=True, text=True, check=False, cwd=folder)
    assert "No module named 'txcore'" in missing.stderr
    return path
