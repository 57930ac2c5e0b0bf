"""The Spark session: what its caller has set wins, and only a session of the audit's own is stopped."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from conftest import require_spark

pytest.importorskip("pyspark")

from spark_processes import SUBMIT, environment

TIMEOUT_S = 300
SERVER = "sc://127.0.0.1:1"
OPENED = """
import sys
from txcore.config import load
from txcore_spark.engines.choice import open_engine
from txcore_spark.engines.noise import SparkOutput
from txcore_spark.engines.session import is_open

loaded = load(sys.argv[1], settings=["audit.master=local[1]"] if len(sys.argv) > 2 else [])
def opened():
    return open_engine("spark", loaded, {}, SparkOutput(is_shown=True))
def shown(session, *keys):
    print("shown", *(session.conf.get(f"spark.sql.{key}") for key in keys))
"""
OWN_THEN_THE_CALLERS = """
engine = opened()
engine.expect(10_000_000)
shown(engine.session, "shuffle.partitions", "session.timeZone", "parquet.compression.codec")
engine.close()
engine.close()
print("shown", is_open())

from pyspark.sql import SparkSession
mine = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "3").getOrCreate()
engine = opened()
engine.expect(10_000_000)
shown(engine.session, "shuffle.partitions")
engine.close()
print("shown", is_open(), mine.range(3).count())
"""
SUBMITTED = """
engine = opened()
engine.expect(10_000_000)
shown(engine.session, "shuffle.partitions", "session.timeZone", "parquet.compression.codec")
engine.close()
"""


@pytest.fixture(autouse=True)
def _needs_spark():
    require_spark()


def shown(bed, script, command, *arguments):
    """Run the script in its own process, and return what it prints."""
    path = bed.folder / "script.py"
    path.write_text(OPENED + script, encoding="utf-8")
    ended = subprocess.run(
        [*command, str(path), str(bed.config()), *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=bed.folder,
        env=environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("shown")]


def test_an_own_session_is_stopped_and_a_callers_goes_on(bed):
    """An own session has the audit's settings; a caller's keeps its own, and works after the engine was closed."""
    assert shown(bed, OWN_THEN_THE_CALLERS, [sys.executable], "local") == [
        ["25", "UTC", "zstd"],
        ["False"],
        ["3"],
        ["True", "3"],
    ]


def test_what_spark_submit_was_given_wins(bed):
    """Its options and spark-defaults.conf win, except for what the verdicts depend on."""
    defaults = bed.folder / "defaults.conf"
    defaults.write_text("spark.sql.parquet.compression.codec snappy\n", encoding="utf-8")
    submit = [SUBMIT, "--master", "local[1]", "--properties-file", str(defaults)]
    submit += ["--conf", "spark.sql.shuffle.partitions=5", "--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    assert shown(bed, SUBMITTED, submit) == [["5", "UTC", "snappy"]]


@pytest.mark.skipif(importlib.util.find_spec("grpc") is not None, reason="the packages of Spark Connect are installed")
@pytest.mark.parametrize("variables", [{}, {"SPARK_REMOTE": SERVER}], ids=["master", "environment"])
def test_a_server_without_its_packages_names_the_extra(bed, variables):
    """One sentence, wherever the server's address comes from."""
    settings = [] if variables else ["--set", f"audit.master={SERVER}"]
    command = [sys.executable, "-m", "txcore_spark", "--config", str(bed.config()), "--engine", "spark", *settings]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**variables))
    assert ended.returncode == 4
    (line,) = ended.stderr.splitlines()
    assert 'pip install "txcore[spark-connect]"' in line
