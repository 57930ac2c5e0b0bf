"""Which engine a run uses: the one that is asked for, else Spark where it is installed, else DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from txcore.audit.engines import DUCKDB, NO_ENGINE, SPARK
from txcore.config import Loaded
from txcore.errors import BackendNotInstalledError, UsageError
from txcore_spark.engines.noise import SparkOutput
from txcore_spark.engines.session import is_open, open_session
from txcore_spark.frames import Engine

TITLES: Final = {DUCKDB: "DuckDB", SPARK: "Spark"}
_MODULES: Final = {DUCKDB: "duckdb", SPARK: "pyspark"}
_EXTRAS: Final = {DUCKDB: "audit", SPARK: "spark"}


def chosen(wanted: str) -> str:
    """Return the name of the engine for a run; *wanted* is one of `ENGINES`, or "" for the default.

    Raises:
        UsageError: none is installed.
        BackendNotInstalledError: the wanted one is not installed.
    """
    if wanted:
        if find_spec(_MODULES[wanted]) is None:
            raise BackendNotInstalledError("the audit", _MODULES[wanted], _EXTRAS[wanted])
        return wanted
    for name in (SPARK, DUCKDB):
        if find_spec(_MODULES[name]) is not None:
            return name
    raise UsageError(NO_ENGINE)


def open_engine(name: str, loaded: Loaded, settings: Mapping[str, str], output: SparkOutput) -> Engine:
    """Return an engine with the settings of a configuration.

    Args:
        settings: Further settings of a Spark session.
        output: Where Spark's own output goes.

    Raises:
        BackendNotInstalledError: a package is missing.
        ConfigError: Java or a jar is missing, or the engine cannot use a value of the configuration.
    """
    audit = loaded.config.audit
    if name == DUCKDB:
        from txcore_spark.engines.duck import DuckEngine  # noqa: PLC0415 - each engine is an extra

        return DuckEngine.of(audit)
    is_own = not is_open()
    with output.caught():
        session = open_session(audit.master, audit.driver_memory, settings, audit.spark_jars)
    from txcore_spark.engines.spark import SparkEngine  # noqa: PLC0415 - as above

    engine = SparkEngine(session, is_own=is_own)
    if audit.kafka_source == "spark":
        from txcore_spark.engines import native  # noqa: PLC0415 - it needs Kafka's driver, as others do not

        try:
            native.require(session)
        except BaseException:
            engine.close()
            raise
    return engine
