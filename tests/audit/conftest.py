"""The audit's engines for its tests: one connection to DuckDB, one Spark session."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from txcore_conformance.brokers.kafka_programs import spark_kafka_libraries
from txcore_conformance.server_packages import ServerUnavailableError
from txcore_spark.engines.session import open_session

sys.path.insert(0, str(Path(__file__).parent))
HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
collect_ignore_glob = [] if HAS_ARROW else ["test_[!c]*.py"]
HAS_SPARK = importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None


#: Options of the session for few rows and many plans, which cost more to compile than to run.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def require_spark():
    """Skip without Spark, unless it is required."""
    if not HAS_SPARK:
        if "spark" in os.environ.get("TXCORE_REQUIRE", ""):
            pytest.fail("pyspark and Java are required here")
        pytest.skip("pyspark or Java is not installed")


def kafka_jars(items):
    """Return the folder with the jars of Spark's Kafka source if a test reads with it; "" if they are missing."""
    if any("spark-kafka" in item.nodeid for item in items):
        with contextlib.suppress(ServerUnavailableError):
            return str(spark_kafka_libraries())
    return ""


@pytest.fixture(scope="session")
def spark(request):
    """The engine on the one Spark session of all tests of the audit."""
    require_spark()
    session = open_session("local[2]", "2g", SETTINGS, kafka_jars(request.session.items))
    yield importlib.import_module("txcore_spark.engines.spark").SparkEngine(session)
    session.stop()


@pytest.fixture(scope="session")
def duck():
    """A DuckDB engine for all tests of the audit."""
    module = pytest.importorskip("txcore_spark.engines.duck")
    made = module.DuckEngine()
    yield made
    made.close()


@pytest.fixture(scope="session", params=["duck", "spark"])
def engine(request):
    """Each engine of the audit."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def bed(tmp_path):
    """A new group; some files have a special one."""
    made = importlib.import_module("beds").Bed(tmp_path)
    yield made
    made.writer.close()
