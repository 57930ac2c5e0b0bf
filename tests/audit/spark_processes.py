"""Spark's own programs in processes of their own, and what their audits have in common with those of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = str(SPARK_HOME / "bin" / "spark-submit")
SAME = ("counts", "severities", "exit_code", "records", "gaps")
"""Keys of a summary that do not depend on where the audit ran."""


def environment(**more):
    """Return the environment of a program of Spark."""
    return os.environ | {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable} | more
