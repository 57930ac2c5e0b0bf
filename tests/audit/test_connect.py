"""The same job on a Spark Connect server, which has Java and executors; `make audit-connect` runs this file."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from beds import Bed
from conftest import require_spark
from txcore_conformance.kit import wait_until

pytest.importorskip("pyspark")

from spark_processes import SAME, SUBMIT, environment

from txcore.audit.verdicts import Verdict

HAS_PACKAGES = importlib.util.find_spec("grpc") is not None
TIMEOUT_S = 600
SETTINGS = (
    "spark.connect.grpc.binding.address=127.0.0.1",
    "spark.connect.grpc.binding.port=0",
    "spark.ui.enabled=false",
    "spark.sql.shuffle.partitions=1",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
ALL_KINDS = [each for each in Verdict if each.name not in {"COVERAGE_GAP", "LATE_CHECK"}]

pytestmark = pytest.mark.skipif(not HAS_PACKAGES, reason="`make audit-connect` installs the packages of Spark Connect")


@contextmanager
def server(folder, *settings):
    """Run a server, and yield its address."""
    require_spark()
    log = folder / "server.log"
    options = [part for each in (*SETTINGS, *settings) for part in ("--conf", each)]
    command = [SUBMIT, "--master", "local[2]", *options, "--name", "server"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment(), cwd=folder) as process,
    ):
        try:
            started = re.compile(r"server started at: 127\.0\.0\.1:(\d+)")
            port = wait_until(lambda: started.search(log.read_text("utf-8")), "a Spark Connect server", 120)[1]
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server."""
    with server(tmp_path_factory.mktemp("connect")) as found:
        yield found


@pytest.fixture
def bed(tmp_path):
    """A bed with every kind of fault."""
    made = Bed(tmp_path)
    made.write(*[None] * 20, *ALL_KINDS, size=2)
    yield made
    made.writer.close()


def ended(bed, *arguments, **more):
    """Run the audit in its own process, without Java on its path."""
    command = [sys.executable, "-m", "txcore_spark", "--config", str(bed.config()), "--json", *arguments]
    without_java = os.environ | {"PATH": str(Path(sys.executable).parent), "JAVA_HOME": ""} | more
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=bed.folder, env=without_java
    )


def summary(done):
    """Return what a run printed."""
    assert done.stdout, done.stderr[-3_000:]
    return json.loads(done.stdout)


def on_spark(master):
    """Return the options for a server."""
    return "--engine", "spark", "--set", f"audit.master={master}"


@pytest.mark.parametrize("landed", [(), ("--no-land",)], ids=["landed", "no-land"])
def test_a_server_gives_the_verdicts_of_this_machine(address, bed, landed):
    """No Java here; rows beside the run and in Spark's own storage."""
    own = summary(ended(bed, "--engine", "duckdb", "--mode", "once"))
    remote = summary(ended(bed, *on_spark(address), "--mode", "once", *landed))
    assert {key: own[key] for key in SAME} == {key: remote[key] for key in SAME}
    assert list(own["counts"]) == list(remote["counts"])
    assert len(remote["counts"]) >= 12


def test_a_server_goes_on_where_another_engine_ended(address, bed):
    """The environment names the server here, as `spark-submit` and other programs do it."""
    first = summary(ended(bed, "--engine", "duckdb"))
    bed.write(*ALL_KINDS)
    second = summary(ended(bed, "--engine", "spark", SPARK_REMOTE=address))
    third = summary(ended(bed, "--engine", "duckdb"))
    assert second["number"] == first["number"] + 1
    for name in ("LOST", "LEAK", "CONFLICT"):
        assert second["counts"][name] == third["counts"][name] == first["counts"][name] + 1


def test_a_server_that_does_not_answer_fails_in_a_sentence(bed):
    """It is not tried for ten minutes, as Spark's client does by itself; a token in the address is not shown."""
    done = ended(bed, *on_spark("sc://127.0.0.1:1/;token=secret"))
    assert done.returncode == 4
    assert "no Spark Connect server answers" in done.stderr
    assert "Connection refused" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr


def test_a_server_that_runs_a_task_twice_is_refused(tmp_path, bed):
    """Speculation would count a range twice."""
    folder = tmp_path / "other"
    folder.mkdir()
    with server(folder, "spark.speculation=true") as found:
        done = ended(bed, *on_spark(found))
    assert done.returncode == 4
    assert done.stderr.splitlines() == ["txcore: the audit needs a Spark Connect server with spark.speculation=false"]
