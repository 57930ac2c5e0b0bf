"""One Spark session for all tests of the audit."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from txcore_spark.session import open_session

sys.path.insert(0, str(Path(__file__).parent))
HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
collect_ignore_glob = [] if HAS_ARROW else ["test_[!c]*.py"]
HAS_SPARK = importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None


#: Few rows, many plans: compiling them costs more than running them.
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


@pytest.fixture(scope="session")
def spark():
    """The session, on one core."""
    require_spark()
    session = open_session("local[2]", "2g", SETTINGS)
    yield session
    session.stop()
